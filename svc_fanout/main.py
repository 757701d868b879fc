"""Wires svc_fanout: settings → lanes and positions → peers → a worker per lane → app."""

from __future__ import annotations

import asyncio

from heliograph.access.v1 import access_pb2
from heliograph.fanout.v1 import fanout_service_pb2, fanout_service_pb2_grpc
from heliograph.type.v1 import notification_pb2
from mesh.access import read_access
from mesh.app import App, run
from mesh.channel import Channels
from mesh.errors import Failure
from mesh.lanes import open_reader, position_migrations
from mesh.server import Server
from mesh.sqlite import Writer, file_of
from mesh.telemetry import path_tracer
from svc_fanout.links import DispatchLink
from svc_fanout.metrics import Metrics
from svc_fanout.peers import GrpcPrefs
from svc_fanout.service import FanoutService
from svc_fanout.settings import FanoutSettings
from svc_fanout.worker import LaneWorker

_PRIORITIES = {
    "high": notification_pb2.PRIORITY_HIGH,
    "normal": notification_pb2.PRIORITY_NORMAL,
    "bulk": notification_pb2.PRIORITY_BULK,
}
_LAG_INTERVAL = 5.0


def wire(app: App, settings: FanoutSettings) -> None:
    """Builds the process; nothing runs yet."""
    metrics = Metrics(app.telemetry)
    trace = path_tracer() if settings.trace_log else None
    positions = Writer(file_of(settings.positions_url, settings.data_dir), migrations=position_migrations())
    app.resource("positions", positions.open, positions.close)
    channels = Channels(
        service=settings.service,
        process=settings.process,
        run_dir=settings.run_dir,
        direct=settings.direct,
        trust_domain=settings.trust_domain,
    )
    app.resource("channels", None, channels.close)
    prefs = GrpcPrefs(channels)
    readers = {}
    workers = []
    for lane, priority in _PRIORITIES.items():
        reader = open_reader(
            settings.lanes_url,
            lane,
            data_dir=settings.data_dir,
            run_dir=settings.run_dir,
            clock=app.clock,
            positions=positions,
        )
        link = DispatchLink(
            priority=priority, process=settings.process, channels=channels, clock=app.clock, metrics=metrics
        )
        worker = LaneWorker(
            lane=lane,
            reader=reader,
            prefs=prefs,
            delivery=link,
            clock=app.clock,
            metrics=metrics,
            read_limit=settings.read_limit,
            batches_in_flight=settings.batches_in_flight,
            commit_interval=settings.commit_interval,
            trace=trace,
        )
        readers[lane] = reader
        app.resource(f"lane {lane}", reader.open, reader.close)
        app.supervise(f"dispatch {lane}", link.run)
        app.supervise(f"worker {lane}", worker.run)
        workers.append(worker)

    async def drain() -> None:
        # At once, not one by one: without delivery none of them ends, and each would use up the whole limit.
        async with asyncio.TaskGroup() as group:
            for worker in workers:
                group.create_task(worker.drain())

    app.on_drain("workers", drain)

    async def measure_lag() -> None:
        while True:
            for lane, reader in readers.items():
                try:
                    lag = await reader.lag()
                except Failure as failure:
                    app.log.warning("lag_not_measured", lane=lane, reason=failure.reason, error=failure.message)
                    continue
                metrics.lag[lane].set(lag.record_count)
                metrics.lag_age[lane].set(lag.oldest_age)
            await asyncio.sleep(_LAG_INTERVAL)

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
    server.add(fanout_service_pb2_grpc.add_FanoutServiceServicer_to_server, FanoutService(readers), descriptor)
    app.log.info("store_chosen", lanes_url=settings.lanes_url, positions_url=settings.positions_url)
    app.resource("server", server.start, lambda: server.stop(1.0))
    app.supervise("lag", measure_lag)
    app.on_ready(server.set_serving)


def main() -> None:
    """Runs the process until it is told to stop."""
    run(FanoutSettings.service, FanoutSettings, wire)
