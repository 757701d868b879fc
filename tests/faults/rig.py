"""A run: people with devices and a producer on a real cluster, faults in between, then quiet, and everything is read.

What all of them saw goes to one folder of logs; `checker` judges it. It must not judge, and knows no fault: those are
in `nemesis`.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from heliograph.fanout.v1 import fanout_service_pb2, fanout_service_pb2_grpc
from heliograph_client.events import PriorityName
from tests.faults import history, reading
from tests.faults.actors import NotedSubscriber, Producer, Screen, now, watching
from tests.faults.history import Device, Recorder
from tests.faults.nemesis import Nemesis
from tests.support.apps import Apps
from tests.support.cluster import PRODUCER, TENANT, Cluster
from tests.support.wait import until

SETTLE_LIMIT_S = 60.0
_CONNECT_LIMIT_S = 30.0
_PRIORITIES: Sequence[PriorityName] = ("normal", "normal", "high", "normal", "bulk")


class Run:
    """One run on one cluster; `opened` makes it.

    Attributes:
        cluster: where.
        screens: the devices.
        producer: who publishes.
        nemesis: makes faults.
    """

    def __init__(self, cluster: Cluster, folder: Path, screens: Sequence[Screen], producer: Producer) -> None:
        self.cluster = cluster
        self.folder = folder
        self.screens = screens
        self.producer = producer
        self.nemesis = Nemesis(cluster, Recorder(folder / "nemesis.jsonl"))
        self._screens_of: dict[str, list[Screen]] = defaultdict(list)
        for screen in screens:
            self._screens_of[screen.device.recipient].append(screen)
        self._recipients = list(dict.fromkeys(screen.device.recipient for screen in screens))
        self._system = Recorder(folder / "system.jsonl")
        self._numbers = itertools.count()
        self._publishing: set[asyncio.Task[str | None]] = set()

    def now(self) -> float:
        """The clock of its history."""
        return now()

    # ------------------------------------------------------------ load

    @asynccontextmanager
    async def load(self, *, rate: float, audience: int = 2) -> AsyncIterator[None]:
        """Publishes so many events a second, each to so many recipients, while the context is open."""
        going = asyncio.Event()
        task = asyncio.create_task(self._publish_regularly(rate, audience, going), name="load")
        try:
            yield
        finally:
            going.set()
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
        work = self.producer.publish(
            chosen,
            number=number,
            priority=_PRIORITIES[number % len(_PRIORITIES)],
            ordering_key=f"key-{number % 3}",
        )
        task = asyncio.create_task(work)
        self._publishing.add(task)
        task.add_done_callback(self._publishing.discard)

    async def flows(self, count: int = 10) -> None:
        """Waits until so many more events were accepted and shown to everybody they are for."""
        before = len(self.producer.accepted)
        await until(lambda: len(self.producer.accepted) >= before + count, SETTLE_LIMIT_S, f"{count} more accepted")
        wanted = list(itertools.islice(self.producer.accepted, before, before + count))
        await until(lambda: all(map(self._shown, wanted)), SETTLE_LIMIT_S, f"{count} more events are shown")

    def _shown(self, event_id: str) -> bool:
        recipients = self.producer.accepted[event_id]
        return all(event_id in screen.shown for recipient in recipients for screen in self._screens_of[recipient])

    # ------------------------------------------------------------ the end

    async def settle(self, limit: float = SETTLE_LIMIT_S) -> None:
        """Waits until everything is answered, read and shown, and writes down how long that took."""
        began = now()

        async def quiet() -> bool:
            return (
                not self._publishing
                and all(screen.subscriber.connected and not screen.subscriber.unconfirmed for screen in self.screens)
                and all(map(self._shown, self.producer.accepted))
                and await self._lag() == 0
            )

        try:
            await until(quiet, limit, "all is quiet")
        except AssertionError:
            self._system.add(history.Settled(at=now(), seconds=None, limit=limit))
            return
        self._system.add(history.Settled(at=now(), seconds=now() - began, limit=limit))

    async def read_everything(self) -> None:
        """Reads every inbox, what became of everything accepted, the lanes and the devices."""
        async with self.cluster.connection() as connection:
            await reading.read_inboxes(
                connection, self._recipients, self.producer.accepted, tenant=TENANT, recorder=self._system, clock=now
            )
            await reading.read_aside(connection, recorder=self._system, clock=now)
        for screen in self.screens:
            screen.finish()

    async def _lag(self) -> int:
        async with self.cluster.connection() as connection:
            answer: fanout_service_pb2.GetLagResponse = await connection.call(
                "fanout",
                lambda channel: fanout_service_pb2_grpc.FanoutServiceStub(channel).GetLag,
                fanout_service_pb2.GetLagRequest(),
                reading.OPERATOR,
            )
        return sum(lane.record_count for lane in answer.lanes)


@asynccontextmanager
async def opened(
    cluster: Cluster,
    folder: Path,
    *,
    recipients: int,
    name: str = PRODUCER,
    prefix: str = "r",
    url: Callable[[int], str] | None = None,
    connect: float = _CONNECT_LIMIT_S,
) -> AsyncIterator[Run]:
    """Connects the devices of so many recipients, the third of whom have two, and waits until all have caught up.

    Args:
        cluster: where; everything runs.
        folder: for the logs; empty.
        recipients: how many.
        name: the producer's.
        prefix: of their ids, so that runs on one cluster have recipients of their own.
        url: where the device of a number connects; None: at the nodes in turn, or at the edge.
        connect: seconds in which all must be there.
    """
    secret = secrets.token_bytes(16)
    apps = Apps(cluster)
    url = url or apps.url
    screens = []
    async with AsyncExitStack() as stack:
        for number in range(recipients):
            recipient = f"{prefix}{number}"
            for index in range(2 if number % 3 == 0 else 1):
                device = Device(TENANT, recipient, f"device-{index}")
                recorder = stack.enter_context(Recorder(folder / f"{recipient}-{device.name}.jsonl"))
                screen = Screen(device, secret, recorder)
                screen.subscriber = NotedSubscriber(
                    url(number + index),
                    token=cluster.token(recipient, lifetime=3600.0),
                    device_id=device.name,
                    tls_context=apps.context,
                    on_update=screen.heard,
                )
                screen.subscriber.screen = screen
                await stack.enter_async_context(watching(screen))
                screens.append(screen)
        publisher = await stack.enter_async_context(cluster.publisher())
        noted = stack.enter_context(Recorder(folder / "producer.jsonl"))
        producer = Producer(publisher, tenant=TENANT, name=name, secret=secret, recorder=noted)
        run = Run(cluster, folder, screens, producer)

        def ready() -> bool:
            return all(screen.subscriber.stats.checkpoints for screen in screens)

        await until(ready, connect, "every device is there")
        yield run
