"""One simulated run: people and a producer on a cluster, what the seed says goes wrong, then quiet and judgement.

It must not decide what is right: `tests.faults.checker` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from heliograph.prefs.v1 import prefs_service_pb2, prefs_service_pb2_grpc
from heliograph_cli.connection import Actor
from heliograph_client.cursor_store import MemoryCursorStore
from heliograph_client.events import PriorityName
from mesh.errors import Failure
from tests.faults import history
from tests.faults.actors import Producer, Screen
from tests.faults.checker import Plan, Verdict, check
from tests.faults.history import Recorder
from tests.faults.limits import Limits
from tests.simulation import people
from tests.simulation.channel import Provider
from tests.simulation.dump import Dump
from tests.simulation.loop import VirtualLoop
from tests.simulation.nemesis import Nemesis
from tests.simulation.people import PRODUCER, TENANT, Calls
from tests.simulation.reader import Reader
from tests.simulation.script import TOPIC, Act, Script
from tests.simulation.wiring import LOGS, NODES, SERVICES, Cluster
from tests.simulation.world import WALL_BASE_S, Host, World

_SETTLE_LIMIT_S = 200.0
_REDRIVE_PAUSE_S = 3.0
# A session's first round comes after half an interval to one and a half, further ones after a fifth less or more.
_LATEST_ROUND = 1.5
# What can be muted; the other category always goes out.
_MUTED = "mention"
_CATEGORIES = ("general", _MUTED)
_PRIORITIES: Sequence[PriorityName] = ("high", "normal", "normal", "bulk")


class Outcome(msgspec.Struct, frozen=True):
    """What a run came to.

    Attributes:
        seed: of the run.
        script: what was done.
        verdict: the checker's.
        seconds: virtual seconds.
        visited: hooks passed.
        crashed: hooks at which a process died.
        rows: how many faults of each row of the catalogue have shown evidence.
        disagreed: reads of two replicas that had different cells.
        late: requests that arrived though their callers had given them up.
        digest: of the whole history: the same seed gives the same one.
        settled: seconds until all was quiet after the last fault; None: it never was.
        logs: what the services logged.
        broken: what ended unexpectedly on a living machine; there must be nothing.
    """

    seed: int
    script: Script
    verdict: Verdict
    seconds: float
    visited: Mapping[str, int]
    crashed: Mapping[str, int]
    rows: Mapping[str, int]
    disagreed: int
    late: int
    digest: str
    settled: float | None
    logs: Sequence[str]
    broken: Sequence[str]


def run(script: Script, seed: int) -> Outcome:
    """Runs a script with a seed, which makes every choice that the script leaves open; returns what it came to."""
    folder = Path(tempfile.mkdtemp(prefix="sim-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    loop = VirtualLoop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(_Run(loop, folder, script, seed).run())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
        shutil.rmtree(folder, ignore_errors=True)


class _Run:
    def __init__(self, loop: VirtualLoop, folder: Path, script: Script, seed: int) -> None:
        self._loop = loop
        self._script = script
        self._seed = seed
        self._world = World(loop, seed)
        self._folder = folder
        self._logs = folder / "history"
        self._logs.mkdir()
        skews = {name: self._world.random.uniform(-script.skew, script.skew) for name in SERVICES}
        # The clock that delivery's may be S/2 away from, and so two deliveries S from each other.
        skews["presence"] = 0.0
        self._screens: list[Screen] = []
        self._recorders: list[Recorder] = []
        self._provider = Provider(self._world, self._recorder("channel")) if script.channel else None
        self._cluster = Cluster(self._world, folder, skews, script, self._provider)
        self._recipients = [f"r{number}" for number in range(script.recipients)]
        self._subscribers = [f"r{number}" for number in script.subscribers]
        self._secret = self._world.random.randbytes(16)
        self._system = self._recorder("system")
        rounds = script.round * _LATEST_ROUND + 5.0
        self._nemesis = Nemesis(self._world, self._cluster, folder, self._recorder("nemesis"), rounds)
        self._reader = Reader(self._cluster, self._system)
        self._dump = Dump(
            folder / "data",
            self._cluster.ring if script.store == "replicas" else None,
            {TOPIC: self._subscribers},
            lambda: round((WALL_BASE_S + loop.time()) * 1_000_000),
        )
        # Wishes are looked for once a second; while prefs cannot be asked, what is known counts for a minute.
        self._limits = Limits(wish=3.0 if script.is_calm else 62.0, clock=script.skew)
        # What a device keeps while its app does not run.
        self._stores: dict[str, MemoryCursorStore] = {}
        self._watching: dict[str, asyncio.Task[Any]] = {}
        self._opened: dict[str, asyncio.Event] = {}
        self._work: set[asyncio.Task[object]] = set()
        # What everybody it is for must see: event id → recipients.
        self._due: dict[str, Sequence[str]] = {}
        # Recipient and event.
        self._marked: set[tuple[str, str]] = set()
        # When the last event that has an end is over.
        self._expired = 0.0

    async def run(self) -> Outcome:
        if self._provider is not None:
            self._system.add(history.ChannelOpened(at=self._loop.time()))
        for host in [self._cluster.start(name) for name in SERVICES]:
            await self._cluster.serving(host)
        self._cluster.network.late = self._script.late
        self._world.on_crash = self._died(self._world.on_crash)
        await self._reader.on_its_machine(people.subscribe(self._cluster, TOPIC, self._subscribers))
        self._connect_everybody()
        producer = await self._open_producer()
        await asyncio.sleep(2.0)
        for act in self._script.acts:
            self._spawn(self._at(act, producer))
        await asyncio.sleep(self._script.length)
        self._nemesis.heal()
        healed = self._loop.time()
        settled = await self._settle(producer, healed)
        # Around its very end the clocks do not agree whether an event is over: that moment is let pass.
        await asyncio.sleep(max(0.0, self._expired - self._loop.time()))
        # Every session begins anew: what faults have cost a device comes with its next replay.
        for screen in self._screens:
            for node in NODES:
                self._cluster.network.reset(_name_of(screen), node)
        await asyncio.sleep(self._limits.receive + 1.0)
        try:
            await self._reader.read_everything(self._recipients, producer.accepted, self._screens)
        except Failure as failure:
            self._world.broken.append(f"what there is in the end could not be read: {failure.message}")
        self._note_positions()
        for recorder in self._recorders:
            recorder.close()
        paths = sorted(self._logs.glob("*.jsonl"))
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]
        verdict = check(history.read(paths), Plan(sessions=len(self._screens)), self._limits)
        outcome = Outcome(
            seed=self._seed,
            script=self._script,
            verdict=verdict,
            seconds=self._loop.time(),
            visited=dict(self._world.visited),
            crashed=dict(self._world.crashed),
            rows=dict(self._nemesis.rows),
            disagreed=self._cluster.ring.disagreed,
            late=self._cluster.network.arrived_late,
            digest=digest,
            settled=settled,
            logs=list(LOGS.lines) if verdict.state != "valid" else (),
            broken=list(self._world.broken),
        )
        await self._end()
        return outcome

    # ------------------------------------------------------------ people

    def _recorder(self, name: str) -> Recorder:
        recorder = Recorder(self._logs / f"{name}.jsonl")
        self._recorders.append(recorder)
        return recorder

    def _connect_everybody(self) -> None:
        for number in range(self._script.recipients):
            for index in range(2 if number == 0 else 1):
                recipient = f"r{number}"
                recorder = self._recorder(f"{recipient}-{index}")
                screen = people.screen_of(recipient, index, self._secret, recorder, self._loop.time)
                self._screens.append(screen)
                self._world.boot(_name_of(screen))
                self._connect(screen)

    def _connect(self, screen: Screen) -> None:
        host = self._world.hosts[_name_of(screen)]
        opened = self._opened[host.name] = asyncio.Event()
        watch = self._watch(host, screen, opened)
        self._watching[host.name] = self._world.start(host, watch, f"watch {host.name}")

    async def _watch(self, host: Host, screen: Screen, opened: asyncio.Event) -> None:
        store = self._stores.setdefault(host.name, MemoryCursorStore())
        async with people.subscriber(self._cluster, host, screen, store):
            opened.set()
            await screen.watch()

    async def _open_producer(self) -> Producer:
        host = self._world.boot("producer")
        opened: asyncio.Future[Producer] = self._loop.create_future()

        async def serve() -> None:
            async with people.publisher(self._cluster, host) as publisher:
                opened.set_result(
                    Producer(
                        publisher,
                        tenant=TENANT,
                        name=PRODUCER,
                        secret=self._secret,
                        recorder=self._recorder("producer"),
                        clock=self._loop.time,
                    )
                )
                await asyncio.Event().wait()

        self._producing = host
        self._world.start(host, serve())
        return await opened

    # ------------------------------------------------------------ acts

    def _spawn(self, coroutine: Coroutine[Any, Any, object], host: Host | None = None) -> None:
        task: asyncio.Task[object] = (
            self._loop.create_task(coroutine, context=contextvars.Context())
            if host is None
            else self._world.start(host, coroutine)
        )
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _at(self, act: Act, producer: Producer) -> None:
        await asyncio.sleep(act.at)
        match act.kind:
            case "publish":
                self._spawn(self._publish(act, producer), self._producing)
            case "mute":
                await self._reader.on_its_machine(self._mute(act))
            case "read":
                self._read_one(act.number)
            case "away":
                await self._away(act)
            case "redrive":
                await self._redrive()
            case _:
                await self._nemesis.make(act)

    async def _publish(self, act: Act, producer: Producer) -> None:
        named = list(dict.fromkeys(f"r{number % self._script.recipients}" for number in act.numbers))
        recipients = self._subscribers if act.target else named
        category = _CATEGORIES[act.number % len(_CATEGORIES)]
        began = self._loop.time()
        event_id = await producer.publish(
            recipients,
            number=act.number,
            topics=[act.target] if act.target else [],
            priority=_PRIORITIES[act.number % len(_PRIORITIES)],
            ordering_key=f"key-{act.number % 3}",
            category=category,
            ttl=act.seconds or None,
            size=act.size,
            limit=_SETTLE_LIMIT_S,
            twins=act.count,
        )
        if act.seconds:
            self._expired = max(self._expired, began + act.seconds + self._limits.skew + self._limits.clock)
        if event_id is not None and category != _MUTED and not act.seconds:
            self._due[event_id] = recipients

    async def _mute(self, act: Act) -> None:
        recipient, operation = f"r{act.number}", f"wish-{self._loop.time():.6f}"
        mutes = [prefs_service_pb2.Mute(category=_MUTED)] if act.count else []
        self._system.add(
            history.WishInvoke(
                at=self._loop.time(),
                operation=operation,
                tenant=TENANT,
                recipient=recipient,
                category=_MUTED,
                muted=bool(act.count),
            )
        )
        request = prefs_service_pb2.UpdatePreferencesRequest(preferences=prefs_service_pb2.Preferences(mutes=mutes))
        request.update_mask.paths.append("mutes")
        # Without an answer nobody knows: the history has no end for it.
        with contextlib.suppress(Failure):
            await Calls(self._cluster).call(
                "prefs",
                lambda channel: prefs_service_pb2_grpc.PrefsServiceStub(channel).UpdatePreferences,
                request,
                Actor("recipient", recipient, TENANT),
            )
            self._system.add(history.WishOk(at=self._loop.time(), operation=operation))

    async def _away(self, act: Act) -> None:
        """A device leaves in order and comes back: no fault of anybody."""
        screen = self._screens[act.number % len(self._screens)]
        name = _name_of(screen)
        leaving = self._watching.pop(name, None)
        if leaving is None:
            return
        await self._opened[name].wait()
        await screen.subscriber.close()
        await asyncio.wait([leaving])
        await asyncio.sleep(act.seconds)
        self._connect(screen)

    def _read_one(self, number: int) -> None:
        screen = self._screens[number % len(self._screens)]
        ids = screen.subscriber.inbox_ids
        if ids:
            # Marks that the SDK has no room for are the application's to repeat; here they are left out.
            with contextlib.suppress(Exception):
                screen.mark_read(ids[number % len(ids)])
                self._marked.add((screen.device.recipient, ids[number % len(ids)]))

    async def _redrive(self) -> int | None:
        """An operator tries again what was given up or put aside; returns how much goes, None when nobody can say."""
        try:
            return await self._reader.redrive(self._recipients)
        except Failure:
            return None

    def _died(self, then: Callable[[Host], None]) -> Callable[[Host], None]:
        def died(host: Host) -> None:
            then(host)
            if host.name in SERVICES and not self._ended:
                self._note_positions()
                self._spawn(self._nemesis.restart(host))

        return died

    def _note_positions(self) -> None:
        """Writes down how far lanes are while what is not finished may be lost with a process."""
        for mark in self._dump.marks():
            self._system.add(
                history.Position(
                    at=self._loop.time(),
                    lane=mark.lane,
                    committed=mark.committed,
                    first_unfinished=mark.first_unfinished,
                    lag=mark.lag,
                    quiet=False,
                )
            )

    _ended = False

    # ------------------------------------------------------------ the end

    async def _settle(self, producer: Producer, began: float) -> float | None:
        end, looked, left = began + _SETTLE_LIMIT_S, 0.0, self._provider is not None
        while self._loop.time() < end:
            if self._provider is not None and self._loop.time() >= looked + _REDRIVE_PAUSE_S:
                looked, left = self._loop.time(), await self._redrive() != 0
            if not left and not self._work and not producer.open and await self._is_quiet(producer):
                took = self._loop.time() - began
                self._system.add(history.Settled(at=self._loop.time(), seconds=took, limit=_SETTLE_LIMIT_S))
                return took
            await asyncio.sleep(0.5)
        self._system.add(history.Settled(at=self._loop.time(), seconds=None, limit=_SETTLE_LIMIT_S))
        return None

    async def _is_quiet(self, producer: Producer) -> bool:
        for screen in self._screens:
            if not screen.subscriber.connected or screen.subscriber.unconfirmed:
                return False
            if any(screen.device.recipient in to and id_ not in screen.shown for id_, to in self._due.items()):
                return False
        if self._provider is not None and not self._provider.taken >= self._to_be_sent(producer) - self._marked:
            return False
        return await self._reader.lag() == 0

    def _to_be_sent(self, producer: Producer) -> set[tuple[str, str]]:
        """Returns recipient and event of all that the channel behind live must have, unless it was marked as read."""
        mutable = any(act.kind == "mute" for act in self._script.acts)
        return {
            (recipient, id_)
            for id_, recipients in producer.accepted.items()
            if producer.sent[id_].expire is None and not (mutable and producer.sent[id_].category == _MUTED)
            for recipient in recipients
        }

    async def _end(self) -> None:
        self._ended = True
        self._cluster.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for _ in range(3):
            for task in tasks:
                task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait(tasks, timeout=1.0) if tasks else None


def _name_of(screen: Screen) -> str:
    return f"device:{screen.device.recipient}/{screen.device.name.rpartition('-')[2]}"
