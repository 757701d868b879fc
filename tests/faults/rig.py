"""A run: people with devices and a producer on a real cluster, faults in between, then quiet, and everything is read.

What all of them saw goes to one folder of logs; `checker` judges it. It must not judge, and knows no fault: those are
in `nemesis`.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec

from heliograph.delivery.v1 import dead_letter_service_pb2, dead_letter_service_pb2_grpc
from heliograph.prefs.v1 import prefs_service_pb2, prefs_service_pb2_grpc
from heliograph_cli.connection import Actor, Connection
from mesh.channel import Channels
from tests.faults import history, reading
from tests.faults.actors import LateAcks, NotedSubscriber, Producer, Screen, now, watching
from tests.faults.counters import count_of
from tests.faults.history import Device, Recorder
from tests.faults.limits import Limits
from tests.faults.load import MUTED, Load
from tests.faults.nemesis import Nemesis
from tests.faults.owed import Owed
from tests.support.apps import Apps
from tests.support.cluster import PRODUCER, TENANT, Cluster
from tests.support.wait import until

SETTLE_LIMIT_S = 60.0
_CONNECT_LIMIT_S = 30.0
# A lease and one renewal: so long presence may keep what is gone, or lack what it forgot.
_PRESENCE_LIMIT_S = 25.0
# So many notifications a late device acks late.
_LATE_ACKS = 20
_SKIPPED = "heliograph_ingest_skipped_requests_total"


class Habits(msgspec.Struct, frozen=True):
    """What the load of a run has beside events.

    Attributes:
        ends: some events have an end.
        marks: people read some of what they got.
        clashes: other contents come under ids that are taken.
        late: a further device acks its first notifications so many seconds late; 0: there is none.
    """

    ends: bool = True
    marks: bool = True
    clashes: bool = True
    late: float = 0.0


class Run:
    """One run on one cluster; `opened` makes it.

    Attributes:
        cluster: where.
        screens: the devices.
        producer: who publishes.
        load: what is published, and read.
        nemesis: makes faults.
    """

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        screens: Sequence[Screen],
        producer: Producer,
        habits: Habits,
        muted_since: float,
    ) -> None:
        self.cluster = cluster
        self.folder = folder
        self.screens = screens
        self.producer = producer
        self.nemesis = Nemesis(cluster, Recorder(folder / "nemesis.jsonl"))
        self._recipients = list(dict.fromkeys(screen.device.recipient for screen in screens))
        self._owed = Owed(producer, screens, muted=self._recipients[0])
        self.load = Load(
            producer,
            screens,
            self._recipients,
            muted_since=muted_since,
            ends=habits.ends,
            marks=habits.marks,
            clashes=habits.clashes,
        )
        self._system = Recorder(folder / "system.jsonl")
        # What the cluster's earlier runs have put aside is none of this one's.
        self._began = time.time()
        # When a letter was first sent again.
        self._redriven: dict[str, float] = {}

    def now(self) -> float:
        """The clock of its history."""
        return now()

    # ------------------------------------------------------------ what is there

    async def flows(self, count: int = 10) -> None:
        """Waits until so many more events were accepted and shown to everybody they are for."""
        before = len(self.producer.accepted)
        await until(lambda: len(self.producer.accepted) >= before + count, SETTLE_LIMIT_S, f"{count} more accepted")
        wanted = list(itertools.islice(self.producer.accepted, before, before + count))
        await until(lambda: all(map(self._owed.is_shown, wanted)), SETTLE_LIMIT_S, f"{count} more events are shown")

    async def keeps_wishes(self) -> None:
        """Waits until an event was accepted that is surely not for one of its recipients."""
        await until(lambda: self.load.unwanted > 0, SETTLE_LIMIT_S, "an event that somebody does not want")

    # ------------------------------------------------------------ what was given up

    async def has_letters(self) -> bool:
        """Whether anything of its people's was given up."""
        async with self.cluster.connection() as connection:
            return bool(await self._read_letters(connection, self._redriven.get, left=False))

    async def redrive(self) -> int:
        """Sends the dead letters of its people on their way again, as an operator does; returns how many go."""
        async with self.cluster.connection() as connection:
            began = now()
            letter_ids = await self._read_letters(
                connection, lambda letter_id: self._redriven.get(letter_id, began), left=False
            )
            self._redriven |= {letter_id: began for letter_id in letter_ids if letter_id not in self._redriven}
            if not letter_ids:
                return 0
            answer: dead_letter_service_pb2.RedriveDeadLettersResponse = await connection.call(
                "delivery",
                lambda channel: dead_letter_service_pb2_grpc.DeadLetterServiceStub(channel).RedriveDeadLetters,
                dead_letter_service_pb2.RedriveDeadLettersRequest(dead_letter_ids=letter_ids),
                reading.OPERATOR,
            )
            return answer.redriven_count

    async def _read_letters(
        self, connection: Connection, redriven: Callable[[str], float | None], *, left: bool = True
    ) -> list[str]:
        return await reading.read_letters(
            connection,
            self._recipients,
            tenant=TENANT,
            recorder=self._system,
            clock=now,
            redriven=redriven,
            left=left,
        )

    # ------------------------------------------------------------ the end

    async def settle(self, limit: float = SETTLE_LIMIT_S) -> None:
        """Waits until everything is answered, read and shown, and writes down how long that took."""
        began = now()

        async def quiet() -> bool:
            return (
                self.load.is_over
                and all(map(_is_at_rest, self.screens))
                and all(map(self._owed.is_shown, self.producer.accepted))
                and all(map(_agree, self._owed.screens_of.values()))
                and await self._lag() == 0
            )

        try:
            await until(quiet, limit, "all is quiet")
        except AssertionError:
            self._system.add(history.Settled(at=now(), seconds=None, limit=limit))
            return
        self._system.add(history.Settled(at=now(), seconds=now() - began, limit=limit))

    async def read_everything(self) -> None:
        """Reads every inbox, what became of everything accepted, the lanes, presence and the devices."""
        async with self.cluster.connection() as connection:
            await reading.read_inboxes(
                connection,
                self._recipients,
                self.producer.accepted,
                tenant=TENANT,
                recorder=self._system,
                clock=now,
                may_be_gone=self._owed.may_be_gone,
            )
            await reading.read_aside(connection, recorder=self._system, clock=now, since=self._began)
            await self._read_letters(connection, self._redriven.get)
            await reading.read_lanes(connection, recorder=self._system, clock=now)
        await self._read_registry()
        self._tell_missing()
        for screen in self.screens:
            screen.finish()

    def _tell_missing(self) -> None:
        """Writes down what a device has not shown by now, though nothing pushed it out: for its people it is lost."""
        for event_id, recipient, names in self._owed.missing():
            self._system.add(
                history.Terminal(
                    at=now(),
                    tenant=TENANT,
                    recipient=recipient,
                    notification_id=event_id,
                    state=f"not shown on {names}",
                )
            )

    async def _read_registry(self) -> None:
        """Compares presence with the devices until both say the same, or presence has had its time."""
        channels = Channels(
            service="delivery",
            process="delivery",
            run_dir=Path(self.cluster.running.run_dir),
            direct=self.cluster.running.direct,
            trust_domain=self.cluster.running.trust_domain,
        )
        found: list[history.Registry] = []

        async def is_true() -> bool:
            found.append(await reading.registry(channels, self.screens, clock=now))
            return found[-1].by_presence == found[-1].by_sockets

        try:
            with suppress(AssertionError):
                await until(is_true, _PRESENCE_LIMIT_S, "presence knows the sockets")
        finally:
            await channels.close()
        self._system.add(found[-1])

    async def _lag(self) -> int:
        async with self.cluster.connection() as connection:
            return sum(lane.record_count for lane in await reading.lanes(connection))


