"""Presence, inbox and topics over gRPC.

Must not retry: the loops in `worker.py` do. Steps 6, 7 and 10 of one notification (`architecture.md` §3).
"""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.delivery.v1 import inbox_service_pb2 as inbox_pb
from heliograph.delivery.v1 import inbox_service_pb2_grpc as inbox_grpc
from heliograph.prefs.v1 import topic_service_pb2 as topic_pb
from heliograph.prefs.v1 import topic_service_pb2_grpc as topic_grpc
from heliograph.presence.v1 import presence_service_pb2 as presence_pb
from heliograph.presence.v1 import presence_service_pb2_grpc as presence_grpc
from heliograph.type.v1.notification_pb2 import Mark
from mesh.channel import Channels, call
from mesh.errors import Internal, InvalidArgument
from mesh.ids import split_key
from mesh.times import micros_of


class PresencePeer:
    """Implements `ports.Presence`."""

    def __init__(self, *, channels: Channels, timeout: float) -> None:
        self._channels = channels
        self._timeout = timeout
        self._stub = presence_grpc.PresenceServiceStub(channels.unary("presence"))

    async def renew(self, node: presence_pb.Node) -> presence_pb.RenewNodeResponse:
        """See `ports.Presence`."""
        return await call(
            self._stub.RenewNode,
            presence_pb.RenewNodeRequest(node=node),
            timeout=self._timeout,
            metadata=self._channels.metadata(),
        )

    async def report(self, request: presence_pb.ReportSessionsRequest) -> presence_pb.ReportSessionsResponse:
        """See `ports.Presence`."""
        return await call(self._stub.ReportSessions, request, timeout=self._timeout, metadata=self._channels.metadata())


class InboxPeer:
    """Implements `ports.Inbox`."""

    def __init__(self, *, channels: Channels, timeout: float) -> None:
        self._channels = channels
        self._timeout = timeout
        self._stub = inbox_grpc.InboxServiceStub(channels.unary("delivery"))

    async def replay(
        self, requests: Sequence[inbox_pb.ReplayInboxRequest]
    ) -> Sequence[inbox_pb.ReplayInboxResponse | InvalidArgument]:
        """See `ports.Inbox`."""
        request = inbox_pb.BatchReplayInboxRequest(requests=requests)
        response = await call(
            self._stub.BatchReplayInbox, request, timeout=self._timeout, metadata=self._channels.metadata()
        )
        if not response.results:
            raise Internal("an answer to replays without a page", reason="INTERNAL")
        return [
            InvalidArgument(one.refused.message, reason=one.refused.reason) if one.HasField("refused") else one.page
            for one in response.results
        ]

    async def heads(self, recipient_keys: Sequence[str]) -> Sequence[int]:
        """See `ports.Inbox`."""
        response = await call(
            self._stub.BatchGetHeads,
            inbox_pb.BatchGetHeadsRequest(recipient_keys=recipient_keys),
            timeout=self._timeout,
            metadata=self._channels.metadata(),
        )
        return [micros_of(head.stamp_time) for head in response.heads]

    async def mark(self, marks: Sequence[Mark]) -> None:
        """See `ports.Inbox`."""
        request = inbox_pb.BatchMarkRequest(marks=marks)
        await call(self._stub.BatchMark, request, timeout=self._timeout, metadata=self._channels.metadata())


class TopicsPeer:
    """Implements `ports.Topics`."""

    def __init__(self, *, channels: Channels, timeout: float) -> None:
        self._channels = channels
        self._timeout = timeout
        self._stub = topic_grpc.TopicServiceStub(channels.unary("prefs"))

    async def change(self, recipient_key: str, topic_ids: Sequence[str], *, begin: bool) -> None:
        """See `ports.Topics`."""
        tenant_id, recipient_id = split_key(recipient_key)
        metadata = self._channels.metadata()
        if begin:
            wanted = topic_pb.SubscribeRequest(tenant_id=tenant_id, recipient_id=recipient_id, topic_ids=topic_ids)
            await call(self._stub.Subscribe, wanted, timeout=self._timeout, metadata=metadata)
        else:
            ended = topic_pb.UnsubscribeRequest(tenant_id=tenant_id, recipient_id=recipient_id, topic_ids=topic_ids)
            await call(self._stub.Unsubscribe, ended, timeout=self._timeout, metadata=metadata)
