"""A gateway node as a whole: the service's own wiring in this process, a real presence, and an inbox in memory.

Delivery's end of the link is a real stream too; a test says what goes over it. Must not assert anything but that what a
test waits for comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import grpc.aio

from heliograph.delivery.v1 import inbox_service_pb2, inbox_service_pb2_grpc
from heliograph.gateway.v1 import gateway_service_pb2 as pb
from heliograph.gateway.v1 import gateway_service_pb2_grpc
from heliograph.presence.v1 import presence_service_pb2, presence_service_pb2_grpc
from heliograph.type.v1 import envelope_pb2, notification_pb2
from mesh.app import App
from mesh.channel import Channels
from mesh.clock import SystemClock
from mesh.errors import Failure, InvalidArgument, Unavailable, Unimplemented, describe
from mesh.identity import CALLER_HEADER
from mesh.settings import load
from mesh.streams import Bidi, connect
from mesh.telemetry import Telemetry
from mesh.tokens import TokenSigner, create_signing_key
from svc_gateway.hello import cursor_of
from svc_gateway.main import wire
from svc_gateway.settings import GatewaySettings
from svc_presence.metrics import Metrics as PresenceMetrics
from svc_presence.service import PresenceService
from svc_presence.store import open_store
from tests.support.device import Device, Form, connected
from tests.support.far_ends import serving
from tests.support.sessions import Inbox
from tests.support.stream_device import StreamDevice, streaming
from tests.support.topics_end import TopicsEnd
from tests.support.wait import until

NODE_ID = "gw-test-0"
# Any: methods get their requests from the server.
_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
# Any: presence does not look at its context.
_NO_CONTEXT: Any = None
_NOT_HERE = Unimplemented("this inbox serves gateways only", reason="")


class InboxEnd(inbox_service_pb2_grpc.InboxServiceServicer):
    """The inboxes of all recipients, as the gateway sees them.

    Attributes:
        inboxes: by recipient key.
        marks: what was stored by calls.
        refused: raised instead of an answer.
        replays: requests so far.
    """

    def __init__(self) -> None:
        self.inboxes: dict[str, Inbox] = {}
        self.marks: list[notification_pb2.Mark] = []
        self.refused: Failure | None = None
        self.replays: list[inbox_service_pb2.ReplayInboxRequest] = []

    def of(self, recipient_key: str) -> Inbox:
        """Returns a recipient's inbox."""
        return self.inboxes.setdefault(recipient_key, Inbox())

    async def ReplayInbox(
        self, request: inbox_service_pb2.ReplayInboxRequest, context: _Context
    ) -> inbox_service_pb2.ReplayInboxResponse:
        """Answers with a page."""
        self.replays.append(request)
        if self.refused is not None:
            raise self.refused
        return self.of(request.recipient_key).replay(request, time.time(), request.page_size)

    async def BatchReplayInbox(
        self, request: inbox_service_pb2.BatchReplayInboxRequest, context: _Context
    ) -> inbox_service_pb2.BatchReplayInboxResponse:
        """Answers with pages."""
        response = inbox_service_pb2.BatchReplayInboxResponse()
        for one in request.requests:
            try:
                response.results.add(page=await self.ReplayInbox(one, context))
            except InvalidArgument as failure:
                describe(failure, response.results.add().refused)
        return response

    async def BatchGetHeads(
        self, request: inbox_service_pb2.BatchGetHeadsRequest, context: _Context
    ) -> inbox_service_pb2.BatchGetHeadsResponse:
        """Answers with heads."""
        heads = [self.of(key).head for key in request.recipient_keys]
        return inbox_service_pb2.BatchGetHeadsResponse(heads=[cursor_of("store-1", head) for head in heads])

    async def BatchMark(
        self, request: inbox_service_pb2.BatchMarkRequest, context: _Context
    ) -> inbox_service_pb2.BatchMarkResponse:
        """Stores marks."""
        if self.refused is not None:
            raise self.refused
        self.marks.extend(request.marks)
        return inbox_service_pb2.BatchMarkResponse()

    # A server wants a coroutine for each method; gateways never call these.

    async def ListInbox(self, request: object, context: _Context) -> NoReturn:
        """Is for recipients."""
        raise _NOT_HERE

    async def GetUnread(self, request: object, context: _Context) -> NoReturn:
        """Is for recipients."""
        raise _NOT_HERE

    async def MarkAllRead(self, request: object, context: _Context) -> NoReturn:
        """Is for recipients."""
        raise _NOT_HERE


