"""Stores marks and tells the recipient's other sessions what changed: the same for calls and for gateway links.

Path steps 7 and 11. Must not confirm anything before it is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from heliograph.gateway.v1 import gateway_service_pb2
from heliograph.type.v1 import notification_pb2
from mesh.errors import Unavailable
from mesh.ids import to_text
from mesh.telemetry import logger
from mesh.times import set_micros
from svc_delivery import core
from svc_delivery.counts import Counts
from svc_delivery.ports import ChangeSink, MarkOutcome, MarkWrite
from svc_delivery.replay import Count
from svc_delivery.writes import FreshWriter

_GATEWAY: Final = core.Asker("gateway", "", "")


class Marks:
    """From marks to durable cells and offered changes."""

    def __init__(
        self,
        *,
        writer: FreshWriter,
        counts: Counts,
        changes: ChangeSink,
        stored: Callable[[Sequence[MarkWrite]], None],
    ) -> None:
        """Holds on to its parts.

        Args:
            writer: stores marks under stamps that count.
            counts: the numbers that go with a change.
            changes: tells other sessions.
            stored: told of marks that are durable now.
        """
        self._writer = writer
        self._counts = counts
        self._changes = changes
        self._stored = stored
        self._log = logger()

    async def store(
        self, marks: Sequence[notification_pb2.Mark], asker: core.Asker
    ) -> Sequence[notification_pb2.NotificationRef]:
        """Stores marks, then offers what changed; returns the refs that are not in the inbox.

        Raises:
            InvalidArgument: a mark is malformed; nothing is stored.
            PermissionDenied: a recipient marks for another one; nothing is stored.
            Unavailable: it is not known what is stored, or the store refuses it; repeating is harmless.
        """
        outcomes = await self._store(marks, core.plan_marks(marks, asker))
        refused = [outcome.refused for outcome in outcomes if outcome.refused]
        if refused:
            raise Unavailable(f"the store refused {len(refused)} marks: {refused[0]}", reason="STORE_UNAVAILABLE")
        return [
            notification_pb2.NotificationRef(notification_id=to_text(id_))
            for outcome in outcomes
            for id_ in outcome.unknown_ids
        ]

    async def keep(self, marks: Sequence[notification_pb2.Mark]) -> None:
        """Stores marks that a gateway vouches for, then offers what changed.

        Malformed ones and those that a working store refuses are logged and dropped: nobody would get past them. What
        they would have acked is offered again.

        Raises:
            Unavailable: it is not known what is stored; repeating is harmless.
        """
        kept, planned, wrong = core.sift_marks(marks, _GATEWAY)
        if wrong:
            self._log.warning("marks_malformed", mark_count=len(marks) - len(kept), first=str(wrong[0]))
        if not planned:
            return
        outcomes = await self._store(kept, planned)
        refused = [outcome.refused for outcome in outcomes if outcome.refused]
        if refused:
            self._log.error("marks_refused", mark_count=len(refused), first=refused[0])

    async def _store(
        self, marks: Sequence[notification_pb2.Mark], planned: Sequence[MarkWrite]
    ) -> Sequence[MarkOutcome]:
        outcomes = await self._writer.mark(planned)
        self._stored([mark for mark, outcome in zip(planned, outcomes, strict=True) if not outcome.refused])
        await self._tell([mark.device_id for mark in marks], planned, outcomes)
        return outcomes

    async def _tell(
        self, device_ids: Sequence[str], planned: Sequence[MarkWrite], outcomes: Sequence[MarkOutcome]
    ) -> None:
        changes = [
            gateway_service_pb2.Change(
                recipient_key=mark.recipient_key, refs=refs, state=state, origin_device_id=device_id
            )
            for device_id, mark, outcome in zip(device_ids, planned, outcomes, strict=True)
            for state, refs in core.by_state(outcome.changed).items()
        ]
        if not changes:
            return
        counts = await self._counts.get_all(sorted({change.recipient_key for change in changes}))
        for change in changes:
            fill_unread(change.unread, counts[change.recipient_key])
        self._changes.offer(changes)


def fill_unread(unread: notification_pb2.Unread, counted: Count) -> None:
    """Writes a count into its message."""
    unread.unread_count = counted.unread_count
    unread.SetInParent()
    if counted.head:
        set_micros(unread.head_time, counted.head)
