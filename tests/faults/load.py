"""What goes through a cluster during a run: events of every kind, and people who read what they got.

Some events have an end, some are of a category that one recipient does not want, and now and then another content
comes under an id that is taken. It must not judge, and makes no fault.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final, TypedDict

from heliograph_client.events import PriorityName
from mesh.errors import Failure
from tests.faults.actors import Producer, Screen, now

# What one recipient of each run has muted, before anything is published.
MUTED: Final = "mention"

_PRIORITIES: Final[Sequence[PriorityName]] = ("normal", "normal", "high", "normal", "bulk")
_TTL_S: Final = 1.0
# Whoever decides that an event is over does so by a clock of its own.
_OVER_S: Final = 0.5
# One event in so many has an end, is of the muted category, is followed by a mark, or by another content under its id.
_ENDS, _UNWANTED, _READ, _CLASHES = 10, 7, 5, 20


class Form(TypedDict):
    """What an event is like, beside whom it is for."""

    number: int
    priority: PriorityName
    ordering_key: str
    category: str
    ttl: float | None
    clash: bool


class Load:
    """Events at a steady rate, and marks.

    Args:
        producer: who publishes.
        screens: the devices.
        recipients: whom it is for; the first of them has muted a category.
        muted_since: from when on that surely counts.
        ends: some events have an end.
        marks: people read some of what they got.
        clashes: other contents are sent under ids that are taken.

    Attributes:
        ends: as above; may be changed while it goes.
        unwanted: accepted events that surely are not for one of their recipients.
        failures: of publishes that were refused for what they are, or whose answer was wrong.
    """

    def __init__(
        self,
        producer: Producer,
        screens: Sequence[Screen],
        recipients: Sequence[str],
        *,
        muted_since: float,
        ends: bool = True,
        marks: bool = True,
        clashes: bool = True,
    ) -> None:
        self.ends = ends
        self.unwanted = 0
        self.failures: list[BaseException] = []
        self._muted_since = muted_since
        self._producer = producer
        self._screens = screens
        self._recipients = recipients
        self._marks = marks
        self._clashes = clashes
        self._numbers = itertools.count()
        self._publishing: set[asyncio.Task[str | None]] = set()
        self._over = 0.0

    @property
    def is_over(self) -> bool:
        """Whether everything is answered, and what has an end has come to it."""
        return not self._publishing and now() >= self._over

    @asynccontextmanager
    async def going(self, rate: float, audience: int) -> AsyncIterator[None]:
        """Publishes so many events a second, each to so many recipients, while the context is open."""
        stop = asyncio.Event()
        task = asyncio.create_task(self._publish_regularly(rate, audience, stop), name="load")
        try:
            yield
        finally:
            stop.set()
            await task

    async def _publish_regularly(self, rate: float, audience: int, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        began, first = loop.time(), next(self._numbers)
        for number in itertools.chain([first], self._numbers):
            due = began + (number - first) / rate
            try:
                async with asyncio.timeout_at(due):
                    await stop.wait()
                return
            except TimeoutError:
                self._begin(number, audience)

    def _begin(self, number: int, audience: int) -> None:
        count = len(self._recipients)
        chosen = [self._recipients[(number * audience + index) % count] for index in range(min(audience, count))]
        form = self._form_of(number)
        if form["category"] == MUTED:
            chosen = list(dict.fromkeys([self._recipients[0], *chosen[1:]]))
        is_unwanted = form["category"] == MUTED and now() > self._muted_since
        if form["ttl"] is not None:
            self._over = now() + form["ttl"] + _OVER_S
        task = asyncio.create_task(self._producer.publish(chosen, **form))
        self._publishing.add(task)
        task.add_done_callback(partial(self._end, is_unwanted))
        if self._marks and number % _READ == 0:
            self._read_one(number // _READ)

    def _end(self, is_unwanted: bool, task: asyncio.Task[str | None]) -> None:
        self._publishing.discard(task)
        if task.cancelled():
            return
        failure = task.exception()
        if failure is not None:
            self.failures.append(failure)
        elif task.result() is not None:
            self.unwanted += is_unwanted

    def _form_of(self, number: int) -> Form:
        return Form(
            number=number,
            priority=_PRIORITIES[number % len(_PRIORITIES)],
            ordering_key=f"key-{number % 3}",
            category=MUTED if number % _UNWANTED == 3 else "general",
            ttl=_TTL_S if self.ends and number % _ENDS == 9 else None,
            clash=self._clashes and number % _CLASHES == 11,
        )

    def _read_one(self, number: int) -> None:
        screen = self._screens[number % len(self._screens)]
        lasting = [id_ for id_ in screen.subscriber.inbox_ids if not self._producer.has_end(id_)]
        if lasting:
            # Marks that the SDK has no room for are the application's to repeat; here they are left out.
            with suppress(Failure):
                screen.mark_read(lasting[number % len(lasting)])
