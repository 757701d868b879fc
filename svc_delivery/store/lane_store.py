"""A store of rows together with retry lanes: the follow-ups are there, and the names of suspects.

Must not decide anything: it opens, closes and hands out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from mesh.clock import Clock
from mesh.errors import Failure
from mesh.lanes import is_embedded, lane_stores, open_reader, open_writer, position_migrations
from mesh.sqlite import Writer, file_of
from mesh.stores import require
from svc_delivery.ports import FollowUps, FollowUpWrite, Inbox
from svc_delivery.ports_channels import Steps
from svc_delivery.ports_dead_letters import DeadLetters, Suspects
from svc_delivery.retry_lanes import LANES
from svc_delivery.store.lane_follow_ups import Ends, LaneFollowUps
from svc_delivery.store.lane_inbox import LaneInbox
from svc_delivery.store.lane_suspects import LaneSuspects

# Beside the embedded lanes: how far each was read.
_POSITIONS = "retry-positions.db"
_END_OF_TIME_US = 1 << 62
_MOVED = 500


class Part(msgspec.Struct, frozen=True):
    """One of the stores that delivery's is made of.

    Attributes:
        setting: that chose it.
        url: where it is; holds no secret.
        store: its adapter.
    """

    setting: str
    url: str
    store: object


class RowStore(Protocol):
    """A store of rows, steps and dead letters."""

    @property
    def inbox(self) -> Inbox:
        """The rows."""
        ...

    @property
    def steps(self) -> Steps:
        """The steps map of rows."""
        ...

    @property
    def dead_letters(self) -> DeadLetters:
        """What was given up."""
        ...

    async def open(self) -> None:
        """Opens the store."""
        ...

    async def close(self) -> None:
        """Closes the store; harmless when not open."""
        ...


class LaneStore:
    """Implements `InboxStore`; `open` before use, `close` at the end."""

    def __init__(
        self,
        part: Part,
        rows: RowStore,
        lanes_url: str,
        *,
        data_dir: Path,
        run_dir: Path,
        clock: Clock,
        before: FollowUps | None = None,
        lock_wait: float = 10.0,
    ) -> None:
        """Holds on to its parts.

        Args:
            part: how the store of rows was chosen.
            rows: that store, not open yet.
            lanes_url: as for `mesh.lanes.open_reader`.
            data_dir: where relative paths start.
            run_dir: where doorbells of embedded lanes are.
            clock: for what is due, and ages.
            before: follow-ups beside the rows, from the time before there were lanes; they are moved when it opens.
            lock_wait: seconds to wait for a hand-over of embedded lanes.
        """
        self._part = part
        self._rows = rows
        self._before = before
        self._lanes_url = lanes_url
        self._positions: Writer | None = None
        if is_embedded(lanes_url):
            file = file_of(lanes_url, data_dir) / _POSITIONS
            self._positions = Writer(file, migrations=position_migrations(), lock_wait=lock_wait)
        self._admins = lane_stores(lanes_url, [lane.name for lane in LANES], reads=True)
        self._ends = [
            Ends(
                open_writer(lanes_url, lane.name, data_dir=data_dir, run_dir=run_dir, clock=clock, lock_wait=lock_wait),
                open_reader(
                    lanes_url,
                    lane.name,
                    data_dir=data_dir,
                    run_dir=run_dir,
                    clock=clock,
                    positions=self._positions,
                    lock_wait=lock_wait,
                ),
            )
            for lane in LANES
        ]
        self._follow_ups = LaneFollowUps(lanes=self._ends, letters=rows.dead_letters, clock=clock)
        self._suspects = LaneSuspects([ends.reader for ends in self._ends])
        self._inbox = LaneInbox(rows.inbox, self._follow_ups)
        self._open = contextlib.AsyncExitStack()

    @property
    def inbox(self) -> Inbox:
        """The rows."""
        return self._inbox

    @property
    def follow_ups(self) -> FollowUps:
        """What is to be looked at again."""
        return self._follow_ups

    @property
    def steps(self) -> Steps:
        """The steps map of rows."""
        return self._rows.steps

    @property
    def dead_letters(self) -> DeadLetters:
        """What was given up."""
        return self._rows.dead_letters

    @property
    def suspects(self) -> Suspects:
        """What was worked on when the process died."""
        return self._suspects

    @property
    def parts(self) -> Sequence[Part]:
        """The rows, and the first of the lanes: the others are where it is."""
        return [self._part, Part("follow_ups_url", self._lanes_url, self._ends[0].reader)]

    async def open(self) -> None:
        """Opens the rows, then the lanes; what was opened is closed when one of them cannot be.

        Raises:
            StartError, mesh.sqlite.StoreError: one line: what, where, what to do.
        """
        async with contextlib.AsyncExitStack() as opened:
            await self._rows.open()
            opened.push_async_callback(self._rows.close)
            for admin in self._admins:
                await require(admin)
            if self._positions is not None:
                await self._positions.open()
                opened.push_async_callback(self._positions.close)
            for ends in self._ends:
                for end in (ends.writer, ends.reader):
                    await end.open()
                    opened.push_async_callback(end.close)
            await self._suspects.begin()
            opened.push_async_callback(self._end)
            if self._before is not None:
                await _move(self._before, self._follow_ups)
            self._open = opened.pop_all()

    async def close(self) -> None:
        """Commits what is finished, notes that the end is in order, and closes everything; harmless when not open."""
        await self._open.aclose()

    async def _end(self) -> None:
        await self._follow_ups.commit()
        # A lane that cannot be used keeps the note of a crash: then the next start is careful for nothing.
        with contextlib.suppress(Failure):
            await self._suspects.end()


async def _move(before: FollowUps, lanes: LaneFollowUps) -> None:
    """Moves everything that waits onto the lanes; a crash in between repeats some of it."""
    while records := await before.due(_END_OF_TIME_US, _MOVED):
        await lanes.append([FollowUpWrite(one.due_us, one.record, expire_us=one.expire_us) for one in records])
        await before.finish([one.record_id for one in records])
