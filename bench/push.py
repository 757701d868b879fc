"""What a push costs: `python -m bench.push`. One notification to one session each, one to all.

The benchmark plays delivery on links of its own, so the CPU of a gateway node is that of pushes alone; it is divided by
the frames that its sessions got. Beside it a bare loop that writes the same frames to as many sockets, in turn.

"topic" and "frozen" are the whole way: an event is published to a topic, and everybody who follows it has a session
(`bench/push_topic.py`); events are published to sessions some of which do not read (`bench/push_frozen.py`).
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

from bench import listeners, peers, push_frozen, push_topic
from bench.crowd import PACE, Crowd, live_order
from bench.installation import Installation
from bench.measures import cpu_seconds, machine, quiet, table
from bench.pushing import LARGEST_BATCH, Pusher, Writer, pushing
from mesh.channel import Channels

_FRAME = 400


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


class Figures(msgspec.Struct, frozen=True):
    """Everything that was measured."""

    pushes: list[Push]
    topic: push_topic.Topic | None
    frozen: push_frozen.Frozen | None


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
    installation: Installation, prefix: str, counts: Sequence[int], *, acks: bool
) -> Iterator[tuple[list[Crowd], list[list[str]]]]:
    """Connects so many sessions to each node; yields their processes and their recipient keys."""
    with contextlib.ExitStack() as stack:
        crowds, keys = [], []
        for index, count in enumerate(counts):
            recipients = [f"{prefix}{index}-{number:05d}" for number in range(count)]
            order = live_order(installation, recipients, node=index, processes=len(counts))
            order = msgspec.structs.replace(order, acks=acks)
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
        tables.append(push_frozen.show(frozen))
    return "\n\n".join(tables)


def main() -> None:
    """Runs the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=5_000, help="for the costs")
    parser.add_argument("--rounds", type=int, default=10, help="notifications to each of them; below 50")
    parser.add_argument("--audience", type=int, default=20_000, help="connected recipients of one event")
    parser.add_argument("--shape", choices=("direct", "mesh"), default="direct", help="of topic and frozen")
    parser.add_argument("--nodes", type=int, default=2, help="that they are on")
    parser.add_argument("--frozen", type=float, default=0.05, help="share of the readers")
    parser.add_argument("--rate", type=float, default=1_000.0, help="notifications a second beside frozen readers")
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
    direct = chosen.shape == "direct"
    frozen = (
        push_frozen.measure(1_000, chosen.frozen, chosen.rate, chosen.seconds, 3, direct=direct) if wanted else None
    )
    figures = Figures(pushes=pushes, topic=topic, frozen=frozen)
    print(show(figures))
    print("\n" + "  ".join(f"{key} {value}" for key, value in machine().items()))
    if chosen.json:
        chosen.json.write_bytes(msgspec.json.format(msgspec.json.encode({"machine": machine(), "figures": figures})))


if __name__ == "__main__":
    main()
