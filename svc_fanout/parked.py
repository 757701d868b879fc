"""Records that were put aside: listed for operators, and tried again.

Path step 4. What is tried again goes to the slice lane of its priority, decided anew where nobody was decided about:
the event lanes have another writer. Must not put anything aside: a record that cannot be delivered this time either is
parked by whoever finds out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

from heliograph.fanout.v1 import fanout_service_pb2 as pb
from mesh.clock import Clock
from mesh.errors import DataLoss, Failure, InvalidArgument, NotFound, Violation
from mesh.lanes import LaneReader, LaneWriter, Parked, Record, offset_of, partition_of
from mesh.telemetry import logger
from mesh.times import set_micros, timestamp_of
from svc_fanout import core, slices
from svc_fanout.core import Event

RECORDS_A_PAGE: Final = 50
LARGEST_PAGE: Final = 500
RECORDS_A_CALL: Final = 50
# More than an operator will ever have; a page is found by counting.
_MOST: Final = 100_000
_MICROS: Final = 1_000_000

# Writes an event's slices durably; see `svc_fanout.planner.Planner.plan_again`.
PlanAgain = Callable[[Event, int], Awaitable[None]]


class Lane(msgspec.Struct, frozen=True):
    """One lane: where it is read, where the slices of its priority go, and how its events become slices.

    Attributes:
        reader: has what was parked.
        slices: the slice lane of the same priority.
        plan_again: plans an event; None for a slice lane.
    """

    reader: LaneReader
    slices: LaneWriter
    plan_again: PlanAgain | None


class ParkedRecords:
    """What was parked of all lanes."""

    def __init__(self, lanes: Mapping[str, Lane], clock: Clock) -> None:
        """Holds on to the lanes.

        Args:
            lanes: by name, in the order in which they are listed.
            clock: names the time of another try.
        """
        self._lanes = lanes
        self._clock = clock
        self._log = logger()

    async def page(self, size: int, token: str) -> tuple[list[pb.ParkedRecord], str]:
        """Returns the next records without their bytes, and the token of the page behind them, empty at the end.

        Raises:
            InvalidArgument: size or token is wrong.
            Unavailable: a lane's notes cannot be read.
        """
        size = page_size_of(size)
        place, skip = read_token(token, len(self._lanes))
        found: list[pb.ParkedRecord] = []
        for number, (name, lane) in enumerate(self._lanes.items()):
            if number < place:
                continue
            records = await lane.reader.parked(skip + size - len(found) + 1)
            taken = records[skip : skip + size - len(found)]
            found += [shown(name, one, whole=False) for one in taken]
            if len(records) > skip + len(taken):
                return found, f"{number}:{skip + len(taken)}"
            skip = 0
        return found, ""

    async def get(self, parked_id: str) -> pb.ParkedRecord:
        """Returns one with its bytes.

        Raises:
            NotFound: there is no such record, or it is gone.
        """
        found = await self._find([parked_id])
        if parked_id not in found:
            raise NotFound(
                f"no parked record {parked_id!r}", reason="DEAD_LETTER_UNKNOWN", metadata={"parked_id": parked_id}
            )
        name, record = found[parked_id]
        return shown(name, record, whole=True)

    async def redrive(self, parked_ids: Sequence[str], *, validate_only: bool) -> list[str]:
        """Tries records again; returns the ids of those that cannot be tried.

        Raises:
            InvalidArgument: there are none or too many.
            Unavailable: lane or prefs does not answer; those that went are gone, the call may be repeated.
        """
        if not 1 <= len(parked_ids) <= RECORDS_A_CALL:
            raise _invalid("parked_ids", f"must be 1 to {RECORDS_A_CALL}")
        found = await self._find(parked_ids)
        refused: list[str] = []
        for parked_id in dict.fromkeys(parked_ids):
            try:
                if parked_id not in found:
                    refused.append(parked_id)
                else:
                    await self._redrive(*found[parked_id], validate_only=validate_only)
            except Failure as failure:
                if failure.retriable:
                    raise
                self._log.warning("not_redrivable", parked_id=parked_id, reason=failure.reason, error=failure.message)
                refused.append(parked_id)
        return refused

    async def _redrive(self, name: str, record: Parked, *, validate_only: bool) -> None:
        if record.left_out:
            raise DataLoss(record.reason, reason="RECORD_UNDECODABLE")
        lane = self._lanes[name]
        now_us = round(self._clock.wall() * _MICROS)
        if lane.plan_again is None:
            one = slices.decode(record.value)
            if validate_only:
                return
            set_micros(one.redrive_time, now_us)
            await lane.slices.append([Record(record.key, one.SerializeToString())])
        else:
            event = core.decode(record.position, record.value)
            if validate_only:
                return
            await lane.plan_again(event, now_us)
        # A crash before this leaves it in the list: tried once more, it changes nothing.
        await lane.reader.unpark(record)
        self._log.info("record_redriven", lane=name, position=record.position)

    async def _find(self, parked_ids: Sequence[str]) -> dict[str, tuple[str, Parked]]:
        found: dict[str, tuple[str, Parked]] = {}
        for name in dict.fromkeys(one.partition("/")[0] for one in parked_ids):
            if name in self._lanes:
                for record in await self._lanes[name].reader.parked(_MOST):
                    found[id_of(name, record)] = (name, record)
        return found


def id_of(lane: str, record: Parked) -> str:
    """Returns the id of a record: a lane that was made anew uses positions again, but not times."""
    return f"{lane}/{record.position}/{round(record.park_time * _MICROS)}"


def shown(lane: str, record: Parked, *, whole: bool) -> pb.ParkedRecord:
    """Returns what an operator is shown, with the bytes or without."""
    return pb.ParkedRecord(
        parked_id=id_of(lane, record),
        lane=lane,
        partition=partition_of(record.position),
        offset=offset_of(record.position),
        reason=record.reason,
        park_time=timestamp_of(round(record.park_time * _MICROS)),
        size=record.left_out or len(record.value),
        key=record.key if whole else b"",
        value=record.value if whole else b"",
    )


def page_size_of(asked: int) -> int:
    """Returns how many records a page has.

    Raises:
        InvalidArgument: it is negative.
    """
    if asked < 0:
        raise _invalid("page_size", "must not be negative")
    return min(asked or RECORDS_A_PAGE, LARGEST_PAGE)


def read_token(token: str, lanes: int) -> tuple[int, int]:
    """Returns the number of the lane where a page begins, and how many of its records come before.

    Raises:
        InvalidArgument: it is not a token of ours.
    """
    if not token:
        return 0, 0
    place, _, skip = token.partition(":")
    if not (place.isdecimal() and skip.isdecimal()) or len(token) > 20 or int(place) >= lanes:
        raise _invalid("page_token", "must be the token of the page before")
    return int(place), min(int(skip), _MOST)


def _invalid(field: str, rule: str) -> InvalidArgument:
    return InvalidArgument(f"{field}: {rule}", reason="FIELD_INVALID", violations=[Violation(field, rule)])
