"""What a push costs: `python -m bench.push`. One notification to one session each, one to all, some readers frozen.

The benchmark plays delivery on links of its own, so the CPU of a gateway node is that of pushes alone; it is divided by
the frames that its sessions got. Beside it a bare loop that writes the same frames to as many sockets, in turn.

Only "topic" is the whole way: an event is published to a topic, and everybody who follows it has a session
(`bench/push_topic.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from bench import listeners, peers, push_topic
from bench.crowd import PACE, Crowd, live_order
from bench.installation import Installation
from bench.measures import Spread, cpu_seconds, machine, quiet, spread, table
from bench.pushing import LARGEST_BATCH, Pusher, Writer, pushing
from mesh.channel import Channels

_FRAME = 400
_LARGEST_FRAME = 16_000
# Large frames for one frozen reader: the system's own buffers take a few megabytes of them.
_STUFFING_LIMIT = 1_000
_TICK = 0.01


class Push(msgspec.Struct, frozen=True):
    """What pushes cost.

    Attributes:
        name: which.
        frames: that the sessions got.
        micros: CPU of the gateway for each of them.
        bare_micros: CPU of the bare write loop for each.
        seconds: from the first push to the last receipt.
        refused: recipients for whom the gateway took nothing.
    """

    name: str
    frames: int
    micros: float
    bare_micros: float = 0.0
    seconds: float = 0.0
    refused: int = 0

    @property
    def a_second(self) -> float:
        """Pushes that one core makes in a second."""
        return 1_000_000 / self.micros if self.micros else 0.0


class Frozen(msgspec.Struct, frozen=True):
    """What healthy sessions see while others do not read.

    Attributes:
        healthy: their receipts without frozen ones.
        beside: their receipts beside frozen ones.
        share: of the sessions, frozen.
        behind: pushes that were refused because a socket was full.
    """

    healthy: Spread
    beside: Spread
    share: float
    behind: int

    @property
    def ratio(self) -> float:
        """p99 beside frozen readers to p99 without."""
        return self.beside.p99 / self.healthy.p99 if self.healthy.p99 else 0.0


class Figures(msgspec.Struct, frozen=True):
    """Everything that was measured."""

    pushes: list[Push]
    topic: push_topic.Topic | None
    frozen: Frozen | None


class Nodes:
    """Gateway nodes with sessions, and a link to each."""

    def __init__(self, installation: Installation, keys: Sequence[Sequence[str]], pushers: Sequence[Pusher]) -> None:
        self.installation = installation
        self.keys = keys
        self.pushers = pushers

    def cpu(self) -> float:
        """Returns the CPU seconds of all nodes."""
        return sum(cpu_seconds(self.installation.gateways()).values())

    def refused(self) -> int:
        """Returns how many pushes were not taken."""
        return sum(one.absent + one.behind for one in self.pushers)

    async def settle(self) -> None:
        """Returns when every push was answered and the nodes are quiet."""
        for pusher in self.pushers:
            await pusher.done()
        await asyncio.to_thread(quiet, self.installation.gateways())


@asynccontextmanager
async def _linked(installation: Installation, keys: Sequence[Sequence[str]]) -> AsyncIterator[Nodes]:
    channels = Channels(service="delivery", process="bench", run_dir=Path(installation.up.run_dir), direct=True)
    async with contextlib.AsyncExitStack() as stack:
        names = list(installation.gateways())[: len(keys)]
        pushers = [await stack.enter_async_context(pushing(channels, name)) for name in names]
        yield Nodes(installation, keys, pushers)
        await channels.close()


@contextlib.contextmanager
def _crowds(
    installation: Installation, prefix: str, counts: Sequence[int], *, acks: bool, frozen: int = 0
) -> Iterator[tuple[list[Crowd], list[list[str]]]]:
    """Connects so many sessions to each node; yields their processes and their recipient keys."""
    with contextlib.ExitStack() as stack:
        crowds, keys = [], []
        for index, count in enumerate(counts):
            recipients = [f"{prefix}{index}-{number:05d}" for number in range(count)]
            order = live_order(installation, recipients, node=index, processes=len(counts))
            order = msgspec.structs.replace(order, frozen=frozen, acks=acks)
            crowds.append(stack.enter_context(Crowd(order)))
            keys.append([f"acme/{recipient}" for recipient in recipients])
        for crowd in crowds:
            crowd.wait()
        yield crowds, keys


# ---------------------------------------------------------------- one to one


async def _unicast(nodes: Nodes, rounds: int) -> None:
    """Pushes a notification of its own to every session, so many times."""
    writer = Writer(_FRAME)
    for _ in range(rounds):
        for pusher, keys in zip(nodes.pushers, nodes.keys, strict=True):
            for start in range(0, len(keys), LARGEST_BATCH):
                now = time.monotonic_ns() // 1_000
                await pusher.push([writer.delivery([key], now) for key in keys[start : start + LARGEST_BATCH]])
    await nodes.settle()


async def _to_all(nodes: Nodes, rounds: int) -> None:
    """Pushes one notification to every session, so many times; the nodes at the same time."""
    writer = Writer(_FRAME)

    async def one(pusher: Pusher, keys: Sequence[str], intended: int) -> None:
        delivery = writer.delivery([], intended)
        for start in range(0, len(keys), LARGEST_BATCH):
            del delivery.recipient_keys[:]
            delivery.recipient_keys.extend(keys[start : start + LARGEST_BATCH])
            await pusher.push([delivery])

    for _ in range(rounds):
        now = time.monotonic_ns() // 1_000
        await asyncio.gather(*(one(*each, now) for each in zip(nodes.pushers, nodes.keys, strict=True)))
    await nodes.settle()


def measure_pushes(sessions: int, rounds: int) -> list[Push]:
    """Measures one to one, one to all, and acks, on one node with so many sessions; a bare loop beside it."""
    bare = _bare(sessions, rounds)
    found = []
    with Installation(direct=True, gateways=1) as installation:
        with _crowds(installation, "q", [sessions], acks=False) as (_, keys):
            for name, push in (("one to one", _unicast), ("one to all", _to_all)):
                micros, refused = asyncio.run(_cost(installation, keys, push, rounds))
                found.append(Push(name, sessions * rounds, round(micros, 2), round(bare, 2), refused=refused))
        with _crowds(installation, "a", [sessions], acks=True) as (_, keys):
            micros, refused = asyncio.run(_cost(installation, keys, _unicast, rounds))
        found.append(Push("one to one, acked", sessions * rounds, round(micros, 2), refused=refused))
    return found


async def _cost(installation: Installation, keys: list[list[str]], push: object, rounds: int) -> tuple[float, int]:
    """Returns CPU µs a push and how many were refused; a first round is not counted."""
    assert callable(push)
    async with _linked(installation, keys) as nodes:
        await push(nodes, 1)
        before = nodes.cpu()
        await push(nodes, rounds)
        return (nodes.cpu() - before) / (sum(map(len, keys)) * rounds) * 1e6, nodes.refused()


def _bare(sessions: int, rounds: int) -> float:
    """Returns CPU µs a frame of a loop that only writes."""
    command = [sys.executable, "-m", "bench.peers", "bare"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        target = f"127.0.0.1:{int(process.stdout.readline())}"
        order = listeners.Order(
            targets=[target], server_name="", ca_file="", sessions=[("bench", "unread")] * sessions, pace=PACE
        )
        try:
            with Crowd(order) as crowd:
                crowd.wait()
                for count in (1, rounds):
                    process.stdin.write(msgspec.json.encode(peers.Command(rounds=count, payload=_FRAME - 4)) + b"\n")
                    process.stdin.flush()
                    pushed = msgspec.json.decode(process.stdout.readline(), type=peers.Pushed)
        finally:
            process.kill()
    return pushed.cpu / pushed.frames * 1e6


# ---------------------------------------------------------------- one to many


def measure_audience(sessions: int, nodes: int) -> Push:
    """Pushes one notification to sessions on several nodes, the gateways' part alone; says when the last one had it."""

    async def once(installation: Installation, keys: list[list[str]], crowds: list[Crowd]) -> tuple[float, int]:
        async with _linked(installation, keys) as linked:
            await _to_all(linked, 1)
            for crowd in crowds:
                crowd.begin(listeners.Command(forget=True))
                crowd.wait()
            before = linked.cpu()
            await _to_all(linked, 1)
            return linked.cpu() - before, linked.refused()

    with (
        Installation(direct=True, gateways=nodes) as installation,
        _crowds(installation, "m", [sessions // nodes] * nodes, acks=False) as (crowds, keys),
    ):
        cpu, refused = asyncio.run(once(installation, keys, crowds))
        receipts = [micros for crowd in crowds for micros in crowd.end().receipts]
    last = max(receipts, default=0) / 1e6
    return Push(f"one to {sessions:,}", len(receipts), round(cpu / sessions * 1e6, 2), 0.0, round(last, 3), refused)


# ---------------------------------------------------------------- frozen readers


def measure_frozen(sessions: int, share: float, rate: float, seconds: float, rounds: int) -> Frozen:
    """Pushes at a steady rate to sessions, with and without frozen ones beside them, in turn."""
    seen: dict[bool, list[Spread]] = {False: [], True: []}
    behind = 0
    with Installation(direct=True, gateways=1) as installation:
        for number in range(2 * rounds):
            frozen = number % 2 == 1
            with contextlib.ExitStack() as stack:
                (healthy,), (keys,) = stack.enter_context(_crowds(installation, f"h{number}", [sessions], acks=True))
                stuck: list[str] = []
                if frozen:
                    count = max(1, round(sessions * share))
                    _, (stuck,) = stack.enter_context(
                        _crowds(installation, f"z{number}", [count], acks=True, frozen=count)
                    )
                behind += asyncio.run(_paced(installation, keys, stuck, rate, seconds))
                seen[frozen].append(spread(healthy.end().receipts))
    usual, beside = (sorted(seen[frozen], key=lambda one: one.p99)[rounds // 2] for frozen in (False, True))
    return Frozen(healthy=usual, beside=beside, share=share, behind=behind)


async def _paced(installation: Installation, keys: list[str], stuck: list[str], rate: float, seconds: float) -> int:
    """Pushes by intended time; returns how many pushes were refused because a socket was full."""
    everybody = [*keys, *stuck]
    async with _linked(installation, [everybody]) as nodes:
        (pusher,) = nodes.pushers
        # Only what fills a socket makes its session one that is behind.
        stuffing = Writer(_LARGEST_FRAME)
        for _ in range(_STUFFING_LIMIT if stuck else 0):
            if pusher.behind >= len(stuck):
                break
            await pusher.push([stuffing.delivery([key], 0) for key in stuck])
            await pusher.done()
        writer, began, position = Writer(_FRAME), time.monotonic(), 0
        size = max(1, round(rate * _TICK))
        for number in range(round(seconds / _TICK)):
            due = began + number * _TICK
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            chosen = [everybody[(position + index) % len(everybody)] for index in range(size)]
            position += size
            await pusher.push([writer.delivery([key], round(due * 1e6)) for key in chosen])
        await nodes.settle()
        return pusher.behind


# ---------------------------------------------------------------- the command


def show(figures: Figures) -> str:
    """Returns the tables."""
    rows = [
        (
            one.name,
            f"{one.frames:,}",
            f"{one.micros:.1f}",
            f"{one.a_second:,.0f}",
            f"{one.bare_micros:.1f}" if one.bare_micros else "",
            f"{one.seconds:.2f}" if one.seconds else "",
            one.refused,
        )
        for one in figures.pushes
    ]
    columns: tuple[str, ...] = ("push", "frames", "CPU µs each", "a core and second", "bare loop µs", "last after s")
    tables = [table((*columns, "refused"), rows)] if rows else []
    if figures.topic is not None:
        tables.append(push_topic.show(figures.topic))
    if figures.frozen is not None:
        frozen = figures.frozen
        row = (f"{frozen.share:.0%}", frozen.healthy.p50, frozen.healthy.p99, frozen.beside.p50, frozen.beside.p99)
        columns = ("frozen readers", "p50 ms without", "p99", "p50 beside", "p99", "ratio of p99", "refused as behind")
        tables.append(table(columns, [(*row, f"{frozen.ratio:.2f}", f"{frozen.behind:,}")]))
    return "\n\n".join(tables)


def main() -> None:
    """Runs the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=5_000, help="for the costs")
    parser.add_argument("--rounds", type=int, default=10, help="notifications to each of them; below 50")
    parser.add_argument("--audience", type=int, default=20_000, help="connected recipients of one event")
    parser.add_argument("--shape", choices=("direct", "mesh"), default="direct", help="of the topic's installation")
    parser.add_argument("--nodes", type=int, default=2, help="that they are on")
    parser.add_argument("--frozen", type=float, default=0.05, help="share of the readers")
    parser.add_argument("--rate", type=float, default=2_000.0, help="pushes a second beside frozen readers")
    parser.add_argument("--seconds", type=float, default=5.0, help="of them")
    parser.add_argument("--only", choices=("cost", "audience", "topic", "frozen"))
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    chosen = parser.parse_args()
    pushes: list[Push] = []
    if chosen.only in (None, "cost"):
        pushes += measure_pushes(chosen.sessions, chosen.rounds)
    if chosen.only in (None, "audience"):
        pushes.append(measure_audience(chosen.audience, chosen.nodes))
    topic = None
    if chosen.only in (None, "topic"):
        topic = push_topic.measure(chosen.audience, chosen.nodes, direct=chosen.shape == "direct")
    wanted = chosen.only in (None, "frozen")
    frozen = measure_frozen(1_000, chosen.frozen, chosen.rate, chosen.seconds, 3) if wanted else None
    figures = Figures(pushes=pushes, topic=topic, frozen=frozen)
    print(show(figures))
    print("\n" + "  ".join(f"{key} {value}" for key, value in machine().items()))
    if chosen.json:
        chosen.json.write_bytes(msgspec.json.format(msgspec.json.encode({"machine": machine(), "figures": figures})))


if __name__ == "__main__":
    main()
