"""Wires svc_prefs: settings → registry and store → servicers → app."""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.access.v1 import access_pb2
from heliograph.prefs.v1 import (
    prefs_service_pb2,
    prefs_service_pb2_grpc,
    topic_service_pb2,
    topic_service_pb2_grpc,
)
from mesh.access import read_access
from mesh.app import App, StartError, run
from mesh.server import Server
from mesh.stores import StoreAdmin
from mesh.tokens import TokenVerifier
from svc_prefs.metrics import Metrics
from svc_prefs.registry import parse_registry
from svc_prefs.service import PrefsService
from svc_prefs.service_topics import TopicService
from svc_prefs.settings import PrefsSettings
from svc_prefs.store import open_store, store_admins


def wire(app: App, settings: PrefsSettings) -> None:
    """Builds the process; nothing runs yet."""
    try:
        text = settings.categories_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"categories file {settings.categories_file}: {error}; name a readable TOML file") from None
    registry = parse_registry(text, str(settings.categories_file))
    store = open_store(settings.store_url, data_dir=settings.data_dir)
    metrics = Metrics(app.telemetry)
    descriptors = (
        prefs_service_pb2.DESCRIPTOR.services_by_name["PrefsService"],
        topic_service_pb2.DESCRIPTOR.services_by_name["TopicService"],
    )
    server = Server(
        name=settings.service,
        socket=settings.run_dir / f"{settings.process}.sock",
        access=read_access(descriptors, access_pb2.callers),
        direct=settings.direct,
        trust_domain=settings.trust_domain,
        tokens=TokenVerifier(settings.tokens_file, clock=app.clock) if settings.tokens_file else None,
        telemetry=app.telemetry,
        clock=app.clock,
    )
    server.add(
        prefs_service_pb2_grpc.add_PrefsServiceServicer_to_server,
        PrefsService(store=store.prefs, registry=registry, clock=app.clock, metrics=metrics),
        descriptors[0],
    )
    server.add(
        topic_service_pb2_grpc.add_TopicServiceServicer_to_server,
        TopicService(store=store.topics, clock=app.clock, metrics=metrics),
        descriptors[1],
    )
    app.log.info("store_chosen", store_url=settings.store_url, category_count=len(registry))
    app.resource("store", store.open, store.close)
    app.dependencies.watch("store", settings.store_url, store)
    app.resource("server", server.start, lambda: server.stop(1.0))
    app.on_ready(server.set_serving)
    app.clock_watch.on_change(server.set_clock)
    app.dependencies.on_change(server.set_dependency)


def stores(settings: PrefsSettings) -> Sequence[StoreAdmin]:
    """Returns the upkeep of the stores outside this process; embedded ones need none."""
    return store_admins(settings.store_url)


def main() -> None:
    """Runs the process until it is told to stop."""
    run(PrefsSettings.service, PrefsSettings, wire)
