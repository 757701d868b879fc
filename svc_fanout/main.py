"""Wires svc_fanout: settings → registry, lanes and positions → peers → workers per priority → app."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from heliograph.access.v1 import access_pb2
from heliograph.fanout.v1 import fanout_service_pb2, fanout_service_pb2_grpc
from heliograph.type.v1 import notification_pb2
from mesh.access import read_access
from mesh.app import App, StartError, run
from mesh.channel import Channels
from mesh.errors import Failure
from mesh.lanes import (
    LaneReader,
    LaneWriter,
    is_embedded,
    lane_stores,
    open_reader,
    open_writer,
    position_migrations,
)
from mesh.server import Server
from mesh.sqlite import Writer, file_of
from mesh.stores import StoreAdmin, require_all
from mesh.telemetry import path_tracer
from svc_fanout import registry
from svc_fanout.batching import LARGEST_BATCH_RECIPIENTS
from svc_fanout.caution import Caution
from svc_fanout.flight import Flight, Trace
from svc_fanout.links import DispatchLink
from svc_fanout.metrics import Metrics
from svc_fanout.pacing import PIECE_RECIPIENTS, Pacing
from svc_fanout.parked import Lane, ParkedRecords
from svc_fanout.peers import GrpcPrefs
from svc_fanout.planner import Planner
from svc_fanout.service import FanoutService
from svc_fanout.settings import FanoutSettings
from svc_fanout.wishes import Wishes
from svc_fanout.worker import LaneWorker
from svc_fanout.worker_slices import READ_LIMIT, SliceWorker

_PRIORITIES = {
    "high": notification_pb2.PRIORITY_HIGH,
    "normal": notification_pb2.PRIORITY_NORMAL,
    "bulk": notification_pb2.PRIORITY_BULK,
}
_HIGH_LANES = ("high", "slices-high")
_BULK_LANES = ("bulk", "slices-bulk")
_LAG_INTERVAL = 5.0
_TRIM_INTERVAL = 60.0


def wire(app: App, settings: FanoutSettings) -> None:
    """Builds the process; nothing runs yet."""
    _Wiring(app, settings).wire()


class _Wiring:
    """The parts of one process that others are made of."""

    def __init__(self, app: App, settings: FanoutSettings) -> None:
        self.app = app
        self.settings = settings
        self.categories = _read_registry(settings.categories_file)
        self.metrics = Metrics(app.telemetry)
        self.trace = path_tracer() if settings.trace_log else None
        self.positions: Writer | None = None
        if is_embedded(settings.lanes_url):
            path = file_of(settings.positions_url, settings.data_dir)
            self.positions = Writer(path, migrations=position_migrations())
        self.channels = Channels(
            service=settings.service,
            process=settings.process,
            run_dir=settings.run_dir,
            direct=settings.direct,
            trust_domain=settings.trust_domain,
        )
        self.prefs = GrpcPrefs(self.channels)
        self.wishes = Wishes(
            prefs=self.prefs,
            clock=app.clock,
            metrics=self.metrics,
            most_recipients=settings.remembered_recipients,
            poll_interval=settings.poll_interval,
        )
        self.readers: dict[str, LaneReader] = {}
        self.lanes: dict[str, Lane] = {}
        self.workers: list[LaneWorker | SliceWorker] = []
        self.turn = asyncio.Lock()
        self.pacing = Pacing()

    def wire(self) -> None:
        app, settings = self.app, self.settings
        if self.positions is not None:
            app.resource("positions", self.positions.open, self.positions.close)
        admins = stores(settings)
        app.resource("lanes", lambda: require_all(admins), None)
        app.resource("channels", None, self.channels.close)
        for lane, priority in _PRIORITIES.items():
            self._wire_lane(lane, priority)
        app.dependencies.watch("lanes", settings.lanes_url, next(iter(self.readers.values())))
        app.supervise("wishes", self.wishes.run)
        app.on_drain("workers", self._drain)
        descriptor = fanout_service_pb2.DESCRIPTOR.services_by_name["FanoutService"]
        server = Server(
            name=settings.service,
            socket=settings.run_dir / f"{settings.process}.sock",
            access=read_access([descriptor], access_pb2.callers),
            direct=settings.direct,
            trust_domain=settings.trust_domain,
            tokens=None,
            telemetry=app.telemetry,
            clock=app.clock,
        )
        servicer = FanoutService(self.readers, ParkedRecords(self.lanes, app.clock))
        server.add(fanout_service_pb2_grpc.add_FanoutServiceServicer_to_server, servicer, descriptor)
        app.log.info(
            "store_chosen",
            lanes_url=settings.lanes_url,
            positions_url=settings.positions_url,
            categories=len(self.categories),
        )
        app.resource("server", server.start, lambda: server.stop(1.0))
        app.supervise("lag", self._measure_lag)
        app.on_ready(server.set_serving)
        app.clock_watch.on_change(server.set_clock)
        app.dependencies.on_change(server.set_dependency)

    def _wire_lane(self, lane: str, priority: notification_pb2.Priority.ValueType) -> None:
        app, settings = self.app, self.settings
        link = DispatchLink(
            priority=priority,
            process=settings.process,
            channels=self.channels,
            clock=app.clock,
            metrics=self.metrics,
            pacing=self.pacing if lane in _BULK_LANES else None,
        )
        writer = self._open_slices(f"slices-{lane}")
        flight = self._flight(lane, link, settings.batches_in_flight, self.trace)
        slice_flight = self._flight(f"slices-{lane}", link, settings.slices_in_flight, _only_dispatched(self.trace))
        planner = Planner(
            flight=flight,
            writer=writer,
            prefs=self.prefs,
            wishes=self.wishes,
            categories=self.categories,
            clock=app.clock,
            metrics=self.metrics,
            slice_size=settings.slice_size,
            trace=self.trace,
        )
        self.lanes[lane] = Lane(flight.reader, writer, planner.plan_again)
        self.lanes[f"slices-{lane}"] = Lane(slice_flight.reader, writer, None)
        worker = LaneWorker(
            flight=flight,
            planner=planner,
            prefs=self.prefs,
            wishes=self.wishes,
            categories=self.categories,
            clock=app.clock,
            metrics=self.metrics,
            caution=Caution(flight, turn=self.turn, page=settings.read_limit),
            held_limit=settings.held_limit,
            large_audience=settings.large_audience,
            page_size=settings.slice_size,
            trace=self.trace,
        )
        slice_caution = Caution(slice_flight, turn=self.turn, page=READ_LIMIT)
        slice_worker = SliceWorker(flight=slice_flight, writer=writer, clock=app.clock, caution=slice_caution)

        async def trim() -> None:
            while True:
                await asyncio.sleep(_TRIM_INTERVAL)
                await slice_worker.trim()

        app.supervise(f"dispatch {lane}", link.run)
        app.supervise(f"worker {lane}", worker.run)
        app.supervise(f"slices {lane}", slice_worker.run)
        app.supervise(f"trim {lane}", trim)
        self.workers += [worker, slice_worker]

    def _open_slices(self, name: str) -> LaneWriter:
        settings = self.settings
        writer = open_writer(
            settings.lanes_url, name, data_dir=settings.data_dir, run_dir=settings.run_dir, clock=self.app.clock
        )
        self.app.resource(f"lane {name} to write", writer.open, writer.close)
        return writer

    def _flight(self, lane: str, link: DispatchLink, batches_in_flight: int, trace: Trace | None) -> Flight:
        settings = self.settings
        reader = open_reader(
            settings.lanes_url,
            lane,
            data_dir=settings.data_dir,
            run_dir=settings.run_dir,
            clock=self.app.clock,
            positions=self.positions,
        )
        self.readers[lane] = reader
        self.app.resource(f"lane {lane}", reader.open, reader.close)
        return Flight(
            lane=lane,
            reader=reader,
            delivery=link,
            clock=self.app.clock,
            metrics=self.metrics,
            batches_in_flight=batches_in_flight,
            commit_interval=settings.commit_interval,
            trace=trace,
            largest_piece=self._largest_piece if lane in _BULK_LANES else None,
            answered=self._high_answered if lane in _HIGH_LANES else None,
            restart_lost=settings.lost_positions == "restart",
        )

    def _largest_piece(self) -> int:
        return PIECE_RECIPIENTS if self.pacing.is_beside(self.app.clock.monotonic()) else LARGEST_BATCH_RECIPIENTS

    def _high_answered(self, append_time: float) -> None:
        clock = self.app.clock
        self.pacing.heard(clock.monotonic(), clock.wall() - append_time)
        self.metrics.bulk_share.set(self.pacing.share)

    async def _drain(self) -> None:
        # At once, not one by one: without delivery none of them ends, and each would use up the whole limit.
        async with asyncio.TaskGroup() as group:
            for worker in self.workers:
                group.create_task(worker.drain())

    async def _measure_lag(self) -> None:
        while True:
            for lane, reader in self.readers.items():
                try:
                    lag = await reader.lag()
                except Failure as failure:
                    self.app.log.warning("lag_not_measured", lane=lane, reason=failure.reason, error=failure.message)
                    continue
                self.metrics.lag[lane].set(lag.record_count)
                self.metrics.lag_age[lane].set(lag.oldest_age)
            await asyncio.sleep(_LAG_INTERVAL)


def stores(settings: FanoutSettings) -> Sequence[StoreAdmin]:
    """Returns what looks after the stores that these settings name; embedded ones need nobody."""
    names = [name for lane in _PRIORITIES for name in (lane, f"slices-{lane}")]
    return lane_stores(settings.lanes_url, names, reads=True)


def _only_dispatched(trace: Trace | None) -> Trace | None:
    """Leaves the step that a slice adds to the way of its event: the others were told by the event's lane."""
    if trace is None:
        return None

    def dispatched(step: str, **fields: object) -> None:
        if step == "dispatched":
            trace(step, **fields)

    return dispatched


def _read_registry(path: Path) -> Mapping[str, registry.Category]:
    try:
        return registry.read_categories(path.read_bytes())
    except OSError as error:
        raise StartError(f"{path}: {error.strerror}; name a readable TOML file") from None
    except registry.RegistryError as error:
        raise StartError(f"{path}: {error}; correct it") from None


def main() -> None:
    """Runs the process until it is told to stop."""
    run(FanoutSettings.service, FanoutSettings, wire)
