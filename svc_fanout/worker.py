"""Reads one event lane: decodes, resolves audiences, asks about wishes, plans, and dispatches.

Path steps 4 and 5. Events are planned in the order of the lane, many at once; a large audience is handed to the
planner, so that those behind it go on. While prefs does not answer, events whose recipients are known or whose category
is essential go on too, the others are held: unfinished, in memory, and in order, until there are too many. Then the
lane waits. Delivery that is slow or gone closes the window and stops the reading: the lane's lag grows, nothing is
lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from mesh.clock import Clock
from mesh.errors import Failure
from mesh.lanes import Stored
from svc_fanout import audience, core, slices
from svc_fanout.audience import Members
from svc_fanout.batching import batches
from svc_fanout.caution import Caution
from svc_fanout.core import Event
from svc_fanout.flight import Flight, Trace
from svc_fanout.metrics import Metrics
from svc_fanout.planner import Planner
from svc_fanout.ports import Prefs
from svc_fanout.registry import Category
from svc_fanout.rolls import FirstPages, Roll, read_page
from svc_fanout.turns import RECIPIENTS_IN_A_ROW, Turns
from svc_fanout.wishes import Wishes

# Held events may name so many recipients; they are in memory.
LARGEST_HELD_RECIPIENTS = 200_000


class LaneWorker:
    """Works one lane."""

    def __init__(
        self,
        *,
        flight: Flight,
        planner: Planner,
        prefs: Prefs,
        wishes: Wishes,
        categories: Mapping[str, Category],
        clock: Clock,
        metrics: Metrics,
        caution: Caution,
        held_limit: int,
        large_audience: int,
        page_size: int,
        trace: Trace | None,
    ) -> None:
        """Connects the worker.

        Args:
            flight: of the lane.
            planner: plans large audiences.
            prefs: has the subscribers of topics.
            wishes: decide who gets what.
            categories: the registry.
            clock: tells what has expired.
            metrics: counts.
            caution: how many records are read at once, and which may be worked on after a crash.
            held_limit: events that may wait for prefs while others go on.
            large_audience: a larger one is planned into slices.
            page_size: subscribers read at once.
            trace: logs steps of the path; None when that is off.
        """
        self._flight = flight
        self._planner = planner
        self._prefs = prefs
        self._wishes = wishes
        self._categories = categories
        self._clock = clock
        self._metrics = metrics
        self._caution = caution
        self._held_limit = held_limit
        self._large_audience = large_audience
        self._page_size = page_size
        self._trace = trace
        self._held: list[Event] = []
        self._notes: Mapping[int, bytes] = {}

    @property
    def careful(self) -> bool:
        """Whether what the process before was working on is still suspected."""
        return self._caution.suspicious

    async def run(self) -> None:
        """Works until `drain` was called."""
        await self._flight.run(self._work)

    async def drain(self) -> None:
        """Takes no new events, waits for what is in flight, and commits; what is held is read again after the start."""
        await asyncio.gather(self._flight.drain(), self._caution.end())

    async def _work(self, group: asyncio.TaskGroup) -> None:
        self._notes = await self._caution.begin()
        while not self._flight.is_stopping():
            stored: Sequence[Stored] = ()
            room = not self._held_full()
            if room:
                stored = await self._flight.read(self._caution.page)
            elif not self._wishes.answering:
                await self._flight.pause(0)
            # What was read and not begun is read again after the start: its position is not committed.
            if self._flight.is_stopping():
                break
            events = await self._begin(stored, group)
            if self._wishes.answering:
                # In the order of the lane: those that waited first.
                events, self._held = self._held + events, []
            for chunk in core.chunks(events):
                await self._plan(chunk, group)
            if room:
                await self._caution.worked(len(stored))
            self._metrics.held[self._flight.lane].set(len(self._held))
            if not self._held:
                await self._flight.keep_span()
        self._flight.leave([event.position for event in self._held])
        await self._caution.end()

    async def _begin(self, stored: Sequence[Stored], group: asyncio.TaskGroup) -> list[Event]:
        events: list[Event] = []
        turns = Turns()
        for record in stored:
            if not await self._caution.admits(record, group):
                continue
            try:
                event = core.decode(record.position, record.value)
            except Failure as failure:
                await self._flight.pass_by(record, failure)
                continue
            if not self._flight.begin(record, event.envelope.event_id):
                continue
            events.append(event)
            if self._trace is not None:
                self._trace("read", event_id=event.envelope.event_id, lane=self._flight.lane)
            await turns.worked(len(event.recipient_ids))
        return events

    async def _plan(self, events: Sequence[Event], group: asyncio.TaskGroup) -> None:
        """Plans and sends a chunk of events; holds those that nothing can be decided about."""
        marks = [slices.mark_of(self._notes, event) for event in events]
        first_pages = await self._read_topics(
            [event for event, mark in zip(events, marks, strict=True) if mark is None]
        )
        parts: list[tuple[Event, Members]] = []
        held: list[Event] = []
        for event, mark in zip(events, marks, strict=True):
            members = None if mark is not None else await self._members(event, first_pages, group)
            if mark is not None or (members is not None and members.count > self._large_audience):
                self._caution.lasts()
                await self._planner.begin(event, mark, group)
            elif members is None:
                held.append(event)
            else:
                parts.append((event, members))
        now_us = self._now_us()
        decisions = await self._wishes.ask(core.wanted(parts, now_us))
        # Asking takes time: what is over by now is over.
        now_us = max(now_us, self._now_us())
        planned: list[core.Planned] = []
        done: list[int] = []
        turns = Turns()
        for event, members in parts:
            decided = await self._decide(event, members, decisions, now_us, turns)
            if decided is None:
                held.append(event)
                continue
            planned += decided
            done.append(event.position)
            if self._trace is not None:
                self._trace("planned", event_id=event.envelope.event_id, recipient_count=members.count)
        self._held += sorted(held, key=lambda event: event.position)
        for batch in batches(planned):
            await self._flight.send(batch, group)
        self._flight.close(done)

    async def _decide(
        self, event: Event, members: Members, decisions: core.Decisions, now_us: int, turns: Turns
    ) -> list[core.Planned] | None:
        """Decides about an audience, a piece at a time; None when somebody's wishes are not known."""
        fallback = None if self._wishes.answering else self._fallback(event)
        planned: list[core.Planned] = []
        for piece in audience.pieces(members, RECIPIENTS_IN_A_ROW):
            one = core.decide(event, piece, decisions, now_us, fallback)
            if one is None:
                return None
            planned.append(one)
            await turns.worked(piece.count)
        return planned

    async def _read_topics(self, events: Sequence[Event]) -> FirstPages:
        """Reads the first page of every topic of a chunk, each once: most topics have no second one."""
        topics = list(dict.fromkeys((one.envelope.tenant_id, topic_id) for one in events for topic_id in one.topic_ids))
        if not topics or not self._wishes.answering:
            return {}
        pages = await asyncio.gather(
            *(read_page(self._prefs, tenant_id, topic_id, "", self._page_size) for tenant_id, topic_id in topics),
            return_exceptions=True,
        )
        found: dict[tuple[str, str], Sequence[str]] = {}
        for topic, page in zip(topics, pages, strict=True):
            if isinstance(page, Failure):
                self._wishes.lose(page)
            elif isinstance(page, BaseException):
                raise page
            else:
                found[topic] = page
        return found

    async def _members(self, event: Event, first_pages: FirstPages, group: asyncio.TaskGroup) -> Members | None:
        """Returns an audience, or more than a small one may have of a large one; None while it cannot be read."""
        if not event.topic_ids:
            return audience.named(event.recipient_ids, event.excluded)
        if not self._wishes.answering:
            return None
        roll = Roll(event, prefs=self._prefs, group=group, page_size=self._page_size, first_pages=first_pages)
        parts: list[Members] = []
        count = 0
        try:
            while count <= self._large_audience and (part := await roll.next()) is not None:
                parts.append(part)
                count += part.count
        except Failure as failure:
            self._wishes.lose(failure)
            return None
        finally:
            roll.close()
        return audience.joined(parts)

    def _fallback(self, event: Event) -> core.Decision | None:
        return core.fallback_of(self._categories, event.envelope.category)

    def _held_full(self) -> bool:
        if len(self._held) >= self._held_limit or (self._held and self._flight.span_is_full):
            return True
        return sum(len(event.recipient_ids) for event in self._held) >= LARGEST_HELD_RECIPIENTS

    def _now_us(self) -> int:
        return round(self._clock.wall() * 1_000_000)
