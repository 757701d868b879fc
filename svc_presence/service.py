"""PresenceService: reads requests, asks the store, answers. No rules here: they are in core and in the store's port."""

from __future__ import annotations

from typing import Any, TypeAlias

import grpc.aio

from heliograph.presence.v1 import presence_service_pb2 as pb
from heliograph.presence.v1 import presence_service_pb2_grpc as pb_grpc
from mesh.clock import Clock
from mesh.times import set_micros
from svc_presence import core
from svc_presence.metrics import Metrics
from svc_presence.ports import NodeLease, PresenceStore

# Any: no method reads requests or writes answers through its context.
_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class PresenceService(pb_grpc.PresenceServiceServicer):
    """Serves gateways (leases, sessions) and delivery (look-ups, nodes)."""

    def __init__(self, *, store: PresenceStore, clock: Clock, metrics: Metrics, lease: float) -> None:
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._lease = lease

    async def RenewNode(self, request: pb.RenewNodeRequest, context: _Context) -> pb.RenewNodeResponse:
        """Renews a node's lease."""
        now = self._clock.monotonic()
        renewal = await self._store.renew(core.lease_of(request.node, now=now, lifetime=self._lease), now)
        if renewal.lease is None:
            self._metrics.refused_leases.inc()
            raise core.lease_stale(request.node.node_id, request.node.epoch)
        response = pb.RenewNodeResponse(
            superseded=[core.entry_of(session) for session in renewal.superseded], incarnation=self._store.incarnation
        )
        set_micros(response.lease_expire_time, self._wall_micros(renewal.lease, now))
        return response

    async def ReportSessions(
        self,
        request: pb.ReportSessionsRequest,
        context: _Context,
    ) -> pb.ReportSessionsResponse:
        """Writes what changed on a node."""
        core.check_report(request)
        report = await self._store.report(
            request.node_id,
            request.epoch,
            joined=core.sessions_of(request.node_id, request.joined),
            left=core.sessions_of(request.node_id, request.left),
            asserted=core.sessions_of(request.node_id, request.asserted),
            now=self._clock.monotonic(),
        )
        if not report.accepted:
            self._metrics.refused_leases.inc()
            raise core.lease_stale(request.node_id, request.epoch)
        self._metrics.count_report(len(request.joined), len(request.left), len(report.restored), len(report.superseded))
        return pb.ReportSessionsResponse(
            superseded=[core.entry_of(session) for session in report.superseded],
            restored=[core.entry_of(session) for session in report.restored],
            incarnation=self._store.incarnation,
        )

    async def BatchGetPresence(
        self,
        request: pb.BatchGetPresenceRequest,
        context: _Context,
    ) -> pb.BatchGetPresenceResponse:
        """Returns where recipients are now."""
        core.check_look_up(request)
        found = await self._store.look_up(request.recipient_keys, self._clock.monotonic())
        self._metrics.looked_up.inc(len(request.recipient_keys))
        return core.pack(request.recipient_keys, found, with_sessions=request.with_sessions)

    async def ListNodes(self, request: pb.ListNodesRequest, context: _Context) -> pb.ListNodesResponse:
        """Lists nodes whose lease is alive."""
        now = self._clock.monotonic()
        page, next_token = core.page_of(await self._store.nodes(now), request.page_size, request.page_token)
        response = pb.ListNodesResponse(next_page_token=next_token)
        for lease in page:
            node = response.nodes.add(
                node_id=lease.node_id,
                epoch=lease.epoch,
                state=pb.NODE_STATE_DRAINING if lease.draining else pb.NODE_STATE_SERVING,
                session_count=lease.session_count,
                address=lease.address,
            )
            set_micros(node.lease_expire_time, self._wall_micros(lease, now))
        if self._clock.agrees():
            set_micros(response.answer_time, round(self._clock.wall() * 1_000_000))
        return response

    def _wall_micros(self, lease: NodeLease, now: float) -> int:
        return round((self._clock.wall() + lease.expires - now) * 1_000_000)
