"""PrefsService: reads requests, asks the store and core, answers. No rules here: they are in core."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import grpc.aio

from heliograph.prefs.v1 import prefs_service_pb2 as pb
from heliograph.prefs.v1 import prefs_service_pb2_grpc as pb_grpc
from mesh.context import current
from mesh.errors import Aborted
from svc_prefs import core
from svc_prefs.metrics import Metrics
from svc_prefs.ports import PrefsStore, Stored

# Any: no method reads requests or writes answers through its context.
_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

# Concurrent changes of one recipient's preferences are rare; more than a few in a row is a fault.
_TRIES = 5


class PrefsService(pb_grpc.PrefsServiceServicer):
    """Serves recipients (their choices) and fanout (decisions)."""

    def __init__(self, *, store: PrefsStore, registry: core.Registry, metrics: Metrics) -> None:
        self._store = store
        self._registry = registry
        self._metrics = metrics

    async def GetPreferences(self, request: pb.GetPreferencesRequest, context: _Context) -> pb.GetPreferencesResponse:
        """Returns the preferences of a recipient."""
        tenant_id, recipient_id = _acting_for(request.recipient_id, request.tenant_id)
        stored = await self._read(tenant_id, [recipient_id])
        return pb.GetPreferencesResponse(preferences=core.show(self._registry, recipient_id, stored.get(recipient_id)))

    async def UpdatePreferences(
        self, request: pb.UpdatePreferencesRequest, context: _Context
    ) -> pb.UpdatePreferencesResponse:
        """Changes what the mask names."""
        tenant_id, recipient_id = _acting_for(request.preferences.recipient_id, request.tenant_id)
        for _ in range(_TRIES):
            stored = (await self._read(tenant_id, [recipient_id])).get(recipient_id)
            after = core.change(self._registry, request, tenant_id, recipient_id, stored)
            if await self._store.replace(after):
                self._metrics.changed.inc()
                return pb.UpdatePreferencesResponse(preferences=core.show(self._registry, recipient_id, after))
        raise Aborted("others change these preferences at the same time: repeat", reason="ETAG_MISMATCH")

    async def BatchResolve(self, request: pb.BatchResolveRequest, context: _Context) -> pb.BatchResolveResponse:
        """Decides for many recipients at once."""
        core.check_batch(request)
        recipient_ids = {recipient_id for item in request.items for recipient_id in item.recipient_ids}
        stored = await self._read(request.tenant_id, recipient_ids)
        self._metrics.resolved.inc(len(recipient_ids))
        return pb.BatchResolveResponse(items=[core.resolve(self._registry, item, stored) for item in request.items])

    async def _read(self, tenant_id: str, recipient_ids: Iterable[str]) -> dict[str, Stored]:
        wanted = list(recipient_ids)
        rows = await self._store.get_many(tenant_id, wanted)
        stored = core.owned(rows, tenant_id, wanted)
        if len(stored) < len(rows):
            self._metrics.foreign.inc(len(rows) - len(stored))
        return stored


def _acting_for(recipient_id: str, tenant_id: str) -> tuple[str, str]:
    caller = current().caller
    return core.acting_for(
        role=caller.role, caller=(caller.tenant, caller.name), recipient_id=recipient_id, tenant_id=tenant_id
    )
