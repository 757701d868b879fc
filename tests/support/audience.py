"""Screens that listen with the SDK and a load that goes on while faults are made, both written down in one ledger.

A producer here behaves as one should: each event is frozen before the first try and published again under its id until
it is answered. Must not judge what came of it: the ledger does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from heliograph_client import PreparedEvent, Publisher, Subscriber
from heliograph_client.values import Connected, Disconnected, Update
from mesh.errors import DeadlineExceeded, Failure, ResourceExhausted
from tests.support.cluster import Cluster
from tests.support.ledger import Ledger
from tests.support.wait import until

CONNECT_LIMIT_S = 20.0
# An event is given up after so long: a producer has to be answered long before.
_PUBLISH_LIMIT_S = 45.0
_IN_FLIGHT = 200


class Screen:
    """One device of one recipient, which shows what the SDK hands over.

    Attributes:
        recipient: whose it is.
        name: the device.
        subscriber: the SDK's.
        sessions: the id of each session it had, in order.
        endings: why each of them ended.
    """

    def __init__(self, recipient: str, name: str, ledger: Ledger) -> None:
        self.recipient = recipient
        self.sessions: list[str] = []
        self.endings: list[str] = []
        self.shown = 0
        self.name = name
        self._ledger = ledger
        self.subscriber: Subscriber

    @property
    def node_id(self) -> str:
        """The node of the newest session."""
        return self.sessions[-1].rpartition("-")[0]

    @property
    def caught_up(self) -> bool:
        """It has a session, and that has had a checkpoint."""
        return self.subscriber.connected and self.subscriber.stats.checkpoints >= len(self.sessions) > 0

    def heard(self, update: Update) -> None:
        """Takes what the SDK says beside notifications."""
        if isinstance(update, Connected):
            self.sessions.append(update.session_id)
        elif isinstance(update, Disconnected):
            self.endings.append(update.reason)

    async def watch(self) -> None:
        """Shows what comes, until the subscriber is closed."""
        async for notification in self.subscriber:
            self.shown += 1
            self._ledger.show(self.recipient, self.name, notification.id)
            self._ledger.count_duplicates(self.recipient, self.name, self.subscriber.stats.duplicates_on_wire)


class Audience:
    """The screens of a scenario; `audience` opens them.

    Attributes:
        screens: in the order of opening.
    """

    def __init__(self, cluster: Cluster, ledger: Ledger, stack: AsyncExitStack) -> None:
        self.screens: list[Screen] = []
        self._cluster = cluster
        self._ledger = ledger
        self._stack = stack
        self._watching: list[asyncio.Task[None]] = []

    @property
    def nodes(self) -> set[str]:
        """The nodes that hold the newest sessions."""
        return {screen.node_id for screen in self.screens}

    @property
    def caught_up(self) -> bool:
        """Every screen has a session with a checkpoint."""
        return all(screen.caught_up for screen in self.screens)

    async def open(self, recipient: str, name: str, index: int) -> Screen:
        """Opens one screen, at a node of this index where the edge does not choose."""
        cluster, screen = self._cluster, Screen(recipient, name, self._ledger)
        node = cluster.node(index) if cluster.shape == "processes" else ""
        subscriber = cluster.subscriber(recipient, device_id=name, node=node, on_update=screen.heard)
        screen.subscriber = await self._stack.enter_async_context(subscriber)
        await until(lambda: screen.caught_up, CONNECT_LIMIT_S, f"{recipient}/{name} is there")
        return screen

    def keep(self, screen: Screen) -> None:
        """Counts on a screen from now on."""
        self.screens.append(screen)
        self._ledger.open(screen.recipient, screen.name)
        self._watching.append(asyncio.create_task(screen.watch()))

    async def spread(self) -> None:
        """Opens further screens until there is one on every node: the edge chooses as it likes."""
        count, wanted = 0, {self._cluster.node(0), self._cluster.node(1)}

        async def covered() -> bool:
            nonlocal count
            if self.nodes < wanted:
                count += 1
                screen = await self.open(self.screens[0].recipient, f"spare-{count}", 0)
                if screen.node_id in self.nodes:
                    await screen.subscriber.close()
                else:
                    self.keep(screen)
            return self.nodes == wanted

        await until(covered, CONNECT_LIMIT_S, "there are screens on every node")

    async def stop(self) -> None:
        """Watches no more; a screen that failed is a failure of the scenario."""
        for task in self._watching:
            task.cancel()
        results = await asyncio.gather(*self._watching, return_exceptions=True)
        assert [result for result in results if isinstance(result, Exception)] == []


@asynccontextmanager
async def audience(cluster: Cluster, ledger: Ledger, places: Mapping[str, int]) -> AsyncIterator[Audience]:
    """Opens one screen for each recipient, so that there are some on both nodes, and waits until all have caught up.

    Args:
        cluster: where.
        ledger: where everything is written down.
        places: recipient → index of its gateway node; behind the edge, the edge chooses.
    """
    async with AsyncExitStack() as stack:
        made = Audience(cluster, ledger, stack)
        opened = await asyncio.gather(*(made.open(recipient, "phone", index) for recipient, index in places.items()))
        for screen in opened:
            made.keep(screen)
        try:
            await made.spread()
            yield made
        finally:
            await made.stop()


class Load:
    """Events at a steady pace, each to two recipients in turn.

    Attributes:
        ledger: what was answered OK.
        refused: failures that another try does not cure; there must be none.
        asked: events whose publishing has begun.
    """

    def __init__(self, publisher: Publisher, ledger: Ledger, recipients: Sequence[str], rate: float) -> None:
        self.ledger = ledger
        self.refused: list[Failure] = []
        self.asked = 0
        self._publisher = publisher
        self._recipients = list(recipients)
        self._rate = rate
        self._going = True
        self._flying: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Publishes until told to stop; a slow answer delays nobody else's event."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while self._going:
            due = began + self.asked / self._rate
            await until(lambda due=due: loop.time() >= due or not self._going, 60.0, "the next event is due")  # type: ignore[misc] # a default's type is not inferred
            await until(lambda: len(self._flying) < _IN_FLIGHT, 60.0, "an answer has come")
            task = asyncio.create_task(self._publish(self.asked))
            self._flying.add(task)
            task.add_done_callback(self._flying.discard)
            self.asked += 1

    async def finish(self) -> None:
        """Begins no more events and waits for the answers to those that were begun."""
        self._going = False
        await until(lambda: not self._flying, _PUBLISH_LIMIT_S + 5.0, "every event is answered")

    async def flows(self, count: int = 20) -> None:
        """Waits until so many more events were accepted, and shown to everybody whom they are for."""
        before = len(self.ledger.accepted)
        await until(lambda: len(self.ledger.accepted) >= before + count, 30.0, f"{count} more events are accepted")
        some = list(self.ledger.accepted)[before : before + count]
        await until(lambda: all(map(self.ledger.reached, some)), 30.0, f"{count} more events are shown")

    async def _publish(self, number: int) -> None:
        count = len(self._recipients)
        recipients = sorted({self._recipients[number % count], self._recipients[(number * 3 + 1) % count]})
        prepared = self._publisher.prepare(category="general", to=recipients, title=f"event {number}")
        answer = await self._until_answered(prepared)
        if answer is not None:
            self.ledger.publish(answer, recipients)

    async def _until_answered(self, prepared: PreparedEvent) -> str | None:
        try:
            async with asyncio.timeout(_PUBLISH_LIMIT_S):
                while True:
                    try:
                        return (await self._publisher.publish(prepared)).event_id
                    except Failure as failure:
                        if not _is_cured_by_time(failure):
                            self.refused.append(failure)
                            return None
        except TimeoutError:
            self.refused.append(Failure(f"not answered within {_PUBLISH_LIMIT_S:g} s", reason=""))
            return None


@asynccontextmanager
async def load(
    cluster: Cluster, ledger: Ledger, recipients: Sequence[str], *, rate: float = 20.0
) -> AsyncIterator[Load]:
    """Publishes while the context is open; leaving it waits until everything is answered."""
    async with cluster.publisher() as publisher:
        made = Load(publisher, ledger, recipients, rate)
        running = asyncio.create_task(made.run())
        try:
            yield made
            await made.finish()
        finally:
            running.cancel()
            (outcome,) = await asyncio.gather(running, return_exceptions=True)
        assert not isinstance(outcome, Exception), outcome
        assert made.refused == [], made.refused


def _is_cured_by_time(failure: Failure) -> bool:
    """Says whether the same request may be accepted later: on a busy machine a publish takes its time, or is shed."""
    late = isinstance(failure, (DeadlineExceeded, ResourceExhausted))
    return failure.retriable or late or failure.reason == "REQUEST_PENDING"
