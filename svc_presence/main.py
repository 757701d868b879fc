"""Wires svc_presence: settings → store → servicer → app."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from heliograph.access.v1 import access_pb2
from heliograph.presence.v1 import presence_service_pb2, presence_service_pb2_grpc
from mesh.access import read_access
from mesh.app import App, run
from mesh.errors import Unavailable
from mesh.server import Server
from mesh.stores import StoreAdmin
from svc_presence.metrics import Metrics
from svc_presence.service import PresenceService
from svc_presence.settings import PresenceSettings
from svc_presence.store import admins, open_store

_SWEEP_INTERVAL = 30.0


def wire(app: App, settings: PresenceSettings) -> None:
    """Builds the process; nothing runs yet."""
    store = open_store(settings.store_url, lease=settings.lease, clock=app.clock)
    descriptor = presence_service_pb2.DESCRIPTOR.services_by_name["PresenceService"]
    server = Server(
        name=settings.service,
        socket=settings.run_dir / f"{settings.process}.sock",
        access=read_access([descriptor], access_pb2.callers),
        direct=settings.direct,
        trust_domain=settings.trust_domain,
        tokens=None,
        telemetry=app.telemetry,
        clock=app.clock,
        # Leases go by the other clock: to refuse them would end sessions for nothing.
        by_wall_clock=False,
    )
    server.add(
        presence_service_pb2_grpc.add_PresenceServiceServicer_to_server,
        PresenceService(store=store, clock=app.clock, metrics=Metrics(app.telemetry), lease=settings.lease),
        descriptor,
    )

    async def sweep() -> None:
        while True:
            await asyncio.sleep(_SWEEP_INTERVAL)
            try:
                dropped = await store.sweep(app.clock.monotonic())
            except Unavailable as error:
                app.log.warning("sweep_failed", error=str(error))
                continue
            if dropped:
                app.log.info("entries_swept", session_count=dropped)

    app.log.info("store_chosen", store_url=settings.store_url)
    app.dependencies.watch("store", settings.store_url, store)
    app.resource("store", store.open, store.close)
    app.resource("server", server.start, lambda: server.stop(1.0))
    app.supervise("sweep", sweep)
    app.readiness.bear_steps()
    app.on_ready(server.set_serving)
    app.clock_watch.on_change(server.set_clock)
    app.dependencies.on_change(server.set_dependency)


def stores(settings: PresenceSettings) -> Sequence[StoreAdmin]:
    """Returns what looks after the stores that these settings name; embedded ones need nobody."""
    return admins(settings.store_url)


def main() -> None:
    """Runs the process until it is told to stop."""
    run(PresenceSettings.service, PresenceSettings, wire)