def _is_at_rest(screen: Screen) -> bool:
    owes = screen.late is not None and screen.late.open
    return screen.subscriber.connected and not screen.subscriber.unconfirmed and not owes


def _agree(screens: Sequence[Screen]) -> bool:
    """Whether all devices of a recipient have the same list and count."""
    return len({(tuple(one.subscriber.inbox_ids), one.subscriber.unread) for one in screens}) == 1


async def _mute(connection: Connection, recipient: str, recorder: Recorder) -> float:
    """Mutes one category for a recipient, and writes that down; returns from when on it surely counts."""
    wish = prefs_service_pb2.Preferences(mutes=[prefs_service_pb2.Mute(category=MUTED)])
    recorder.add(
        history.WishInvoke(at=now(), operation="wish-1", tenant=TENANT, recipient=recipient, category=MUTED, muted=True)
    )
    await connection.call(
        "prefs",
        lambda channel: prefs_service_pb2_grpc.PrefsServiceStub(channel).UpdatePreferences,
        prefs_service_pb2.UpdatePreferencesRequest(preferences=wish),
        Actor("recipient", recipient, TENANT),
    )
    stored = history.WishOk(at=now(), operation="wish-1")
    recorder.add(stored)
    return stored.at + Limits().wish


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
    habits: Habits | None = None,
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
        habits: what the load has; None: everything but a late device.
    """
    habits = habits or Habits()
    secret = secrets.token_bytes(16)
    apps = Apps(cluster)
    url = url or apps.url
    screens: list[Screen] = []
    async with AsyncExitStack() as stack:
        people = stack.enter_context(Recorder(folder / "people.jsonl"))
        connection = await stack.enter_async_context(cluster.connection())
        muted_since = await _mute(connection, f"{prefix}0", people)

        async def join(number: int, device_name: str, node: int, late: LateAcks | None = None) -> None:
            device = Device(TENANT, f"{prefix}{number}", device_name)
            recorder = stack.enter_context(Recorder(folder / f"{device.recipient}-{device.name}.jsonl"))
            screen = Screen(device, secret, recorder)
            screen.late = late
            screen.subscriber = NotedSubscriber(
                url(node),
                token=cluster.token(device.recipient, lifetime=3600.0),
                device_id=device.name,
                tls_context=apps.context,
                on_update=screen.heard,
                auto_ack=late is None,
            )
            screen.subscriber.screen = screen
            await stack.enter_async_context(watching(screen))
            screens.append(screen)

        for number in range(recipients):
            for index in range(2 if number % 3 == 0 else 1):
                await join(number, f"device-{index}", number + index)
        if habits.late:
            await join(0, "late", 0, LateAcks(habits.late, _LATE_ACKS))
        publisher = await stack.enter_async_context(cluster.publisher())
        noted = stack.enter_context(Recorder(folder / "producer.jsonl"))
        producer = Producer(
            publisher,
            tenant=TENANT,
            name=name,
            secret=secret,
            recorder=noted,
            forgotten=partial(count_of, cluster, "ingest", _SKIPPED),
        )
        run = Run(cluster, folder, screens, producer, habits, muted_since)

        def ready() -> bool:
            return all(screen.subscriber.stats.checkpoints for screen in screens)

        await until(ready, connect, "every device is there")
        yield run
