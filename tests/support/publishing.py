"""Requests to ingest, and an ingest without a process: real embedded stores, a manual clock, seeded ids."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from google.protobuf.timestamp_pb2 import Timestamp

from heliograph.ingest.v1 import event_record_pb2, ingest_service_pb2
from heliograph.type.v1 import event_pb2, notification_pb2
from mesh import ids
from mesh.clock import ManualClock
from mesh.context import CallContext, Caller, serving
from mesh.lanes import LaneWriter, Stored, open_reader, open_writer, position_migrations
from mesh.sqlite import Reader, Writer
from mesh.telemetry import Telemetry
from svc_ingest.gate import Gate
from svc_ingest.metrics import Metrics
from svc_ingest.overload import Limits
from svc_ingest.ports import RequestLog
from svc_ingest.quota import Quotas
from svc_ingest.registry import PRIORITIES, Grant, Registries
from svc_ingest.service import IngestServicer

NOW = 1_700_000_000
NOW_NS = NOW * 1_000_000_000
ALL = frozenset(PRIORITIES.values())
DEFAULTS = {
    "general": notification_pb2.PRIORITY_NORMAL,
    "security": notification_pb2.PRIORITY_HIGH,
    "newsletter": notification_pb2.PRIORITY_BULK,
}
REGISTRIES = Registries(
    DEFAULTS,
    {
        ("acme", "demo"): Grant(frozenset(DEFAULTS), ALL),
        ("acme", "billing"): Grant(frozenset({"general"}), frozenset({notification_pb2.PRIORITY_NORMAL})),
        ("globex", "demo"): Grant(frozenset(DEFAULTS), ALL),
    },
)


def request_id(number: int = 1, time_s: float = NOW) -> str:
    """A UUIDv7 of this time."""
    return ids.to_text(ids.uuid7(int(time_s * 1_000), number.to_bytes(10, "big")))


def random_id(number: int = 1) -> str:
    """A UUIDv4: an id without a time."""
    return f"00000000-0000-4000-8000-{number:012x}"


def publish_request(
    title: str = "Deployed",
    *,
    to: Sequence[str] = ("alice",),
    topics: Sequence[str] = (),
    excluded: Sequence[str] = (),
    category: str = "general",
    id_: str = "",
    body: str = "",
    link: str = "",
    data_json: str = "",
    priority: notification_pb2.Priority.ValueType = notification_pb2.PRIORITY_UNSPECIFIED,
    ordering_key: str = "",
    event_time: float | None = None,
    validate_only: bool = False,
) -> ingest_service_pb2.PublishRequest:
    """A request that is right, except for what the arguments make wrong."""
    request = ingest_service_pb2.PublishRequest(
        event=event_pb2.Event(
            category=category,
            audience=event_pb2.Audience(recipient_ids=to, topic_ids=topics, excluded_recipient_ids=excluded),
            content=notification_pb2.Content(title=title, body=body, link=link, data_json=data_json),
            priority=priority,
            ordering_key=ordering_key,
        ),
        request_id=id_,
        validate_only=validate_only,
    )
    if event_time is not None:
        request.event.event_time.CopyFrom(timestamp(event_time))
    return request


def timestamp(time_s: float) -> Timestamp:
    """A time in seconds as a message."""
    return Timestamp(seconds=int(time_s // 1), nanos=round(time_s % 1 * 1_000_000_000))


def batch(*requests: ingest_service_pb2.PublishRequest) -> ingest_service_pb2.BatchPublishRequest:
    """Several requests in one."""
    return ingest_service_pb2.BatchPublishRequest(requests=requests)


class Ingest:
    """The servicer with its stores; calls are made as a producer."""

    def __init__(
        self,
        *,
        log: RequestLog,
        lanes: dict[str, LaneWriter],
        clock: ManualClock,
        folder: Path,
        quotas: Quotas | None = None,
        limits: Limits | None = None,
        draw: Callable[[int], bytes] | None = None,
    ) -> None:
        self.clock = clock
        self.telemetry = Telemetry("ingest")
        self.metrics = Metrics(self.telemetry)
        self.gate = Gate(
            limits=limits or Limits(),
            default_priorities=DEFAULTS,
            clock=clock,
            metrics=self.metrics,
            random=random.Random(2).random,
        )
        # As where the process ends: what is spawned is cancelled before its first step.
        self.gives_up = False
        self._folder = folder
        self._tasks: set[asyncio.Task[None]] = set()
        self.servicer = IngestServicer(
            log=log,
            lanes=lanes,
            registries=Registries(REGISTRIES.default_priorities, REGISTRIES.grants, quotas or Quotas()),
            gate=self.gate,
            clock=clock,
            metrics=self.metrics,
            draw=draw or random.Random(1).randbytes,
            spawn=self._spawn,
            trace=True,
        )

    async def publish(
        self,
        request: ingest_service_pb2.PublishRequest,
        producer: str = "demo",
        tenant: str = "acme",
        timeout: float | None = None,
    ) -> ingest_service_pb2.PublishResponse:
        """Calls Publish, with so many seconds of the manual clock."""
        with serving(self._call(producer, tenant, timeout)):
            # The servicer does not look at gRPC's context.
            return await self.servicer.Publish(request, cast(Any, None))

    async def batch(
        self, *requests: ingest_service_pb2.PublishRequest, producer: str = "demo"
    ) -> Sequence[ingest_service_pb2.PublishResult]:
        """Calls BatchPublish."""
        with serving(self._call(producer, "acme", None)):
            return (await self.servicer.BatchPublish(batch(*requests), cast(Any, None))).results

    async def lane(self, name: str = "normal") -> list[event_record_pb2.EventRecord]:
        """Returns every record of a lane, decoded."""
        return [event_record_pb2.EventRecord.FromString(stored.value) for stored in await self.stored(name)]

    async def stored(self, name: str = "normal") -> list[Stored]:
        """Returns every record of a lane."""
        return await read_lane(self._folder, name)

    def metric(self, name: str, **labels: str) -> float:
        """Returns a metric's value, 0 when it was never counted."""
        return self.telemetry.registry.get_sample_value(f"heliograph_ingest_{name}", labels) or 0.0

    async def settle(self) -> None:
        """Waits for what outlasted its call."""
        await asyncio.gather(*self._tasks)

    def _call(self, producer: str, tenant: str, timeout: float | None) -> CallContext:
        monotonic = self.clock.monotonic
        deadline = None if timeout is None else monotonic() + timeout
        return CallContext(
            Caller("producer", producer, tenant), deadline, "00-trace", "/heliograph.ingest.v1/Test", monotonic
        )

    def _spawn(self, coroutine: Coroutine[Any, Any, object]) -> asyncio.Task[None]:
        async def run() -> None:
            await coroutine

        task = asyncio.get_running_loop().create_task(run())
        task.add_done_callback(lambda _: coroutine.close())
        if self.gives_up:
            task.cancel()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def read_lane(folder: Path, name: str) -> list[Stored]:
    """Returns every record of an embedded lane below this data folder, from the start."""
    positions = Writer(folder / f"test-{name}.db", migrations=position_migrations())
    await positions.open()
    reader = open_reader(
        "sqlite:///lanes", name, data_dir=folder, run_dir=folder, clock=ManualClock(), positions=positions
    )
    await reader.open()
    try:
        found: list[Stored] = []
        while page := await reader.read(1_000, 0):
            found += page
        return found
    finally:
        await reader.close()
        await positions.close()


@asynccontextmanager
async def open_lanes(folder: Path, clock: ManualClock) -> AsyncIterator[dict[str, LaneWriter]]:
    """The three event lanes, embedded; their reader's positions are expected in positions.db."""
    positions = Reader(folder / "positions.db")
    await positions.open()
    lanes = {
        name: open_writer("sqlite:///lanes", name, data_dir=folder, run_dir=folder, clock=clock, positions=positions)
        for name in PRIORITIES
    }
    for lane in lanes.values():
        await lane.open()
    try:
        yield lanes
    finally:
        for lane in lanes.values():
            await lane.close()
        await positions.close()
