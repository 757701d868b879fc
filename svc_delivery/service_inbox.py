"""InboxService: a recipient's list, number and marks, and what gateways need to catch a session up.

Path steps 10 and 11. No rules here: they are in `core` and `replay`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import grpc.aio

from heliograph.delivery.v1 import inbox_service_pb2 as pb
from heliograph.delivery.v1 import inbox_service_pb2_grpc as pb_grpc
from heliograph.type.v1 import notification_pb2
from mesh import context as call_context
from mesh.clock import Stamper
from mesh.errors import InvalidArgument, Violation, describe
from mesh.times import micros_of, set_micros
from svc_delivery import core, replay
from svc_delivery.counts import Counts
from svc_delivery.marks import Marks, fill_unread
from svc_delivery.ports import Body, Inbox, RowKey, RowState

# Any: no method reads requests or writes answers through its context.
_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

# A remembered count is believed so many times, then the window is read whatever the head says.
_BELIEVED: Final = 19
# An answer that is as large has no further page; with the largest page on top it stays below what a call may carry.
_LARGE_ANSWER: Final = 512 * 1024
# Replays of a call that are read at once. A session holds back what is live until its replay is there: one after the
# other, the last of a call would wait for all reads. What is read behind a large answer is read again.
_READ_AT_ONCE: Final = 8


class InboxService(pb_grpc.InboxServiceServicer):
    """Serves recipients and operators (list, number, marks) and gateways (marks, replays, heads)."""

    def __init__(
        self,
        *,
        inbox: Inbox,
        marks: Marks,
        counts: Counts,
        stamper: Stamper,
        reloaded: Callable[[str], None],
        margin: float = 6.0,
        window_size: int = 100,
        keep_days: int = 90,
    ) -> None:
        """Holds on to its parts.

        Args:
            inbox: the rows.
            marks: stores marks and tells other sessions.
            counts: numbers of windows.
            stamper: the process's one writer's clock.
            reloaded: told why a replay sends the whole window: "ABSENT", "FOREIGN", "FUTURE" or "OLD".
            margin: W + S in seconds: a cursor stands so much before its read.
            window_size: rows of each class that a window shows.
            keep_days: days the inbox keeps a row.
        """
        self._inbox = inbox
        self._marks = marks
        self._counts = counts
        self._stamper = stamper
        self._reloaded = reloaded
        self._margin = margin
        self._window_size = window_size
        self._keep_days = keep_days
        self._believed = 0

    async def ListInbox(self, request: pb.ListInboxRequest, context: _Context) -> pb.ListInboxResponse:
        """Lists the window, newest first."""
        key = core.inbox_of(_asker(), recipient_id=request.recipient_id, tenant_id=request.tenant_id)
        page_size = replay.page_size_of(request.page_size, replay.LIST_PAGE)
        page = replay.read_token(b"L", request.page_token)
        window, counted = await self._counts.read(key)
        rows, next_page = replay.list_page(window, page=page, page_size=page_size, unread_only=request.unread_only)
        bodies = await self._bodies(key, rows)
        response = pb.ListInboxResponse()
        for row in rows:
            if (body := bodies.get(row.notification_id)) is not None:
                item = response.items.add(state=core.state_of(row))
                item.notification.MergeFromString(body.content)
        if next_page is not None:
            response.next_page_token = replay.write_token(b"L", next_page)
        fill_unread(response.unread, counted)
        return response

    async def GetUnread(self, request: pb.GetUnreadRequest, context: _Context) -> pb.GetUnreadResponse:
        """Returns the number of unread notifications in the window."""
        key = core.inbox_of(_asker(), recipient_id=request.recipient_id, tenant_id=request.tenant_id)
        response = pb.GetUnreadResponse()
        fill_unread(response.unread, await self._counts.get(key))
        return response

    async def BatchMark(self, request: pb.BatchMarkRequest, context: _Context) -> pb.BatchMarkResponse:
        """Stores marks."""
        return pb.BatchMarkResponse(unknown_refs=await self._marks.store(request.marks, _asker()))

    async def MarkAllRead(self, request: pb.MarkAllReadRequest, context: _Context) -> pb.MarkAllReadResponse:
        """Marks everything read that the window lists now."""
        asker = _asker()
        key = core.inbox_of(asker, recipient_id=request.recipient_id, tenant_id="")
        window, counted = await self._counts.read(key)
        if refs := [core.ref_of(row) for row in window.rows if not row.read]:
            mark = notification_pb2.Mark(recipient_key=key, kind=notification_pb2.MARK_KIND_READ, refs=refs)
            await self._marks.store([mark], asker)
            counted = await self._counts.get(key)
        response = pb.MarkAllReadResponse()
        fill_unread(response.unread, counted)
        return response

    async def ReplayInbox(self, request: pb.ReplayInboxRequest, context: _Context) -> pb.ReplayInboxResponse:
        """Returns a page of what changed after a cursor."""
        return await self._replay(request)

    async def BatchReplayInbox(
        self, request: pb.BatchReplayInboxRequest, context: _Context
    ) -> pb.BatchReplayInboxResponse:
        """Returns pages for many sessions, until they are enough for one answer."""
        core.check_replays(len(request.requests))
        response, size = pb.BatchReplayInboxResponse(), 0
        for start in range(0, len(request.requests), _READ_AT_ONCE):
            reads = [self._replay(one) for one in request.requests[start : start + _READ_AT_ONCE]]
            for answer in await asyncio.gather(*reads, return_exceptions=True):
                if isinstance(answer, InvalidArgument):
                    describe(answer, response.results.add().refused)
                    continue
                if isinstance(answer, BaseException):
                    raise answer
                response.results.add(page=answer)
                size += answer.ByteSize()
                if size >= _LARGE_ANSWER:
                    return response
        return response

    async def _replay(self, request: pb.ReplayInboxRequest) -> pb.ReplayInboxResponse:
        core.check_keys([request.recipient_key])
        page_size = replay.page_size_of(request.page_size, replay.REPLAY_PAGE)
        page = replay.read_token(b"R", request.page_token)
        received = core.received_of(request.received_refs)
        cursor = _position(request.cursor) if request.HasField("cursor") else None
        read_us = self._stamper.next()
        cursor_stamp = self._usable(cursor, read_us if page is None else page.read_us, page)
        response = pb.ReplayInboxResponse(reload=cursor_stamp is None)
        if cursor_stamp is not None and page is None:
            known = await self._believe(request.recipient_key)
            if known is not None and replay.is_current(cursor_stamp, known):
                self._finish(response, known, read_us)
                return response
        window, counted = await self._counts.read(request.recipient_key)
        planned = replay.plan_replay(
            window,
            cursor_stamp=cursor_stamp,
            received=received,
            page=page,
            page_size=page_size,
            window_size=self._window_size,
            read_us=read_us,
        )
        await self._fill(response, request.recipient_key, planned.entries)
        if planned.next_page is not None:
            response.next_page_token = replay.write_token(b"R", planned.next_page)
        else:
            self._finish(response, counted, planned.read_us)
        return response

    async def BatchGetHeads(self, request: pb.BatchGetHeadsRequest, context: _Context) -> pb.BatchGetHeadsResponse:
        """Returns the head of many inboxes."""
        core.check_keys(request.recipient_keys)
        response = pb.BatchGetHeadsResponse()
        for head in await self._inbox.heads(request.recipient_keys):
            cursor = response.heads.add(epoch=self._inbox.epoch)
            if head:
                set_micros(cursor.stamp_time, head)
        return response

    def _usable(self, cursor: replay.Position | None, read_us: int, page: replay.Page | None) -> int | None:
        """The stamp to replay from, or None when the whole window must be sent; the first page decides for all."""
        reason = replay.reload_reason(cursor, epoch=self._inbox.epoch, read_us=read_us, keep_days=self._keep_days)
        if page is None and reason is not None:
            self._reloaded(reason)
        elif page is not None and page.reload != (reason is not None):
            raise core.invalid([Violation("page_token", "must come with the cursor of the first page")])
        return None if cursor is None or reason is not None else cursor.stamp

    async def _believe(self, recipient_key: str) -> replay.Count | None:
        self._believed += 1
        if self._believed > _BELIEVED:
            self._believed = 0
            return None
        return await self._counts.known(recipient_key)

    def _finish(self, response: pb.ReplayInboxResponse, counted: replay.Count, read_us: int) -> None:
        response.cursor.epoch = self._inbox.epoch
        set_micros(response.cursor.stamp_time, replay.cursor_after(read_us, margin=self._margin))
        fill_unread(response.unread, counted)
        response.item_count = counted.item_count
        response.checksum = counted.checksum

    async def _fill(self, response: pb.ReplayInboxResponse, key: str, planned: Sequence[replay.ReplayEntry]) -> None:
        bodies = await self._bodies(key, [entry.row for entry in planned if entry.with_body])
        for entry in planned:
            body = bodies.get(entry.row.notification_id)
            if entry.with_body and body is None:
                continue  # trimmed since the window was read; the checksum tells the client
            state = notification_pb2.NOTIFICATION_STATE_HIDDEN if entry.gone else core.state_of(entry.row)
            added = response.entries.add(state=state, ref=core.ref_of(entry.row))
            if body is not None:
                added.notification = body.content
                added.ref.revision = body.revision

    async def _bodies(self, key: str, rows: Sequence[RowState]) -> dict[bytes, Body]:
        if not rows:
            return {}
        bodies = await self._inbox.bodies([RowKey(key, row.notification_id) for row in rows])
        return {row_key.notification_id: body for row_key, body in bodies.items()}


def _asker() -> core.Asker:
    caller = call_context.current().caller
    return core.Asker(caller.role, caller.name, caller.tenant)


def _position(cursor: notification_pb2.Cursor) -> replay.Position:
    return replay.Position(cursor.epoch, micros_of(cursor.stamp_time))
