"""One event to a topic whose subscribers are all connected: when the last of them has it. The whole way is real.

Ingest takes the event, fanout reads the topic and plans it, delivery writes a row for each subscriber and offers it,
the nodes push it, and every session acks. Subscriptions are there before (`bench/topics.py`).
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from bench import publishers, topics
from bench.crowd import Crowd, live_order
from bench.e2e import Load, output, publisher_order, start
from bench.installation import Installation
from bench.measures import Spread, cpu_seconds, quiet, spread, table

_TOPIC = "everybody"
_EVENTS = 3
_ARRIVAL_LIMIT = 60.0


class Event(msgspec.Struct, frozen=True):
    """One event: how many had it, how long after its intended time each of them, and CPU of all processes, µs each."""

    reached: int
    receipt: Spread
    micros: float

    @property
    def last_s(self) -> float:
        """Seconds from the intended time of the publish to the last receipt."""
        return self.receipt.largest / 1_000


class Topic(msgspec.Struct, frozen=True):
    """Several events one after the other; the first one finds nothing remembered."""

    direct: bool
    subscribers: int
    nodes: int
    events: list[Event]

    @property
    def slowest_s(self) -> float:
        """Seconds of the slowest event; infinity where one did not reach everybody."""
        if any(one.reached < self.subscribers for one in self.events):
            return float("inf")
        return max(one.last_s for one in self.events)


def measure(subscribers: int, nodes: int, *, direct: bool = True) -> Topic:
    """Publishes events to a topic, each when all is quiet after the one before.

    Args:
        subscribers: of the topic, each with a session.
        nodes: gateway nodes that the sessions are on.
        direct: without sidecars and edge.
    """
    members = [f"s{index % nodes}-{index // nodes:05d}" for index in range(subscribers)]
    with Installation(direct=direct, gateways=nodes) as installation, contextlib.ExitStack() as stack:
        topics.subscribe(installation, {_TOPIC: members})
        crowds = []
        for index in range(nodes):
            order = live_order(installation, members[index::nodes], node=index, processes=nodes)
            crowds.append(stack.enter_context(Crowd(msgspec.structs.replace(order, by_category=True))))
        for crowd in crowds:
            crowd.wait()
        micros = [_publish(installation, crowds, members, number + 1) for number in range(_EVENTS)]
        receipts = [pairs for crowd in crowds for pairs in crowd.end().by_category.values()]
    return Topic(direct, subscribers, nodes, events_of(receipts, micros))


def _publish(installation: Installation, crowds: Sequence[Crowd], members: Sequence[str], number: int) -> float:
    """Publishes one event; returns CPU µs a notification once everybody had it and all is quiet."""
    pids = installation.pids()
    quiet(pids)
    before = sum(cpu_seconds(pids).values())
    load = Load("topic", rate=float(len(members)), audience=len(members))
    order = msgspec.structs.replace(publisher_order(installation, [], load, 1.0), topics=[_TOPIC])
    sent = msgspec.json.decode(output(start("bench.publishers", order)), type=publishers.Result)
    if sent.refused:
        raise RuntimeError(f"the event was refused: {sent.errors}")
    end = time.monotonic() + _ARRIVAL_LIMIT
    while sum(crowd.report().received for crowd in crowds) < number * len(members) and time.monotonic() < end:
        time.sleep(0.2)
    quiet(pids)
    return (sum(cpu_seconds(pids).values()) - before) / len(members) * 1e6


def events_of(receipts: Iterable[Sequence[int]], micros: Sequence[float]) -> list[Event]:
    """Returns what each event gave, in the order of their publishes.

    Args:
        receipts: intended time and latency in turn, µs, of each process of sessions.
        micros: CPU of each event.
    """
    found: dict[int, list[int]] = defaultdict(list)
    for pairs in receipts:
        for intended, latency in zip(pairs[::2], pairs[1::2], strict=True):
            found[intended].append(latency)
    # An event that reached nobody has left nothing here.
    events = [latencies for _, latencies in sorted(found.items())]
    events += [[] for _ in range(len(micros) - len(events))]
    return [Event(len(one), spread(one), round(each, 1)) for one, each in zip(events, micros, strict=True)]


def show(topic: Topic) -> str:
    """Returns the table."""
    shape = "direct" if topic.direct else "mesh"
    rows = [
        (
            f"number {number}",
            f"{one.reached:,} of {topic.subscribers:,}",
            f"{one.receipt.p50 / 1_000:.2f}",
            f"{one.last_s:.2f}",
            f"{one.micros:.0f}",
        )
        for number, one in enumerate(topic.events, 1)
    ]
    return table((f"event to a topic, {shape}", "reached", "half of them s", "the last s", "CPU µs each"), rows)
