"""Wires svc_gateway: settings → desk and sessions → presence, inbox, topics → links, streams, WebSockets → app."""

from __future__ import annotations

import functools
import random
import resource

from heliograph.access.v1 import access_pb2
from heliograph.gateway.v1 import (
    client_service_pb2,
    client_service_pb2_grpc,
    gateway_service_pb2,
    gateway_service_pb2_grpc,
)
from mesh.access import read_access
from mesh.app import App, run
from mesh.channel import Channels
from mesh.server import Server
from mesh.telemetry import path_tracer
from mesh.tokens import TokenVerifier
from svc_gateway.auth import FrontDesk
from svc_gateway.connect import OTHER_STREAMS, ClientStreams, StreamOptions
from svc_gateway.decisions import Limits
from svc_gateway.drain import Drain
from svc_gateway.gate import Gate
from svc_gateway.host import ClientConnection
from svc_gateway.lease import NodeLease
from svc_gateway.link import GatewayLinks, Window
from svc_gateway.marks import MarkLedger
from svc_gateway.metrics import Metrics
from svc_gateway.peers import InboxPeer, PresencePeer, TopicsPeer
from svc_gateway.queues import PresenceQueue, SessionQueue
from svc_gateway.service import Gateway
from svc_gateway.sessions import Sessions
from svc_gateway.settings import GatewaySettings
from svc_gateway.topics import TopicQueue, TopicWorker
from svc_gateway.websocket import Listener, Options
from svc_gateway.worker import LARGEST_REPLAY, InboxWorker, PresenceWorker, run_clock

# Calls for replays at once: few, so that under load each of them carries many.
_REPLAY_CALLS = 4
# Files that are no sessions: links, calls, logs, the listener.
_OTHER_FILES = 256
# The part of the drain limit that sessions are given; the rest is for closing those that did not leave.
_GRACE_OF_LIMIT = 0.6


