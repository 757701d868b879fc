"""Wires svc_delivery: settings → store → presence, links, offers → rows, channels, letters → servicers → app."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from heliograph.access.v1 import access_pb2
from heliograph.delivery.v1 import (
    dead_letter_service_pb2,
    dead_letter_service_pb2_grpc,
    delivery_service_pb2,
    delivery_service_pb2_grpc,
    inbox_service_pb2,
    inbox_service_pb2_grpc,
)
from mesh.access import read_access
from mesh.app import App, run
from mesh.channel import Channels
from mesh.clock import Stamper
from mesh.ids import to_text
from mesh.server import Server
from mesh.stores import StoreAdmin
from mesh.telemetry import path_tracer
from mesh.tokens import TokenVerifier
from svc_delivery.caution import Caution
from svc_delivery.channels import PlanWalker
from svc_delivery.counts import Counts
from svc_delivery.elsewhere import Elsewhere
from svc_delivery.explain import Explainer
from svc_delivery.links import Link
from svc_delivery.marks import Marks
from svc_delivery.metrics import Metrics
from svc_delivery.nodes import Links
from svc_delivery.offers import Offers
from svc_delivery.peers import GrpcPrefs, GrpcPresence
from svc_delivery.ports import MarkWrite, NodeAddress
from svc_delivery.ports_channels import Senders
from svc_delivery.redrive import Redriver
from svc_delivery.rows import Rows
from svc_delivery.service import DeliveryService
from svc_delivery.service_dead_letters import DeadLetterService
from svc_delivery.service_inbox import InboxService
from svc_delivery.settings import DeliverySettings
from svc_delivery.settled import Settled
from svc_delivery.store import InboxStore, open_store, store_admins
from svc_delivery.wishes import Wishes
from svc_delivery.worker import RECORDS, FollowUpWorker, sweep
from svc_delivery.writes import FreshWriter

# A follow-up is first due after the ack window of 10 s; what is remembered longer saves nothing.
_REMEMBER = 15.0
# What is offered gets a second to leave before the process does; a follow-up finds what did not.
_FLUSH_LOOKS = 100
_FLUSH_PAUSE = 0.01
_NO_SENDERS: Final[Senders] = {}


def wire(app: App, settings: DeliverySettings, senders: Senders = _NO_SENDERS) -> None:
    """Builds the process; nothing runs yet.

    Args:
        app: the process.
        settings: its settings.
        senders: ways out over channels beyond inbox and live; a plan that names one without a sender passes over it.
    """
    metrics = Metrics(app.telemetry)
    trace = path_tracer() if settings.trace_log else None
    store = _store(app, settings)
    channels = Channels(
        service=settings.service,
        process=settings.process,
        run_dir=settings.run_dir,
        direct=settings.direct,
        trust_domain=settings.trust_domain,
    )
    app.resource("channels", None, channels.close)
    presence = GrpcPresence(channels, app.clock)
    settled = Settled(keep=_REMEMBER)
    stamper = Stamper(app.clock)
    writer = FreshWriter(inbox=store.inbox, stamper=stamper, limit=settings.write_limit, late=metrics.rewritten.inc)
    counts = Counts(inbox=store.inbox, clock=app.clock)

    def stored(marks: Sequence[MarkWrite]) -> None:
        metrics.marks.inc(len(marks))
        for mark in marks:
            for notification_id in mark.notification_ids:
                settled.add((mark.recipient_key, notification_id))
                if trace is not None:
                    trace("ack_stored", event_id=to_text(notification_id), recipient_key=mark.recipient_key)

    def make_link(node: NodeAddress) -> Link:
        return Link(
            node,
            process=settings.process,
            epoch=epoch,
            channels=channels,
            marks=marks,
            clock=app.clock,
            metrics=metrics,
            queue_limit=settings.link_queue,
            trace=trace,
            absent=elsewhere.absent,
        )

    epoch = round(app.clock.wall() * 1_000_000)
    links = Links(channels=channels, presence=presence, make_link=make_link, poll=settings.node_poll)
    elsewhere = Elsewhere(
        follow_ups=store.follow_ups, metrics=metrics, now_us=lambda: round(app.clock.wall() * 1_000_000)
    )
    offers = Offers(
        presence=presence,
        nodes=links,
        settled=settled,
        metrics=metrics,
        limit=settings.link_queue,
        nobody_there=elsewhere.add,
        offered=elsewhere.offered,
    )
    marks = Marks(writer=writer, counts=counts, changes=offers, stored=stored)
    wishes = Wishes(GrpcPrefs(channels))
    rows = Rows(
        writer=writer,
        follow_ups=store.follow_ups,
        wishes=wishes,
        metrics=metrics,
        now_us=counts.now_us,
        retry_delays=settings.retry_delays,
    )
    walker = PlanWalker(
        inbox=store.inbox,
        cells=store.steps,
        wishes=wishes,
        senders=senders,
        metrics=metrics,
        now_us=counts.now_us,
    )
    redriver = Redriver(
        dead_letters=store.dead_letters,
        follow_ups=store.follow_ups,
        inbox=store.inbox,
        cells=store.steps,
        writer=writer,
        wishes=wishes,
        offers=offers,
        metrics=metrics,
        now_us=counts.now_us,
    )
    dead_letters = DeadLetterService(dead_letters=store.dead_letters, redriver=redriver)
    delivery = DeliveryService(
        rows=rows,
        explainer=Explainer(
            inbox=store.inbox,
            cells=store.steps,
            follow_ups=store.follow_ups,
            dead_letters=store.dead_letters,
            now_us=counts.now_us,
        ),
        offers=offers,
        clock=app.clock,
        metrics=metrics,
        process=settings.process,
        window_count=settings.dispatch_window,
        trace=trace,
    )
    inbox = InboxService(
        inbox=store.inbox,
        marks=marks,
        counts=counts,
        stamper=stamper,
        reloaded=lambda reason: metrics.reloads[reason].inc(),
        margin=settings.write_limit + settings.clock_allowance,
    )

    async def flush() -> None:
        for _ in range(_FLUSH_LOOKS):
            if not offers.waiting and not links.unfinished:
                return
            await asyncio.sleep(_FLUSH_PAUSE)

    descriptors = (
        delivery_service_pb2.DESCRIPTOR.services_by_name["DeliveryService"],
        inbox_service_pb2.DESCRIPTOR.services_by_name["InboxService"],
        dead_letter_service_pb2.DESCRIPTOR.services_by_name["DeadLetterService"],
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
    server.add(delivery_service_pb2_grpc.add_DeliveryServiceServicer_to_server, delivery, descriptors[0])
    server.add(inbox_service_pb2_grpc.add_InboxServiceServicer_to_server, inbox, descriptors[1])
    add_dead_letters = dead_letter_service_pb2_grpc.add_DeadLetterServiceServicer_to_server
    server.add(add_dead_letters, dead_letters, descriptors[2])
    follow_ups = FollowUpWorker(
        follow_ups=store.follow_ups,
        inbox=store.inbox,
        rows=rows,
        channels=walker,
        caution=Caution(store.suspects, page=RECORDS),
        presence=presence,
        offers=offers,
        settled=settled,
        clock=app.clock,
        metrics=metrics,
        trace=trace,
    )
    app.resource("server", server.start, lambda: server.stop(1.0))
    app.supervise("links", links.run)
    app.supervise("offers", offers.run)
    app.supervise("elsewhere", elsewhere.run)
    app.supervise("follow_ups", follow_ups.run)
    app.supervise("sweep", lambda: sweep(store.inbox, app.clock))
    app.supervise("sweep letters", lambda: sweep(store.dead_letters, app.clock, event="dead_letters_swept"))
    _tell(server, app)
    app.on_drain("dispatch", delivery.drain)
    app.on_drain("live", flush)


def _tell(server: Server, app: App) -> None:
    """Lets health know how the process is."""
    app.on_ready(server.set_serving)
    app.clock_watch.on_change(server.set_clock)
    app.dependencies.on_change(server.set_dependency)


def _store(app: App, settings: DeliverySettings) -> InboxStore:
    """Chooses the stores, says where everything is kept, and watches what can go away."""
    store = open_store(
        settings.store_url,
        settings.data_dir,
        follow_ups_url=settings.follow_ups_url,
        run_dir=settings.run_dir,
        clock=app.clock,
    )
    app.resource("store", store.open, store.close)
    app.log.info("store_chosen", **{part.setting: part.url for part in store.parts})
    for part in store.parts:
        app.dependencies.watch(part.setting.removesuffix("_url"), part.url, part.store)
    return store


def stores(settings: DeliverySettings) -> Sequence[StoreAdmin]:
    """Returns the upkeep of the stores outside this process; embedded ones need none."""
    return store_admins(settings.store_url, settings.follow_ups_url)


def main() -> None:
    """Runs the process until it is told to stop."""
    run(DeliverySettings.service, DeliverySettings, wire)
