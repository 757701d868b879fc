"""Fan-out of one priority without a process: real lanes, in-process prefs and delivery, and a crash at any time.

Must not assert anything.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path

from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

from heliograph.fanout.v1 import slice_record_pb2
from heliograph.type.v1 import notification_pb2, plan_pb2
from mesh.clock import ManualClock
from mesh.lanes import LaneReader, LaneUnavailable, LaneWriter, Parked, Record, Stored, open_reader, open_writer
from mesh.lanes import position_migrations as migrations
from mesh.sqlite import Writer
from mesh.telemetry import Telemetry
from svc_fanout.caution import Caution
from svc_fanout.flight import Flight
from svc_fanout.metrics import Metrics
from svc_fanout.parked import Lane, ParkedRecords
from svc_fanout.planner import Planner
from svc_fanout.ports import Prefs
from svc_fanout.registry import Category
from svc_fanout.wishes import Wishes
from svc_fanout.worker import LaneWorker
from svc_fanout.worker_slices import READ_LIMIT, SliceWorker
from tests.support.dispatching import InProcessDelivery, InProcessPrefs, make_envelope, make_record
from tests.support.wait import until

LANE = "normal"
PRIORITIES = {
    "high": notification_pb2.PRIORITY_HIGH,
    "normal": notification_pb2.PRIORITY_NORMAL,
    "bulk": notification_pb2.PRIORITY_BULK,
}
URL = "sqlite:///lanes"
# In which a record that kills has killed.
MOMENT_S = 0.02
CATEGORIES = {
    "general": Category(),
    "mention": Category(),
    "security": Category(essential=True),
}


class UnsteadyLane:
    """A lane's end whose store refuses some calls, for as long as it is told to.

    Attributes:
        refuses: names of the calls.
        unknown: whether what is refused is done all the same.
        refused: how many were.
    """

    def __init__(self, reader: LaneReader, writer: LaneWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.refuses: set[str] = set()
        self.unknown = False
        self.refused = 0
        self.open, self.close = reader.open, reader.close
        self.lag, self.parked, self.notes = reader.lag, reader.parked, reader.notes
        self.containing, self.on_leave = reader.containing, reader.on_leave
        self.begin_life, self.end_life = reader.begin_life, reader.end_life
        self.trim, self.backlog = writer.trim, writer.backlog

    @property
    def partitions(self) -> frozenset[int]:
        """See the port."""
        return self.reader.partitions

    async def read(self, limit: int, wait: float) -> Sequence[Stored]:
        """See the port."""
        self._check("read")
        return await self.reader.read(limit, wait)

    async def commit(self, position: int) -> None:
        """See the port."""
        self._check("commit")
        await self.reader.commit(position)

    async def restart(self) -> None:
        """See the port."""
        self._check("restart")
        await self.reader.restart()

    async def park(self, record: Stored, reason: str) -> None:
        """See the port."""
        self._check("park")
        await self.reader.park(record, reason)

    async def unpark(self, record: Parked) -> None:
        """See the port."""
        self._check("unpark")
        await self.reader.unpark(record)

    async def note(self, position: int, note: bytes) -> None:
        """See the port."""
        self._check("note")
        await self.reader.note(position, note)

    async def append(self, records: Sequence[Record]) -> None:
        """See the port."""
        if self.unknown:
            await self.writer.append(records)
        self._check("append")
        if not self.unknown:
            await self.writer.append(records)

    def _check(self, call: str) -> None:
        if call in self.refuses:
            self.refused += 1
            raise LaneUnavailable(f"{call} is refused", unknown=self.unknown)


class Fanout:
    """The lanes of one priority, and what one process after the other does with them.

    Attributes:
        prefs: what decides, unless `ask` is set.
        delivery: what takes batches; each process has its own link, all are this one.
        lane: the event lane as the process sees it; `slice_lane` the other one.
        steps: what was traced.
        append_times: what was told of answered batches, of both lanes.
        parked: what was put aside, for operators.
        options: settings of the next process.
    """

    def __init__(self, folder: Path, run_dir: Path, name: str = LANE) -> None:
        self.clock = ManualClock()
        self.prefs = InProcessPrefs()
        self.ask: Prefs | None = None
        self.delivery = InProcessDelivery()
        self.steps: list[tuple[str, object]] = []
        self.options: dict[str, int] = {}
        self.append_times: list[float] = []
        self._folder = folder
        self._run_dir = run_dir
        self._name, self._slices_name = name, f"slices-{name}"
        self._publisher = self._writer(name)
        self._open = contextlib.AsyncExitStack()
        self.lane: UnsteadyLane
        self.slice_lane: UnsteadyLane
        self.worker: LaneWorker
        self.slice_worker: SliceWorker
        self.wishes: Wishes
        self.parked: ParkedRecords
        self.telemetry: Telemetry

    async def open(self) -> None:
        """Opens the lanes and makes the first process, which is not running yet."""
        await self._publisher.open()
        await self.start_anew()

    async def close(self) -> None:
        """Closes everything."""
        await self._open.aclose()
        await self._publisher.close()

    async def start_anew(self, **options: int) -> None:
        """Makes a new process: everything that was in memory is gone."""
        await self._open.aclose()
        self.options |= options
        positions = Writer(self._folder / "positions.db", migrations=migrations(), lock_wait=0.0)
        await positions.open()
        self._open.push_async_callback(positions.close)
        writer = self._writer(self._slices_name)
        await writer.open()
        self._open.push_async_callback(writer.close)
        self.lane = UnsteadyLane(await self._reader(self._name, positions), self._publisher)
        self.slice_lane = UnsteadyLane(await self._reader(self._slices_name, positions), writer)
        self._make()

    def _make(self) -> None:
        self.telemetry = Telemetry("fanout")
        metrics = Metrics(self.telemetry)
        prefs = self.ask or self.prefs
        options = self.options
        self.wishes = Wishes(prefs=prefs, clock=self.clock, metrics=metrics, poll_interval=0.002)
        turn = asyncio.Lock()
        flight = self._flight(self._name, self.lane, metrics, options.get("batches_in_flight", 8))
        planner = Planner(
            flight=flight,
            writer=self.slice_lane,
            prefs=prefs,
            wishes=self.wishes,
            categories=CATEGORIES,
            clock=self.clock,
            metrics=metrics,
            slice_size=options.get("slice_size", 2_000),
            trace=self._trace,
        )
        self.worker = LaneWorker(
            flight=flight,
            planner=planner,
            prefs=prefs,
            wishes=self.wishes,
            categories=CATEGORIES,
            clock=self.clock,
            metrics=metrics,
            caution=Caution(flight, turn=turn, page=options.get("read_limit", 500), moment=MOMENT_S),
            held_limit=options.get("held_limit", 1_000),
            large_audience=options.get("large_audience", 10_000),
            page_size=options.get("slice_size", 2_000),
            trace=self._trace,
        )
        lanes = {
            self._name: Lane(self.lane, self.slice_lane, planner.plan_again),
            self._slices_name: Lane(self.slice_lane, self.slice_lane, None),
        }
        self.parked = ParkedRecords(lanes, self.clock)
        slice_flight = self._flight(self._slices_name, self.slice_lane, metrics, options.get("slices_in_flight", 2))
        self.slice_worker = SliceWorker(
            flight=slice_flight,
            writer=self.slice_lane,
            clock=self.clock,
            caution=Caution(slice_flight, turn=turn, page=READ_LIMIT, moment=MOMENT_S),
        )

    async def run(self) -> None:
        """Runs the process until it is drained; its polls go on beside it."""
        polling = asyncio.create_task(self.wishes.run())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.worker.run())
                group.create_task(self.slice_worker.run())
        finally:
            polling.cancel()

    async def drain(self) -> None:
        """Drains both workers."""
        await asyncio.gather(self.worker.drain(), self.slice_worker.drain())

    # ------------------------------------------------------------ what goes in

    async def append(self, *numbers: int, recipient_ids: Sequence[str] = ("alice",), category: str = "general") -> None:
        """Events for named recipients, in order."""
        await self.append_records(
            make_record(make_envelope(number, category=category), recipient_ids) for number in numbers
        )

    async def append_topic(
        self,
        number: int,
        *topic_ids: str,
        recipient_ids: Sequence[str] = (),
        excluded: Sequence[str] = (),
        category: str = "general",
        expire_us: int | None = None,
    ) -> None:
        """An event for topics."""
        envelope = make_envelope(number, category=category, expire_us=expire_us)
        envelope.priority = PRIORITIES[self._name]
        await self.append_records([make_record(envelope, recipient_ids, topic_ids=topic_ids, excluded=excluded)])

    async def append_records(self, records: Iterable[Record]) -> None:
        """Any records."""
        await self._publisher.append(list(records))

    async def remake_lane(self) -> None:
        """Removes the event lane's file; what is appended afterwards is in another lane of the same name."""
        await self._open.aclose()
        await self._publisher.close()
        for suffix in ("", "-wal", "-shm"):
            (self._folder / "lanes" / f"{self._name}.db{suffix}").unlink(missing_ok=True)
        self._publisher = self._writer(self._name)
        await self._publisher.open()
        await self.start_anew()

    # ------------------------------------------------------------ what came of it

    async def committed(self, records_left: int = 0, *, slices_left: int = 0) -> None:
        """Waits until so many records of each lane are not committed."""

        async def is_there() -> bool:
            lags = [await lane.reader.lag() for lane in (self.lane, self.slice_lane)]
            return [lag.record_count for lag in lags] == [records_left, slices_left]

        await until(is_there, 15.0, f"{records_left} records and {slices_left} slices left")

    async def dispatched(self, count: int) -> None:
        """Waits until so many batches were sent."""
        await until(lambda: len(self.delivery.batches) == count, what=f"{count} batches")

    def count(self, name: str, **labels: str) -> float:
        """A metric of the newest process."""
        return self.telemetry.registry.get_sample_value(f"heliograph_fanout_{name}", labels) or 0.0

    def sent(self) -> list[str]:
        """Every event that was dispatched, in order."""
        return [event_id for index in range(len(self.delivery.batches)) for event_id in self.delivery.event_ids(index)]

    def outcomes(self, event_id: str) -> Counter[tuple[str, int]]:
        """How often each recipient of an event was dispatched, by the reason why not (0: it was delivered)."""
        found: Counter[tuple[str, int]] = Counter()
        for batch in self.delivery.batches:
            for dispatch in batch.dispatches:
                if dispatch.envelope.event_id == event_id:
                    for group in dispatch.groups:
                        reason = _reason(batch.plans, group.plan_index)
                        found.update((recipient_id, reason) for recipient_id in group.recipient_ids)
        return found

    async def slices(self) -> list[slice_record_pb2.SliceRecord]:
        """Every slice in the slice lane, done or not; only while no process runs."""
        positions = Writer(self._folder / "look.db", migrations=migrations())
        await positions.open()
        await self._open.aclose()
        try:
            reader = await self._reader(self._slices_name, positions)
            found = await reader.read(10_000, 0.0)
        finally:
            await self._open.aclose()
            await positions.close()
        return [slice_record_pb2.SliceRecord.FromString(one.value) for one in found]

    # ------------------------------------------------------------ parts

    def _writer(self, name: str) -> LaneWriter:
        return open_writer(URL, name, data_dir=self._folder, run_dir=self._run_dir, clock=self.clock, lock_wait=0.0)

    async def _reader(self, name: str, positions: Writer) -> LaneReader:
        reader = open_reader(
            URL,
            name,
            data_dir=self._folder,
            run_dir=self._run_dir,
            clock=self.clock,
            positions=positions,
            lock_wait=0.0,
        )
        await reader.open()
        self._open.push_async_callback(reader.close)
        return reader

    def _flight(self, lane: str, reader: LaneReader, metrics: Metrics, batches_in_flight: int) -> Flight:
        return Flight(
            lane=lane,
            reader=reader,
            delivery=self.delivery,
            clock=self.clock,
            metrics=metrics,
            batches_in_flight=batches_in_flight,
            commit_interval=0.001,
            trace=self._trace if lane == self._name else None,
            read_wait=0.02,
            first_retry=0.002,
            largest_span=self.options.get("largest_span", 1_000),
            restart_lost=bool(self.options.get("restart_lost", False)),
            largest_piece=(lambda: self.options["largest_piece"]) if "largest_piece" in self.options else None,
            answered=self.append_times.append,
        )

    @property
    def _trace(self) -> Callable[..., None]:
        return lambda step, **fields: self.steps.append((step, fields["event_id"]))


def _reason(plans: RepeatedCompositeFieldContainer[plan_pb2.Plan], index: int) -> int:
    return plans[index].suppress_reason


@contextlib.asynccontextmanager
async def fanning(folder: Path, run_dir: Path, name: str = LANE) -> AsyncIterator[Fanout]:
    """An empty lane of this name and a process that is not running yet."""
    fanout = Fanout(folder, run_dir, name)
    try:
        await fanout.open()
        yield fanout
    finally:
        await fanout.close()
