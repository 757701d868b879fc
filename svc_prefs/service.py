"""PrefsService: reads requests, asks the store and core, answers. No rules here: they are in core."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import grpc.aio

from heliograph.prefs.v1 import prefs_service_pb2 as pb
from heliograph.prefs.v1 import prefs_service_pb2_grpc as pb_grpc
from mesh.clock import Clock
from mesh.context import current
from mesh.errors import Aborted
from svc_prefs import core
from svc_prefs.metrics import Metrics
from svc_prefs.ports import PrefsStore, Stored
from svc_prefs.registry import Registry

# Any: no method reads requests or writes answers through its context.
_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

# Concurrent changes of one recipient's preferences are rare; more than a few in a row is a fault.
_TRIES = 5
_MICROS = 1_000_000


class PrefsService(pb_grpc.PrefsServiceServicer):
    """Serves recipients (their choices) and fanout (decisions, and whose remembered ones are no longer good)."""

    def __init__(self, *, store: PrefsStore, registry: Registry, clock: Clock, metrics: Metrics) -> None:
        self._store = store
        self._registry = registry
        self._clock = clock
        self._metrics = metrics

    async def GetPreferences(self, request: pb.GetPreferencesRequest, context: _Context) -> pb.GetPreferencesResponse:
        """Returns the preferences of a recipient."""
        tenant_id, recipient_id = _acting_for(request.recipient_id, request.tenant_id)
        stored, _ = await self._read(tenant_id, [recipient_id])
        shown = core.show(self._registry, recipient_id, stored.get(recipient_id), self._now_us())
        return pb.GetPreferencesResponse(preferences=shown)

    async def UpdatePreferences(
        self, request: pb.UpdatePreferencesRequest, context: _Context
    ) -> pb.UpdatePreferencesResponse:
        """Changes what the mask names."""
        tenant_id, recipient_id = _acting_for(request.preferences.recipient_id, request.tenant_id)
        for _ in range(_TRIES):
            stored, _ = await self._read(tenant_id, [recipient_id])
            now_us = self._now_us()
            after = core.change(self._registry, request, tenant_id, recipient_id, stored.get(recipient_id), now_us)
            if await self._store.replace(after, now_us):
                self._metrics.changed.inc()
                shown = core.show(self._registry, recipient_id, after, now_us)
                return pb.UpdatePreferencesResponse(preferences=shown)
        raise Aborted("others change these preferences at the same time: repeat", reason="ETAG_MISMATCH")

    async def BatchResolve(self, request: pb.BatchResolveRequest, context: _Context) -> pb.BatchResolveResponse:
        """Decides for many recipients at once."""
        core.check_batch(request)
        recipient_ids = {recipient_id for item in request.items for recipient_id in item.recipient_ids}
        stored, change_number = await self._read(request.tenant_id, recipient_ids)
        wishes = {recipient_id: core.wishes_of(one) for recipient_id, one in stored.items()}
        now_us = self._now_us()
        self._metrics.resolved.inc(len(recipient_ids))
        items = [core.resolve(self._registry, item, wishes, now_us) for item in request.items]
        return pb.BatchResolveResponse(items=items, change_number=change_number)

    async def ListWishChanges(
        self, request: pb.ListWishChangesRequest, context: _Context
    ) -> pb.ListWishChangesResponse:
        """Lists whose wishes changed since a number."""
        changes = await self._store.list_changes(request.change_number, core.change_page(request))
        self._metrics.resets.inc(changes.reset)
        return core.list_changes(changes)

    async def _read(self, tenant_id: str, recipient_ids: Iterable[str]) -> tuple[dict[str, Stored], int]:
        wanted = list(recipient_ids)
        found = await self._store.get_many(tenant_id, wanted)
        stored = core.owned(found.rows, tenant_id, wanted)
        if len(stored) < len(found.rows):
            self._metrics.foreign.inc(len(found.rows) - len(stored))
        return stored, found.change_number

    def _now_us(self) -> int:
        return round(self._clock.wall() * _MICROS)


def _acting_for(recipient_id: str, tenant_id: str) -> tuple[str, str]:
    caller = current().caller
    return core.acting_for(
        role=caller.role, caller=(caller.tenant, caller.name), recipient_id=recipient_id, tenant_id=tenant_id
    )
