"""The ways into a cluster that a recipient has: sessions that a test controls frame by frame, and calls.

The same methods in every shape: without sidecars they go to the services' own sockets, with the mesh through the edge,
and then a recipient's calls are REST. Must not judge an answer.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

import grpc
import grpc.aio
import httpx2
from google.protobuf import json_format
from google.protobuf.message import Message

from heliograph.delivery.v1 import inbox_service_pb2 as pb
from heliograph.delivery.v1 import inbox_service_pb2_grpc as stubs
from heliograph.prefs.v1 import prefs_service_pb2 as prefs_pb
from heliograph.prefs.v1 import prefs_service_pb2_grpc as prefs_stubs
from heliograph.type.v1.notification_pb2 import Channel, Mark, MarkKind, NotificationRef
from tests.support.cluster import Cluster
from tests.support.device import Device, Form, connected, mark_of
from tests.support.stream_device import streaming

Request = TypeVar("Request", bound=Message)
Answer = TypeVar("Answer", bound=Message)

_LIMIT_S = 10.0


class Apps:
    """The outside of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._context: ssl.SSLContext | None = None

    @property
    def context(self) -> ssl.SSLContext | None:
        """What a client of the edge verifies by; None without an edge."""
        if self._context is None and self.cluster.shape == "mesh":
            self._context = ssl.create_default_context(cafile=str(self.cluster.place.certs / "ca" / "bundle.pem"))
        return self._context

    def url(self, node: int = 0) -> str:
        """Returns where sessions connect: at this node, or at the edge, which chooses one itself."""
        urls = list(self.cluster.running.live_urls.values())
        return urls[node % len(urls)]

    # ------------------------------------------------------------ sessions

    @asynccontextmanager
    async def device(
        self,
        recipient: str,
        *,
        device_id: str = "phone",
        node: int = 0,
        form: Form = "proto",
        narrow: bool = False,
        cursor: str = "",
        received: Sequence[tuple[str, int]] = (),
        unconfirmed: Sequence[tuple[MarkKind.ValueType, Sequence[str]]] = (),
        token: str = "",
    ) -> AsyncIterator[Device]:
        """Opens a session of a client without habits; hello is said, the checkpoint is not waited for."""
        token = token or self.cluster.token(recipient)
        opened: AbstractAsyncContextManager[Device] = (
            self._streaming(token, node)
            if form == "grpc"
            else connected(self.url(node), form=form, context=self.context, narrow=narrow)
        )
        async with opened as device:
            marks = [mark_of(kind, *ids) for kind, ids in unconfirmed]
            await device.hello(token, device_id, cursor=cursor, received=received, unconfirmed=marks)
            yield device

    def _streaming(self, token: str, node: int) -> AbstractAsyncContextManager[Device]:
        """Opens a stream; without an edge the call has to say whose it is."""
        if self.cluster.shape == "mesh":
            roots = (self.cluster.place.certs / "ca" / "bundle.pem").read_bytes()
            return streaming(self.cluster.running.edge, credentials=grpc.ssl_channel_credentials(roots))
        socket = self.cluster.place.run / f"{self.cluster.node(node)}.sock"
        return streaming(f"unix:{socket}", (("authorization", f"Bearer {token}"),))

    # ------------------------------------------------------------ a recipient's calls

    async def list_inbox(self, recipient: str, *, unread_only: bool = False) -> pb.ListInboxResponse:
        """Returns the whole window of a recipient."""
        request = pb.ListInboxRequest(page_size=200, unread_only=unread_only)
        if self.cluster.shape == "processes":
            return await self._call(recipient, "delivery", lambda to: stubs.InboxServiceStub(to).ListInbox, request)
        return await self._rest(recipient, "GET", "/v1/inbox", request, pb.ListInboxResponse())

    async def unread(self, recipient: str) -> int:
        """Returns the unread number."""
        request = pb.GetUnreadRequest()
        if self.cluster.shape == "processes":
            answer = await self._call(recipient, "delivery", lambda to: stubs.InboxServiceStub(to).GetUnread, request)
        else:
            answer = await self._rest(recipient, "GET", "/v1/inbox/unread", request, pb.GetUnreadResponse())
        return answer.unread.unread_count

    async def mark(self, recipient: str, kind: MarkKind.ValueType, *ids: str) -> list[str]:
        """Marks without a session; returns the ids that are not in the inbox."""
        refs = [NotificationRef(notification_id=id_) for id_ in ids]
        request = pb.BatchMarkRequest(marks=[Mark(kind=kind, refs=refs)])
        if self.cluster.shape == "processes":
            answer = await self._call(recipient, "delivery", lambda to: stubs.InboxServiceStub(to).BatchMark, request)
        else:
            answer = await self._rest(recipient, "POST", "/v1/inbox:mark", request, pb.BatchMarkResponse())
        return [ref.notification_id for ref in answer.unknown_refs]

    async def mark_all_read(self, recipient: str) -> int:
        """Marks the whole list read; returns the unread number afterwards."""
        request = pb.MarkAllReadRequest()
        if self.cluster.shape == "processes":
            answer = await self._call(recipient, "delivery", lambda to: stubs.InboxServiceStub(to).MarkAllRead, request)
        else:
            answer = await self._rest(recipient, "POST", "/v1/inbox:markAllRead", request, pb.MarkAllReadResponse())
        return answer.unread.unread_count

    async def choose(self, recipient: str, category: str, *, enabled: bool = True, live: bool = True) -> None:
        """Sets a recipient's wishes for one category."""
        off = [] if live else [Channel.CHANNEL_LIVE]
        choice = prefs_pb.CategoryPreference(category=category, enabled=enabled, disabled_channels=off)
        request = prefs_pb.UpdatePreferencesRequest(preferences=prefs_pb.Preferences(categories=[choice]))
        if self.cluster.shape == "processes":
            await self._call(recipient, "prefs", lambda to: prefs_stubs.PrefsServiceStub(to).UpdatePreferences, request)
        else:
            await self._rest(recipient, "PATCH", "/v1/preferences", request, prefs_pb.UpdatePreferencesResponse())

    async def _call(
        self,
        recipient: str,
        service: str,
        method: Callable[[grpc.aio.Channel], grpc.aio.UnaryUnaryMultiCallable[Request, Answer]],
        request: Request,
    ) -> Answer:
        bearer = (("authorization", f"Bearer {self.cluster.token(recipient)}"),)
        async with grpc.aio.insecure_channel(f"unix:{self.cluster.place.run}/{service}.sock") as channel:
            return await method(channel)(request, timeout=_LIMIT_S, metadata=bearer)

    async def _rest(self, recipient: str, verb: str, path: str, request: Message, answer: Answer) -> Answer:
        body = json_format.MessageToDict(request)
        context = self.context
        assert context is not None
        async with httpx2.AsyncClient(
            base_url=f"https://{self.cluster.running.edge}",
            verify=context,
            timeout=_LIMIT_S,
            headers={"authorization": f"Bearer {self.cluster.token(recipient)}"},
        ) as client:
            got = await (client.get(path, params=body) if verb == "GET" else client.request(verb, path, json=body))
        assert got.status_code == 200, f"{verb} {path}: {got.status_code} {got.text}"
        return json_format.Parse(got.content, answer)