class DeliveryLink:
    """Delivery's side of a link to the node.

    Attributes:
        frames: everything that came.
        stores: confirms mark batches as they come.
        answers: pings.
        failure: what the link ended with; None while it is open.
    """

    def __init__(self, stream: Bidi[pb.DeliverRequest, pb.DeliverResponse], *, stores: bool) -> None:
        self.frames: list[pb.DeliverResponse] = []
        self.stores = stores
        self.answers = True
        self.failure: Failure | None = None
        self.stream = stream
        self._number = 0
        self._sequence = 0

    def send(self, **frame: Any) -> None:  # Any: the message refuses what it does not have
        """Sends a frame."""
        assert self.stream.send(pb.DeliverRequest(**frame))

    def open(self, name: str, *, epoch: int = 1, node_id: str = NODE_ID, node_epoch: int = 0, version: int = 1) -> None:
        """Opens the link."""
        opened = pb.LinkOpen(
            protocol_version=version, delivery_id=name, delivery_epoch=epoch, node_id=node_id, node_epoch=node_epoch
        )
        self.send(open=opened)

    def offer(self, *deliveries: pb.Delivery, sequence: int = 0) -> int:
        """Sends a batch; returns its number."""
        self._sequence = sequence or self._sequence + 1
        self.send(batch=pb.DeliverBatch(sequence=self._sequence, deliveries=deliveries))
        return self._sequence

    async def read(self) -> None:
        """Keeps what comes, and answers as told."""
        try:
            while (frame := await self.stream.read()) is not None:
                self._take(frame)
        except Failure as failure:
            self.failure = failure
        else:
            self.failure = Unavailable("the node ended the link", reason="")

    async def write(self) -> None:
        """Writes what is sent until the link is over."""
        with contextlib.suppress(Failure):
            await self.stream.write_loop()

    def _take(self, frame: pb.DeliverResponse) -> None:
        self.frames.append(frame)
        if frame.HasField("marks") and self.stores:
            self.send(stored=pb.MarksStored(sequence=frame.marks.sequence))
        if frame.HasField("ping") and self.answers:
            self.send(ping=frame.ping)

    async def end(self) -> Failure:
        """Waits for the end of the link and returns what ended it."""
        await until(lambda: self.failure is not None, 10.0, "the link has ended")
        assert self.failure is not None
        return self.failure

    @property
    def ready(self) -> pb.LinkReady:
        """What the opening was answered with."""
        return next(frame.ready for frame in self.frames if frame.HasField("ready"))

    @property
    def results(self) -> list[pb.DeliverResult]:
        """Every result."""
        return [frame.result for frame in self.frames if frame.HasField("result")]

    @property
    def mark_batches(self) -> list[pb.MarkBatch]:
        """Every batch of marks."""
        return [frame.marks for frame in self.frames if frame.HasField("marks")]

    @property
    def marks(self) -> list[notification_pb2.Mark]:
        """Every mark."""
        return [mark for batch in self.mark_batches for mark in batch.marks]

    @property
    def drained(self) -> bool:
        """The node takes no more."""
        return any(frame.HasField("drain") for frame in self.frames)

    async def result(self, sequence: int) -> pb.DeliverResult:
        """Waits for the answer to a batch."""
        await until(lambda: any(one.taken_sequence >= sequence for one in self.results), 10.0, "the batch is answered")
        return next(one for one in self.results if one.taken_sequence >= sequence)


def delivery_of(id_: str, *recipient_keys: str, revision: int = 1, title: str = "Hello") -> pb.Delivery:
    """Returns one notification for recipients."""
    notification = notification_pb2.Notification(
        notification_id=id_, revision=revision, content=notification_pb2.Content(title=title)
    )
    envelope = envelope_pb2.Envelope(
        kind=envelope_pb2.ENVELOPE_KIND_NOTIFY,
        notification_id=id_,
        event_id=id_,
        revision=revision,
        tenant_id="acme",
        notification=notification.SerializeToString(),
    )
    return pb.Delivery(envelope=envelope, recipient_keys=recipient_keys)


