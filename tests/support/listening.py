"""A subscriber of the SDK with what it told, on a clock that a test steps. It must not follow rules."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Literal

import pytest

from heliograph_client import (
    CursorStore,
    Disconnected,
    Failure,
    Notification,
    Subscriber,
    TokenSource,
    Update,
)
from tests.support.stepped_clock import SteppedClock
from tests.support.wait import until


class Listener:
    """A subscriber with what it told."""

    def __init__(
        self,
        url: str,
        *,
        token: TokenSource = "token",
        encoding: Literal["proto", "json"] = "proto",
        store: CursorStore | None = None,
        auto_ack: bool = True,
        queue_limit: int = 1_000,
    ) -> None:
        self.clock = SteppedClock()
        self.updates: list[Update] = []
        self._ends = 0
        self.subscriber = Subscriber(
            url,
            token=token,
            device_id="laptop",
            encoding=encoding,
            store=store,
            auto_ack=auto_ack,
            queue_limit=queue_limit,
            on_update=self.updates.append,
            clock=self.clock,
            random=lambda: 0.5,
        )

    async def titles(self, count: int) -> list[str]:
        """The next notifications."""
        return [(await self.next()).title for _ in range(count)]

    async def next(self) -> Notification:
        """The next notification."""
        async with asyncio.timeout(5):
            return await anext(self.subscriber)

    async def next_wait(self) -> float:
        """The wait before the next connection, which is then over."""
        self._ends += 1
        await until(lambda: len(self.told(Disconnected)) >= self._ends)
        wait = self.told(Disconnected)[self._ends - 1].retry_delay
        self.clock.advance(wait)
        return wait

    async def pass_time(self, seconds: float) -> None:
        """Lets time pass from timer to timer."""
        while seconds > 0:
            await until(lambda: bool(self.clock.waiting))
            step = min(self.clock.waiting[0], seconds)
            self.clock.advance(step)
            seconds -= step

    def told(self, kind: type[Disconnected]) -> list[Disconnected]:
        """The ends of connections so far."""
        return [update for update in self.updates if isinstance(update, kind)]

    async def failure(self) -> BaseException:
        """What the iteration raises."""
        with pytest.raises(Failure) as raised:
            await self.next()
        return raised.value


def token_of(subject: str, expires: float | None = None) -> str:
    """A token that nobody signed."""
    claims = {"sub": subject, "tenant": "acme"} | ({} if expires is None else {"exp": expires})
    head, body = ({"alg": "none"}, claims)
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in (head, body)]
    return ".".join([*parts, ""])
