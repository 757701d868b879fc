"""The demo's listeners: each one subscriber of the SDK, as an app has it, over WebSocket or gRPC.

Must not judge what arrived: the ledger takes notes.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Literal, TypeAlias

import msgspec

from bench.demo_ledger import Ledger
from heliograph_client.subscriber import Subscriber
from heliograph_client.tls import Tls
from heliograph_client.values import (
    CaughtUp,
    Connected,
    Disconnected,
    MarksConfirmed,
    SubscriberStats,
    Update,
)

_POLL_S = 0.02


Form: TypeAlias = Literal["json", "proto", "grpc"]


class Ways(msgspec.Struct, frozen=True):
    """How the edge proves itself over each transport."""

    tls: Tls
    context: ssl.SSLContext


class Listener:
    """One recipient with one device.

    Attributes:
        name: the recipient.
        token: of the recipient.
        form: of its frames.
        node: the gateway node that holds its session, "" without one.
        ready_time: when its copy of the inbox was last complete; 0.0 while it is not.
        losses: sessions that broke.
    """

    def __init__(self, name: str, *, ledger: Ledger, token: str, url: str, edge: str, ways: Ways, form: Form) -> None:
        """Makes one that does not run yet.

        Args:
            name: the recipient.
            ledger: takes notes.
            token: of the recipient.
            url: where WebSockets go.
            edge: "host:port" where gRPC goes.
            ways: how the edge proves itself.
            form: of the frames.
        """
        self.name = name
        self.form = form
        self.node = ""
        self.ready_time = 0.0
        self.losses = 0
        self._ledger = ledger
        self._url = edge if form == "grpc" else url
        self.token = token
        self._ways = ways
        self._opened: list[Subscriber] = []

    @property
    def stats(self) -> SubscriberStats:
        """What the SDK counted."""
        return total(one.stats for one in self._opened)

    async def run(self) -> None:
        """Takes notifications until it is cancelled; the SDK acks them as they arrive."""
        while True:
            async with self._open() as notifications:
                async for notification in notifications:
                    self._ledger.show(self.name, notification.id)

    async def subscribe(self, topics: Sequence[str]) -> None:
        """Subscribes through its session; every event that is accepted from now on finds it.

        Raises:
            Failure: it is not confirmed.
        """
        await self._opened[-1].subscribe(*topics)

    async def move(self) -> None:
        """Connects anew, as an app that is started again."""
        self.node, self.ready_time = "", 0.0
        await self._opened[-1].close()

    def _open(self) -> Subscriber:
        subscriber = Subscriber(
            self._url,
            token=self.token,
            device_id="demo",
            transport="grpc" if self.form == "grpc" else "websocket",
            encoding="json" if self.form == "json" else "proto",
            tls=self._ways.tls if self.form == "grpc" else None,
            tls_context=None if self.form == "grpc" else self._ways.context,
            on_update=self._note,
            client_name="heliograph demo",
        )
        self._opened.append(subscriber)
        return subscriber

    def _note(self, update: Update) -> None:
        now = time.monotonic()
        match update:
            case Connected(session_id=session_id):
                # A session is named after its node.
                self.node = session_id.rpartition("-")[0]
            case CaughtUp() if not self.ready_time:
                self.ready_time = now
            case Disconnected():
                self.node, self.ready_time = "", 0.0
                self.losses += 1
            case MarksConfirmed(ids=ids):
                self._ledger.ack(self.name, ids, now)
            case _:
                pass


class NotReady(Exception):
    """Some listeners are not connected and caught up in time."""


@asynccontextmanager
async def listening(listeners: Sequence[Listener]) -> AsyncIterator[None]:
    """Lets all listeners run while the context is open; the failure of one ends it."""
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(listener.run(), name=listener.name) for listener in listeners]
        try:
            yield
        finally:
            for one in running:
                one.cancel()
            await asyncio.wait(running)


async def until_ready(listeners: Sequence[Listener], limit: float) -> float:
    """Waits until every listener is connected and has caught up; returns when the last one was.

    Raises:
        NotReady: after so many seconds not all are.
    """
    end = time.monotonic() + limit
    while missing := [listener.name for listener in listeners if not listener.ready_time]:
        if time.monotonic() > end:
            raise NotReady(f"not connected within {limit:g} s: {', '.join(missing)}")
        await asyncio.sleep(_POLL_S)
    return max(listener.ready_time for listener in listeners)


async def spread_out(listeners: Sequence[Listener], nodes: int, limit: float) -> Counter[str]:
    """Waits until every node has sessions, and returns how many each has.

    The edge sends nobody to a node whose last health check was late. Where that left a node without a session, every
    second listener connects again.

    Raises:
        NotReady: after so many seconds a node still has none.
    """
    end = time.monotonic() + limit
    while True:
        await until_ready(listeners, limit)
        found = places(listeners)
        if len(found) >= min(nodes, len(listeners)):
            return found
        if time.monotonic() > end:
            raise NotReady(f"within {limit:g} s only {', '.join(found)} got sessions")
        for listener in listeners[::2]:
            await listener.move()


async def until_lost(expected: Mapping[str, int], listeners: Sequence[Listener], limit: float) -> None:
    """Waits until each of these has lost as many sessions as expected of it.

    Raises:
        NotReady: after so many seconds not all have.
    """
    end = time.monotonic() + limit
    while any(listener.losses < expected[listener.name] for listener in listeners):
        if time.monotonic() > end:
            raise NotReady(f"sessions of the killed node are still open after {limit:g} s")
        await asyncio.sleep(_POLL_S)


def places(listeners: Sequence[Listener]) -> Counter[str]:
    """Counts the sessions on each node."""
    return Counter(listener.node for listener in listeners if listener.node)


def total(counted: Iterable[SubscriberStats]) -> SubscriberStats:
    """Adds up what the SDK counted."""
    found = list(counted)
    names = SubscriberStats.__struct_fields__
    return SubscriberStats(**{name: sum(getattr(one, name) for one in found) for name in names})
