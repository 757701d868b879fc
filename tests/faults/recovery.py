"""How long a fault keeps what is on its way from devices: what was under way while it lasted, and when that came.

Linear in what arrived. It must not judge: the limit is in `invariants`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping

import msgspec

from tests.faults.history import Device
from tests.faults.index import Content, Fault, Index


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """One notification at one device, for the first time."""

    content: Content
    device: Device
    notification_id: str
    at: float


def arrivals(index: Index) -> Iterator[Arrival]:
    """Yields what came to each device, each notification once, in no order."""
    first: dict[tuple[Device, str], float] = {}
    for device, _session, one in index.received:
        key = device, one.notification_id
        first[key] = min(first.get(key, one.at), one.at)
    for (device, notification_id), at in first.items():
        content = index.by_id.get(notification_id)
        if content is not None:
            yield Arrival(content, device, notification_id, at)


def under_way(index: Index) -> Iterator[tuple[Fault, Arrival]]:
    """Yields each fault with what was published before it ended and came only after it had begun."""
    faults = sorted(index.faults.values(), key=lambda fault: fault.begin.at)
    begins = [fault.begin.at for fault in faults]
    longest = max((fault.end - fault.begin.at for fault in faults), default=0.0)
    for arrival in arrivals(index):
        published = arrival.content.first.at
        for number in range(bisect_left(begins, arrival.at) - 1, -1, -1):
            if begins[number] + longest < published:
                break
            if faults[number].end >= published:
                yield faults[number], arrival


def seconds(index: Index) -> Mapping[str, float]:
    """Returns for each fault, by its operation, how long after its begin all that was under way had come."""
    found: dict[str, float] = {}
    for fault, arrival in under_way(index):
        took = arrival.at - fault.begin.at
        found[fault.begin.operation] = max(found.get(fault.begin.operation, took), took)
    return found