class Node:
    """A running node and everything around it."""

    def __init__(self, run_dir: Path, folder: Path) -> None:
        self.run_dir = run_dir
        self.inbox = InboxEnd()
        self.topics = TopicsEnd()
        self.presence = PresenceService(
            store=open_store("memory://", lease=15.0, clock=SystemClock()),
            clock=SystemClock(),
            metrics=PresenceMetrics(Telemetry("presence")),
            lease=15.0,
        )
        self.app: App
        self._folder = folder
        self._keys = folder / "tokens.json"
        create_signing_key(folder / "tokens.pem", self._keys)
        self._signer = TokenSigner(folder / "tokens.pem")
        self._exits: list[asyncio.Task[None]] = []

    def token(self, recipient: str = "alice", *, lifetime: float = 600.0, role: str = "recipient") -> str:
        """Signs a token."""
        return self._signer.sign(recipient, "acme", role, lifetime, time.time())

    @property
    def url(self) -> str:
        """Where WebSockets are taken."""
        return f"ws://{self._listen}/v1/ws"

    @contextlib.asynccontextmanager
    async def running(self, *flags: str, with_presence: bool = True, with_topics: bool = False) -> AsyncIterator[Node]:
        """Serves presence, inbox and, if told to, topics, starts the node, and drains it at the end."""
        inbox_service = inbox_service_pb2.DESCRIPTOR.services_by_name["InboxService"]
        presence_service = presence_service_pb2.DESCRIPTOR.services_by_name["PresenceService"]
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(
                serving(
                    self.run_dir,
                    "delivery",
                    inbox_service,
                    inbox_service_pb2_grpc.add_InboxServiceServicer_to_server,
                    self.inbox,
                )
            )
            if with_presence:
                await stack.enter_async_context(self.serving_presence(presence_service))
            if with_topics:
                await stack.enter_async_context(self.topics.serving(self.run_dir))
            await stack.enter_async_context(self._started(flags))
            yield self

    def serving_presence(self, service: Any = None) -> contextlib.AbstractAsyncContextManager[Telemetry]:
        """Serves presence."""
        return serving(
            self.run_dir,
            "presence",
            service or presence_service_pb2.DESCRIPTOR.services_by_name["PresenceService"],
            presence_service_pb2_grpc.add_PresenceServiceServicer_to_server,
            self.presence,
        )

    @contextlib.asynccontextmanager
    async def _started(self, flags: Sequence[str]) -> AsyncIterator[None]:
        settings = load(
            GatewaySettings,
            [
                f"--node-id={NODE_ID}",
                f"--run-dir={self.run_dir}",
                f"--data-dir={self._folder / 'data'}",
                f"--tokens-file={self._keys}",
                "--direct",
                "--websocket-listen=127.0.0.1:0",
                "--drain-grace=0.5",
                *flags,
            ],
            {},
        )
        self.app = App(name="gateway", settings=settings)
        self.listener = wire(self.app, settings)
        task = asyncio.create_task(self.app.run())
        await until(lambda: self.app.started.is_set() or task.done(), 10.0, "the node has started")
        self._listen = self.listener.address
        try:
            yield
        finally:
            self.app.request_stop("the test is over")
            await task

    @contextlib.asynccontextmanager
    async def link(self, name: str = "delivery", *, stores: bool = True, **opening: Any) -> AsyncIterator[DeliveryLink]:
        """Opens a link as a delivery process."""
        channels = Channels(service="delivery", process="delivery", run_dir=self.run_dir, direct=True)
        stub = gateway_service_pb2_grpc.GatewayServiceStub(channels.node(NODE_ID))
        metadata = channels.node_metadata(NODE_ID, "")
        try:
            async with connect(stub.Deliver, metadata=metadata, limit=1_000) as stream, asyncio.TaskGroup() as group:
                link = DeliveryLink(stream, stores=stores)
                writing = group.create_task(link.write())
                reading = group.create_task(link.read())
                link.open(name, **opening)
                await until(lambda: bool(link.frames) or link.failure is not None, 10.0, "the link is open")
                yield link
                reading.cancel()
                writing.cancel()
        finally:
            await channels.close()

    @property
    def target(self) -> str:
        """Where gRPC is taken."""
        return f"unix:{self.run_dir / NODE_ID}.sock"

    def connected(self, form: Form) -> contextlib.AbstractAsyncContextManager[Device]:
        """Connects a device in one of the three ways; hello is not said yet."""
        if form == "grpc":
            return self.streaming()
        return connected(self.url, form=form)

    def streaming(self, *metadata: tuple[str, str]) -> contextlib.AbstractAsyncContextManager[StreamDevice]:
        """Opens a stream, without headers as it comes through the edge without a token; hello is not said yet."""
        return streaming(self.target, metadata or ((CALLER_HEADER, "svc/edge"),))

    @contextlib.asynccontextmanager
    async def device(
        self,
        recipient: str = "alice",
        device_id: str = "phone",
        *,
        form: Form = "proto",
        **hello: Any,
    ) -> AsyncIterator[Device]:
        """Connects a device, says hello and waits for its checkpoint."""
        async with self.connected(form) as device:
            await device.hello(self.token(recipient), device_id, **hello)
            await device.ready()
            yield device

    def gauge(self, name: str) -> float:
        """Returns one of the node's gauges, by its name without the prefix."""
        return self.app.telemetry.registry.get_sample_value(f"heliograph_gateway_{name}") or 0.0

    async def present(self, recipient_key: str) -> list[presence_service_pb2.SessionEntry]:
        """Asks presence for a recipient's sessions."""
        request = presence_service_pb2.BatchGetPresenceRequest(recipient_keys=[recipient_key], with_sessions=True)
        return list((await self.presence.BatchGetPresence(request, _NO_CONTEXT)).sessions)

    async def connect_elsewhere(self, recipient_key: str, device_id: str) -> None:
        """Reports a newer session of a device on another node."""
        other = presence_service_pb2.Node(node_id="gw-other-0", epoch=1, state=presence_service_pb2.NODE_STATE_SERVING)
        await self.presence.RenewNode(presence_service_pb2.RenewNodeRequest(node=other), _NO_CONTEXT)
        entry = presence_service_pb2.SessionEntry(
            recipient_key=recipient_key, device_id=device_id, connect_number=1 << 60, node_id="gw-other-0"
        )
        report = presence_service_pb2.ReportSessionsRequest(node_id="gw-other-0", epoch=1, joined=[entry])
        await self.presence.ReportSessions(report, _NO_CONTEXT)
