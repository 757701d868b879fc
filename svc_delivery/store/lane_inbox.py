"""An inbox whose follow-ups are on retry lanes: rows first, then the follow-up. Step 5 of the path.

A crash in between leaves rows without a follow-up, and a batch without an answer: fanout sends it again. Must not
change what the inbox does with rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from svc_delivery.ports import (
    Body,
    DecisionWrite,
    FollowUpWrite,
    Inbox,
    MarkOutcome,
    MarkWrite,
    RowKey,
    RowState,
    RowWrite,
    Window,
)
from svc_delivery.store.lane_follow_ups import LaneFollowUps


class LaneInbox:
    """Implements `Inbox` on one that is never given a follow-up."""

    def __init__(self, inbox: Inbox, follow_ups: LaneFollowUps) -> None:
        self._inbox = inbox
        self._follow_ups = follow_ups

    @property
    def epoch(self) -> str:
        """See `Inbox`."""
        return self._inbox.epoch

    async def write(
        self,
        rows: Sequence[RowWrite],
        *,
        stamp: int,
        follow_up: FollowUpWrite | None = None,
        decisions: Sequence[DecisionWrite] = (),
    ) -> None:
        """See `Inbox`."""
        await self._inbox.write(rows, stamp=stamp, decisions=decisions)
        if follow_up is not None:
            await self._follow_ups.append([follow_up])

    async def mark(self, marks: Sequence[MarkWrite], *, stamp: int, again: bool = False) -> Sequence[MarkOutcome]:
        """See `Inbox`."""
        return await self._inbox.mark(marks, stamp=stamp, again=again)

    async def window(self, recipient_key: str, now_us: int) -> Window:
        """See `Inbox`."""
        return await self._inbox.window(recipient_key, now_us)

    async def bodies(self, keys: Sequence[RowKey]) -> Mapping[RowKey, Body]:
        """See `Inbox`."""
        return await self._inbox.bodies(keys)

    async def heads(self, recipient_keys: Sequence[str]) -> Sequence[int]:
        """See `Inbox`."""
        return await self._inbox.heads(recipient_keys)

    async def states(self, keys: Sequence[RowKey]) -> Sequence[RowState | None]:
        """See `Inbox`."""
        return await self._inbox.states(keys)

    async def decisions(self, tenant_id: str, event_id: bytes) -> Sequence[DecisionWrite]:
        """See `Inbox`."""
        return await self._inbox.decisions(tenant_id, event_id)

    async def sweep(self, now_us: int, limit: int) -> int:
        """See `Inbox`; the lanes are trimmed at the same occasion."""
        removed = await self._inbox.sweep(now_us, limit)
        await self._follow_ups.trim()
        return removed
