"""Wires svc_ingest: settings → registries, request log and lanes → servicer → app."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

from heliograph.access.v1 import access_pb2
from heliograph.ingest.v1 import ingest_service_pb2, ingest_service_pb2_grpc
from mesh.access import read_access
from mesh.app import App, StartError, run
from mesh.lanes import is_embedded, lane_stores, open_writer
from mesh.server import Server
from mesh.sqlite import Reader, file_of
from mesh.stores import StoreAdmin, require_all
from mesh.tokens import TokenVerifier
from svc_ingest import registry
from svc_ingest.gate import Gate
from svc_ingest.metrics import Metrics
from svc_ingest.overload import Limits
from svc_ingest.record import LANES
from svc_ingest.service import IngestServicer
from svc_ingest.settings import IngestSettings
from svc_ingest.store import admins, open_store
from svc_ingest.watch import Watch
from svc_ingest.worker import Sweep


def wire(app: App, settings: IngestSettings) -> None:
    """Builds the process; nothing runs yet."""
    registries = read_registries(settings.categories_file, settings.producers_file)
    log = open_store(settings.request_log_url, settings.data_dir)
    embedded = is_embedded(settings.lanes_url)
    positions = Reader(file_of(settings.positions_url, settings.data_dir)) if embedded else None
    lanes = {
        name: open_writer(
            settings.lanes_url,
            name,
            data_dir=settings.data_dir,
            run_dir=settings.run_dir,
            clock=app.clock,
            positions=positions,
        )
        for name in LANES.values()
    }
    metrics = Metrics(app.telemetry)
    gate = Gate(
        limits=limits_of(settings),
        default_priorities=registries.default_priorities,
        clock=app.clock,
        metrics=metrics,
        random=random.random,
    )
    servicer = IngestServicer(
        log=log,
        lanes=lanes,
        registries=registries,
        gate=gate,
        clock=app.clock,
        metrics=metrics,
        draw=os.urandom,
        spawn=app.spawn,
        trace=settings.trace_log,
    )
    descriptor = ingest_service_pb2.DESCRIPTOR.services_by_name["IngestService"]
    server = Server(
        name=settings.service,
        socket=settings.run_dir / f"{settings.process}.sock",
        access=read_access([descriptor], access_pb2.callers),
        direct=settings.direct,
        trust_domain=settings.trust_domain,
        tokens=TokenVerifier(settings.tokens_file, clock=app.clock) if settings.tokens_file else None,
        telemetry=app.telemetry,
        clock=app.clock,
    )
    server.add(ingest_service_pb2_grpc.add_IngestServiceServicer_to_server, servicer, descriptor)
    app.log.info(
        "stores_chosen",
        lanes_url=settings.lanes_url,
        request_log_url=settings.request_log_url,
        positions_url=settings.positions_url,
        categories=len(registries.default_priorities),
        producers=len(registries.grants),
    )
    app.dependencies.watch("request_log", settings.request_log_url, log)
    app.resource("request_log", log.open, log.close)
    if positions is not None:
        app.resource("positions", positions.open, positions.close)
    lane_admins = lane_stores(settings.lanes_url, list(lanes), reads=False)
    app.resource("lanes", lambda: require_all(lane_admins), None)
    app.dependencies.watch("lanes", settings.lanes_url, next(iter(lanes.values())))
    for name, lane in lanes.items():
        app.resource(f"lane_{name}", lane.open, lane.close)
    app.resource("server", server.start, lambda: server.stop(settings.drain_limit))
    # Calls under way are answered before anything else stops.
    app.on_drain("calls", lambda: server.stop(settings.drain_limit))
    app.on_ready(server.set_serving)
    app.clock_watch.on_change(server.set_clock)
    app.dependencies.on_change(server.set_dependency)
    app.supervise("sweep", Sweep(log=log, lanes=lanes, clock=app.clock, metrics=metrics).run)
    watch = Watch(gate=gate, lanes=lanes, count_calls=server.count_calls, clock=app.clock, metrics=metrics)
    app.supervise("watch", watch.run)


def stores(settings: IngestSettings) -> Sequence[StoreAdmin]:
    """Returns what looks after the stores that these settings name; embedded ones need nobody."""
    return [
        *admins(settings.request_log_url),
        *lane_stores(settings.lanes_url, list(LANES.values()), reads=False),
    ]


def limits_of(settings: IngestSettings) -> Limits:
    """Returns what counts as too much."""
    return Limits(
        wait=settings.wait_limit,
        backlog=settings.backlog_limit,
        append=settings.append_limit,
        loop_lag=settings.loop_lag_limit,
        call=settings.call_limit,
        in_flight=settings.in_flight_limit,
    )


def read_registries(categories_file: Path, producers_file: Path) -> registry.Registries:
    """Reads both registries.

    Raises:
        StartError: one line with the file, the key and what is wrong.
    """
    path = categories_file
    try:
        categories = registry.read_categories(path.read_bytes())
        path = producers_file
        content = path.read_bytes()
        return registry.Registries(
            categories, registry.read_producers(content, categories), registry.read_quotas(content)
        )
    except OSError as error:
        raise StartError(f"{path}: {error.strerror}; name a readable TOML file") from None
    except registry.RegistryError as error:
        raise StartError(f"{path}: {error}; correct it") from None


def main() -> None:
    """Runs the process until it is told to stop."""
    run(IngestSettings.service, IngestSettings, wire)
