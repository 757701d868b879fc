"""What healthy sessions see while others do not read, on the whole way of a notification, direct or through the mesh.

Events are published at a steady rate to all of them, frozen ones included. Before that large events fill what lies
between the frozen ones and their node: sockets and, through the mesh, the buffers of edge and sidecar. Where nobody is
frozen the same large events go to as many recipients that are not there, so that the stores have as much to carry.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator

import msgspec

from bench import listeners, publishers
from bench.crowd import Crowd, live_order
from bench.e2e import Load, output, publisher_order, start
from bench.installation import Installation
from bench.measures import Spread, quiet, spread, table

# Almost as much as the body of an event may hold: 12 kB.
_PADDING = 3_900
# Large events for each frozen reader in one go; a node keeps no more of them than a class of an inbox holds.
_STUFFING = 60
_STUFFINGS = 8
_FOLLOW_UP_S = 11.0
_BEHIND = "heliograph_gateway_behind_total"
# A node closes them after a while; here they stay.
_PATIENT = {"HELIOGRAPH_GATEWAY_BEHIND_LIMIT": "600"}


class Frozen(msgspec.Struct, frozen=True):
    """What healthy sessions see while others do not read.

    Attributes:
        direct: without sidecars and edge.
        healthy: their receipts without frozen ones.
        beside: their receipts beside frozen ones.
        share: of the sessions, frozen.
        stuck: frozen sessions of all rounds.
        behind: times that the node found a socket full, of all rounds.
        missing: notifications that healthy sessions did not get, of all rounds.
    """

    direct: bool
    healthy: Spread
    beside: Spread
    share: float
    stuck: int
    behind: int
    missing: int

    @property
    def ratio(self) -> float:
        """p99 beside frozen readers to p99 without; infinity where something is missing, or nobody was in the way."""
        if self.missing or not self.behind or not self.healthy.p99:
            return float("inf")
        return self.beside.p99 / self.healthy.p99


def measure(sessions: int, share: float, rate: float, seconds: float, rounds: int, *, direct: bool) -> Frozen:
    """Publishes to sessions of one node, with and without frozen ones beside them, in turn; the middle round counts.

    Args:
        sessions: healthy ones.
        share: of them, so many frozen ones are there besides.
        rate: notifications a second.
        seconds: of each round.
        rounds: of each kind.
        direct: without sidecars and edge.
    """
    seen: dict[bool, list[Spread]] = {False: [], True: []}
    count, stuck, behind, missing = max(1, round(sessions * share)), 0, 0, 0
    with Installation(direct=direct, gateways=1, environ=_PATIENT) as installation:
        (node,) = installation.gateways()
        times = 0
        for number in range(2 * rounds):
            frozen = number % 2 == 0
            healthy = [f"h{number}-{index:05d}" for index in range(sessions)]
            others = [f"z{number}-{index:05d}" for index in range(count)]
            with _sessions(installation, healthy, others if frozen else []) as crowd:
                before = installation.metrics(node).get(_BEHIND, 0.0)
                times = _stuff(installation, node, others, count if frozen else None, times=times)
                everybody = random.Random(number).sample([*healthy, *others], sessions + count)
                load = Load("frozen", rate, batch=10)
                # What was stuffed is looked at again after ten seconds, and whoever has slept is slow at first.
                for duration in (_FOLLOW_UP_S, seconds):
                    quiet(installation.pids())
                    crowd.begin(listeners.Command(forget=True))
                    crowd.wait()
                    _publish(installation, everybody, load, duration)
                quiet(installation.pids())
                receipts = crowd.end().receipts
            seen[frozen].append(spread(receipts))
            every = itertools.islice(itertools.cycle(everybody), round(rate * seconds))
            missing += sum(name.startswith("h") for name in every) - len(receipts)
            stuck += count * frozen
            behind += round(installation.metrics(node).get(_BEHIND, 0.0) - before)
    usual, beside = (sorted(seen[frozen], key=lambda one: one.p99)[rounds // 2] for frozen in (False, True))
    return Frozen(direct, usual, beside, share, stuck, behind, missing)


@contextlib.contextmanager
def _sessions(installation: Installation, healthy: list[str], stuck: list[str]) -> Iterator[Crowd]:
    """Connects sessions, of which some do not read; yields those that do."""
    with contextlib.ExitStack() as stack:
        crowd = stack.enter_context(Crowd(live_order(installation, healthy)))
        if stuck:
            order = msgspec.structs.replace(live_order(installation, stuck), frozen=len(stuck))
            stack.enter_context(Crowd(order)).wait()
        crowd.wait()
        yield crowd


def _stuff(installation: Installation, node: str, recipients: list[str], until: int | None, *, times: int) -> int:
    """Publishes large events until the node has found so many sockets full, else so many times; returns how many."""
    times = times if until is None else _STUFFINGS
    before = installation.metrics(node).get(_BEHIND, 0.0)
    for number in range(1, times + 1):
        load = Load("stuffing", rate=_STUFFING * len(recipients) / 3.0, audience=len(recipients))
        _publish(installation, recipients, load, 3.0, padding=_PADDING)
        if until is not None and installation.metrics(node).get(_BEHIND, 0.0) - before >= until:
            return number
    return times


def _publish(installation: Installation, recipients: list[str], load: Load, seconds: float, padding: int = 0) -> None:
    order = msgspec.structs.replace(publisher_order(installation, recipients, load, seconds), padding=padding)
    sent = msgspec.json.decode(output(start("bench.publishers", order)), type=publishers.Result)
    if sent.refused:
        raise RuntimeError(f"events were refused: {sent.errors}")


def show(frozen: Frozen) -> str:
    """Returns the table."""
    shape = "direct" if frozen.direct else "mesh"
    columns = (f"frozen readers, {shape}", "p50 ms without", "p99", "p50 beside", "p99", "ratio of p99", "sockets full")
    row = (f"{frozen.share:.0%}", frozen.healthy.p50, frozen.healthy.p99, frozen.beside.p50, frozen.beside.p99)
    return table(columns, [(*row, f"{frozen.ratio:.2f}", f"{frozen.behind} times, {frozen.stuck} readers")])