def wire(app: App, settings: GatewaySettings) -> Listener:
    """Builds the process, nothing of which runs yet; returns where its WebSockets come in."""
    clock, metrics = app.clock, Metrics(app.telemetry)
    trace = path_tracer() if settings.trace_log else None
    sessions, topics = Sessions(), TopicQueue(settings.topic_queue_limit)
    tokens = TokenVerifier(settings.tokens, clock=clock)
    session_limit = _session_limit(app, settings.session_limit)
    desk = FrontDesk(
        tokens=tokens,
        sessions=sessions,
        clock=clock,
        random=random.random,
        node_id=settings.node_id,
        session_limit=session_limit,
        session_age=settings.session_age,
        retry_delay=settings.drain_grace,
    )
    gateway = Gateway(
        desk=desk,
        limits=Limits(
            heartbeat_interval=settings.heartbeat_interval,
            round_interval=settings.round_interval,
            behind_timeout=settings.behind_limit,
        ),
        sessions=sessions,
        marks=MarkLedger[ClientConnection](limit=settings.mark_limit, now=clock.monotonic()),
        presence=PresenceQueue(settings.node_id),
        replays=SessionQueue(),
        checkpoints=SessionQueue(),
        rounds=SessionQueue(),
        topics=topics,
        clock=clock,
        random=random.random,
        metrics=metrics,
        backlog_bytes=settings.backlog_bytes,
        trace=trace,
    )
    gate = Gate(
        rate=settings.open_rate,
        burst=settings.open_burst,
        longest=settings.open_delay_limit,
        now=clock.monotonic(),
    )

    def admit() -> float:
        return gate.ask(clock.monotonic(), random.random())

    options = Options(allowed_origins=frozenset(settings.allowed_origins))
    listener = Listener(host=gateway, options=options, clock=clock, admit=admit)
    lease = NodeLease(node_id=settings.node_id, address=settings.address, lifetime=settings.lease, wall=clock.wall())
    links = GatewayLinks(
        gateway=gateway,
        lease=lease,
        window=Window(count=settings.link_window_count, bytes=settings.link_window_bytes),
        clock=clock,
        trace=trace,
    )
    streams = ClientStreams(
        host=gateway,
        options=StreamOptions(stream_limit=session_limit + OTHER_STREAMS, retry_delay=settings.drain_grace),
        node_id=settings.node_id,
        draining=lambda: desk.draining,
        counted=metrics.streams.set,
        admit=admit,
    )
    server = _serve(app, settings, tokens, links, streams)
    channels = Channels(
        service=settings.service,
        process=settings.process,
        run_dir=settings.run_dir,
        direct=settings.direct,
        trust_domain=settings.trust_domain,
    )
    presence = PresenceWorker(
        gateway=gateway,
        lease=lease,
        presence=PresencePeer(channels=channels, timeout=settings.peer_timeout),
        clock=clock,
        random=random.random,
        renew_interval=settings.lease_renewal,
    )
    inbox = InboxWorker(
        gateway=gateway,
        inbox=InboxPeer(channels=channels, timeout=settings.peer_timeout),
        clock=clock,
        random=random.random,
    )
    drain = Drain(
        gateway=gateway,
        lease=lease,
        links=links,
        listener=listener,
        presence=presence,
        # Each step is cut off at the drain limit: those who stay must have been closed before.
        grace=min(settings.drain_grace, settings.drain_limit * _GRACE_OF_LIMIT),
    )

    app.resource("channels", None, channels.close)
    app.resource("server", server.start, lambda: server.stop(1.0))
    app.resource("websocket", lambda: listener.open(settings.listen), listener.close)
    app.supervise("lease", presence.keep_lease)
    app.supervise("reports", presence.report_for_ever)
    app.supervise("rounds", inbox.round_for_ever)
    app.supervise("checkpoints", inbox.checkpoint_for_ever)
    app.supervise("marks", inbox.store_for_ever)
    calls = min(_REPLAY_CALLS, settings.replay_limit)
    for number in range(calls):
        count = min(LARGEST_REPLAY, settings.replay_limit // calls)
        app.supervise(f"replays-{number}", functools.partial(inbox.replay_for_ever, count))
    changes = TopicWorker(
        gateway=gateway, queue=topics, topics=TopicsPeer(channels=channels, timeout=settings.peer_timeout)
    )
    for number in range(settings.topic_limit):
        app.supervise(f"topics-{number}", changes.change_for_ever)
    app.supervise("clock", lambda: run_clock(gateway, listener.sweep, gate, clock))
    app.on_ready(server.set_serving)
    app.clock_watch.on_change(server.set_clock)
    app.on_drain("sessions", drain.say_goodbye)
    app.on_drain("marks", drain.hand_back)
    app.log.info("websocket_chosen", listen=settings.listen, node_id=settings.node_id)
    return listener


def _serve(
    app: App, settings: GatewaySettings, tokens: TokenVerifier, links: GatewayLinks, streams: ClientStreams
) -> Server:
    link_service = gateway_service_pb2.DESCRIPTOR.services_by_name["GatewayService"]
    client_service = client_service_pb2.DESCRIPTOR.services_by_name["ClientService"]
    server = Server(
        name=settings.service,
        socket=settings.run_dir / f"{settings.process}.sock",
        access=read_access([link_service, client_service], access_pb2.callers),
        direct=settings.direct,
        trust_domain=settings.trust_domain,
        tokens=tokens,
        telemetry=app.telemetry,
        clock=app.clock,
        marker=settings.node_id,
    )
    server.add(gateway_service_pb2_grpc.add_GatewayServiceServicer_to_server, links, link_service)
    # The frames of a session are serialised once for all, by whoever makes them.
    server.add(client_service_pb2_grpc.add_ClientServiceServicer_to_server, streams, client_service, raw=("Connect",))
    return server


def _session_limit(app: App, wanted: int) -> int:
    """Raises the limit of open files as far as it goes; returns how many sessions it leaves room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OTHER_FILES
    if soft < needed and soft != resource.RLIM_INFINITY:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    room = max(1, soft - _OTHER_FILES)
    app.log.warning("session_limit_cut", wanted=wanted, session_limit=room, open_files=soft)
    return room


def _wire(app: App, settings: GatewaySettings) -> None:
    wire(app, settings)


def main() -> None:
    """Runs the process until it is told to stop."""
    run(GatewaySettings.service, GatewaySettings, _wire)
