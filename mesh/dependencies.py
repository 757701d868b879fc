"""What a process needs from outside, and whether it is there: asked once a second, told to health, metrics and the log.

How an adapter takes part: it has a method `ping` (see `Pinged`), and its service's `main` says

    app.dependencies.watch("request_log", settings.request_log_url, log)
    app.dependencies.on_change(server.set_dependency)

`watch` takes any store: one without `ping` is embedded, cannot go away by itself, and is not watched. The gauge
`heliograph_<service>_dependency_up{dependency="request_log"}` is 1 or 0, gRPC health answers to the name
`dependency/request_log`, and the log has one line `dependency_lost` and one `dependency_back`.

Must not decide what a process does without a dependency, nor end it, nor make it unready: each call says for itself
that it cannot be served, and goes on by itself when the dependency is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec
from structlog.typing import FilteringBoundLogger

from mesh.errors import Failure
from mesh.telemetry import Telemetry

INTERVAL_S = 1.0
# A store that does not answer for so long is gone; it would not serve a call either.
ANSWER_S = 2.0
# One late answer on a busy machine is no loss.
_FAILURES = 2

Told: TypeAlias = Callable[[str, bool], None]


@runtime_checkable
class Pinged(Protocol):
    """An adapter of a store outside the process."""

    async def ping(self) -> None:
        """Asks the engine one cheap question that only a working one answers; an open port is no answer.

        Reconnects by itself. Raises `mesh.errors.Unavailable`, or another failure, with the reason when the engine
        cannot be used. Is cancelled after `ANSWER_S`.
        """
        ...


class _Watched(msgspec.Struct):
    name: str
    where: str
    ping: Callable[[], Awaitable[None]]
    here: bool | None = None
    failures: int = 0
    since: float = 0.0


class Dependencies:
    """Watches what a process needs from outside. One per app; see the module.

    Args:
        telemetry: has the gauge.
        log: the process's logger.
        monotonic: seconds, for how long something was away.
        interval: seconds between two looks.
        answer: seconds that an answer may take.
    """

    def __init__(
        self,
        *,
        telemetry: Telemetry,
        log: FilteringBoundLogger,
        monotonic: Callable[[], float],
        interval: float = INTERVAL_S,
        answer: float = ANSWER_S,
    ) -> None:
        self._gauge = telemetry.dependency_up
        self._log = log
        self._monotonic = monotonic
        self._interval = interval
        self._answer = answer
        self._watched: list[_Watched] = []
        self._told: list[Told] = []

    def watch(self, name: str, where: str, store: object) -> None:
        """Registers a dependency, before the app runs.

        Args:
            name: its setting's, without `_url`: "request_log".
            where: its URL, which holds no secret.
            store: its adapter; nothing happens when that has no `ping`.
        """
        if isinstance(store, Pinged):
            self._watched.append(_Watched(name, where, store.ping))

    def on_change(self, told: Told) -> None:
        """Registers what learns of each loss and return, and of the first look: a name, and whether it is there."""
        self._told.append(told)

    @property
    def watched(self) -> list[str]:
        """The names of what is watched."""
        return [one.name for one in self._watched]

    def gone(self) -> list[str]:
        """Returns the names of what is gone."""
        return [one.name for one in self._watched if one.here is False]

    async def run(self) -> None:
        """Looks until cancelled; the app's own loop."""
        while True:
            await self.look()
            await asyncio.sleep(self._interval)

    async def look(self) -> None:
        """Asks everything once, side by side."""
        await asyncio.gather(*[self._ask(one) for one in self._watched])

    async def _ask(self, one: _Watched) -> None:
        error = await self._failure_of(one)
        if error is None:
            one.failures = 0
            if one.here is not True:
                self._say_here(one)
            return
        one.failures += 1
        if one.here is None or (one.here and one.failures >= _FAILURES):
            one.here, one.since = False, self._monotonic()
            self._log.error("dependency_lost", dependency=one.name, where=one.where, error=error)
            self._tell(one, here=False)

    async def _failure_of(self, one: _Watched) -> str | None:
        scope = asyncio.timeout(self._answer)
        try:
            async with scope:
                await one.ping()
        except Failure as error:
            return error.message
        except Exception as error:
            return f"no answer within {self._answer:g} s" if scope.expired() else repr(error)
        return None

    def _say_here(self, one: _Watched) -> None:
        if one.here is False:
            gone_s = round(self._monotonic() - one.since, 3)
            self._log.warning("dependency_back", dependency=one.name, where=one.where, gone_s=gone_s)
        one.here = True
        self._tell(one, here=True)

    def _tell(self, one: _Watched, *, here: bool) -> None:
        self._gauge.labels(one.name).set(1 if here else 0)
        for told in self._told:
            told(one.name, here)
