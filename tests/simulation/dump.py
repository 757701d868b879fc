"""What stands in the stores at one moment: how far lanes are committed, and the first record that is not finished.

A record is finished when everybody it is for has a row, a decision, a slice that is still to be sent or a row that is
to be written later, or when it was put aside. It reads the files and replicas themselves, since whoever could be asked
may just have died. It must not judge.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from heliograph.delivery.v1 import lane_record_pb2
from heliograph.type.v1 import envelope_pb2
from mesh.errors import DataLoss
from mesh.ids import from_text, split_key
from mesh.times import micros_of
from svc_delivery.retry_lanes import LANES
from svc_fanout import core, slices
from tests.simulation.replicas import Ring

_ALLOWANCE_US = 1_000_000
_EVENT_LANES = ("high", "normal", "bulk")

# Tenant, recipient, id of the notification.
Delivery = tuple[str, str, bytes]


class Mark(msgspec.Struct, frozen=True):
    """One lane.

    Attributes:
        lane: its name.
        committed: the reader's position.
        first_unfinished: the first record whose effects are not durable; None: there is none.
        lag: records behind the position.
    """

    lane: str
    committed: int
    first_unfinished: int | None
    lag: int


class Dump:
    """Reads the stores of one run.

    Args:
        data: folder of the files.
        ring: where the inboxes are; None: in a file.
        subscribers: whom a topic leads to.
        now_us: the true time.
    """

    def __init__(
        self, data: Path, ring: Ring | None, subscribers: Mapping[str, Sequence[str]], now_us: Callable[[], int]
    ) -> None:
        self._data = data
        self._ring = ring
        self._subscribers = subscribers
        self._now_us = now_us

    def marks(self) -> Iterator[Mark]:
        """Yields how far each lane of events or slices is."""
        committed, parked = self._positions()
        there = (self._in_file() if self._ring is None else _on_replicas(self._ring)) | self._written_later()
        for lane in _EVENT_LANES:
            name = f"slices-{lane}"
            sliced = {position: self._of_slice(value) for position, value in _records(self._data, name)}
            planned = there.union(*sliced.values())
            events = {position: self._of_event(position, value) for position, value in _records(self._data, lane)}
            yield _mark(lane, events, planned, committed.get(lane, 0), parked.get(lane, set()))
            yield _mark(name, sliced, there, committed.get(name, 0), parked.get(name, set()))

    def _positions(self) -> tuple[dict[str, int], dict[str, set[int]]]:
        with _reading(self._data / "positions.db") as file:
            committed = dict(file.execute("select lane, position from positions").fetchall())
            parked: dict[str, set[int]] = {}
            for lane, position in file.execute("select lane, position from parked"):
                parked.setdefault(lane, set()).add(position)
        return committed, parked

    def _in_file(self) -> set[Delivery]:
        with _reading(self._data / "inbox.db") as file:
            rows = file.execute("select recipient, id from inbox where revision > 0").fetchall()
            decided = file.execute("select tenant, event_id, recipients from decisions").fetchall()
            rows += file.execute("select recipient, notification_id from dead_letters where recipient > ''").fetchall()
        found = {_delivery(split_key(key), id_) for key, id_ in rows}
        return found | {(tenant, name, id_) for tenant, id_, names in decided for name in names.split("\n")}

    def _written_later(self) -> set[Delivery]:
        if self._ring is None:
            with _reading(self._data / "inbox.db") as file:
                values = [value for (value,) in file.execute("select record from follow_ups")]
        else:
            values = [value for lane in LANES for _, value in _records(self._data, lane.name, "retry")]
        rows = [lane_record_pb2.LaneRecord.FromString(value).row for value in values]
        return set().union(*(self._wanted(row.envelope, set(row.recipient_ids)) for row in rows))

    def _of_event(self, position: int, value: bytes) -> set[Delivery]:
        """Returns whom a record is for; one that nobody can read is for somebody who has nothing."""
        try:
            event = core.decode(position, value)
        except DataLoss:
            return {("", "", b"")}
        names = {*event.recipient_ids, *(one for topic in event.topic_ids for one in self._subscribers[topic])}
        return self._wanted(event.envelope, names)

    def _of_slice(self, value: bytes) -> set[Delivery]:
        record = slices.decode(value)
        return self._wanted(record.envelope, {name for group in record.groups for name in group.recipient_ids})

    def _wanted(self, envelope: envelope_pb2.Envelope, names: set[str]) -> set[Delivery]:
        # Rows go when their time is over, by clocks that may differ.
        if envelope.HasField("expire_time") and micros_of(envelope.expire_time) < self._now_us() + _ALLOWANCE_US:
            return set()
        return {(envelope.tenant_id, name, from_text(envelope.notification_id)) for name in names}


def _mark(
    lane: str, records: Mapping[int, set[Delivery]], durable: set[Delivery], committed: int, parked: set[int]
) -> Mark:
    """Of records of the same delivery one is enough, which is put aside or finished on its own.

    What was put aside and is sent again comes as a later one, and of two copies of a slice the second is passed over.
    """
    first, done = None, durable.union(*(records.get(place, set()) for place in parked))
    for place, wanted in sorted(records.items(), reverse=True):
        if place not in parked and not wanted <= done:
            first = place
        done |= wanted
    return Mark(lane, committed, first, sum(place > committed for place in records))


def _delivery(owner: tuple[str, ...], id_: bytes) -> Delivery:
    tenant, recipient = owner
    return tenant, recipient, id_


def _on_replicas(ring: Ring) -> set[Delivery]:
    """Returns what at least one replica has: what counts is on two of them, and one of those may forget."""
    found: set[Delivery] = set()
    for (tenant, recipient), (_, id_), cells in ring.held("inbox"):
        if cells.get("revision") is not None:
            found.add((tenant, recipient, id_))
    for _, _, cells in ring.held("dead_by_id"):
        # What was taken over by an earlier one of the same letter has no cells.
        if cells.get("recipient"):
            found.add(_delivery(split_key(cells["recipient"]), cells["notification_id"]))
    for (tenant, event_id), _, cells in ring.held("decisions"):
        found.update((tenant, name, event_id) for name in cells["recipients"].split("\n"))
    return found


def _records(data: Path, lane: str, folder: str = "lanes") -> list[tuple[int, bytes]]:
    with _reading(data / folder / f"{lane}.db") as file:
        return file.execute("select position, value from records order by position").fetchall()


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        yield connection
