"""The main job on real input: `make demo`, or `python bench/demo.py [--keep]`.

Starts the whole mesh (Envoy, mutual TLS, two gateway nodes), makes events of this repository's history, publishes them
through the edge to recipients and to topics, for listeners on both nodes, kills one node, and shows that everybody got
everything once, that a mute was respected, and that a dead letter comes back. The exit code is 1 when something was
lost, shown twice, shown against a wish or not brought back, 2 when the demo could not run.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import httpx2
import msgspec

from bench import demo_listeners, demo_report, demo_wishes
from bench.demo_denial import QUICK_TRIES, DenyingStore
from bench.demo_events import Audience, Change, choose_mute, drafts, folders_of, subscribe
from bench.demo_ledger import Counts, Evidence, Ledger, Phase, verdict
from bench.demo_letters import Refusing, RefusingStore
from bench.demo_listeners import Form, Listener, NotReady, Ways
from bench.demo_operator import Operator
from bench.demo_publishing import Producer, read_inbox
from bench.demo_report import Places, Teller
from bench.demo_source import read_archive, read_source
from bench.installation import Installation, chosen_engines, interruptible
from bench.measures import Spread, spread
from heliograph_cli.engines import read_engines, service_urls
from heliograph_cli.failures import CommandFailed
from heliograph_client.publisher import Publisher
from heliograph_client.tls import Tls
from mesh.errors import Failure
from mesh.ids import join_key

TENANT, PRODUCER = "acme", "demo"
_NODES = 2
_FOLDERS_EACH = 2
# Some by topic and some by name.
_FEWEST_LISTENERS = 4
_READY_LIMIT_S = 30.0
_SETTLE_LIMIT_S = 30.0
_RESTART_LIMIT_S = 20.0
_POLL_S = 0.05
_KEPT_FOLDER = Path(".heliograph")
_KEPT_PORT = 7400


class Choices(msgspec.Struct, frozen=True):
    """What the demo was asked for.

    Attributes:
        listeners: how many.
        rate: events a second.
        seconds: for how long events are published.
        kill_after: seconds of them until a node is killed.
        engines: file that says where the engines are; None: stores are embedded.
    """

    listeners: int = 32
    rate: float = 12.0
    seconds: float = 30.0
    kill_after: float = 10.0
    engines: Path | None = None


class Kill(msgspec.Struct, frozen=True):
    """What happened to a node: which one, when it died, and when its last listener was back."""

    node: str
    killed: float
    recovered: float


class Outcome(msgspec.Struct, frozen=True):
    """What a run came to."""

    counts: Counts
    evidence: Evidence
    spreads: dict[Phase, Spread]
    places: Sequence[Places]
    kill: Kill
    duplicates: int
    replayed: int
    rows: int
    missing_rows: int
    refused: Sequence[str]

    @property
    def faults(self) -> Sequence[str]:
        """What is wrong, in words."""
        return verdict(self.counts, self.evidence, missing_rows=self.missing_rows, refused=len(self.refused))


class Demo:
    """One run against a mesh that serves."""

    def __init__(self, installation: Installation, choices: Choices, teller: Teller) -> None:
        self._installation = installation
        self._choices = choices
        self._teller = teller
        self._ledger = Ledger()
        up = installation.up
        certificates = installation.folder / "certs"
        producer = certificates / "producer" / TENANT / PRODUCER / "current"
        self._edge = up.edge
        self._tls = Tls(ca_file=certificates / "ca" / "bundle.pem")
        self._producer_tls = Tls(
            ca_file=certificates / "ca" / "bundle.pem",
            certificate_file=producer / "cert.pem",
            key_file=producer / "key.pem",
            server_name=up.producer_host,
        )
        ways = Ways(self._tls, self._tls.context())
        self._listeners = [
            Listener(
                name,
                ledger=self._ledger,
                token=installation.token(name, tenant=TENANT),
                url=up.live_urls["edge"],
                edge=up.edge,
                ways=ways,
                form=_form(index),
            )
            for index, name in enumerate(_names(choices.listeners))
        ]

    async def run(self) -> Outcome:
        """Does everything between start and stop."""
        say, choices = self._teller.say, self._choices
        changes, audience = self._audience()
        async with demo_listeners.listening(self._listeners):
            places = [Places("before", await demo_listeners.spread_out(self._listeners, _NODES, _READY_LIMIT_S))]
            self._tell_places(places[0])
            async with self._publisher() as sdk, self._rest() as rest:
                producer = Producer(sdk=sdk, rest=rest, ledger=self._ledger)
                await producer.open()
                await self._make_wishes(audience, rest)
                say(f"publishing {choices.rate:g} events a second for {choices.seconds:g} s, 4 of 5 with the SDK")
                events = drafts(changes, audience, self._event_count)
                async with asyncio.TaskGroup() as group:
                    group.create_task(producer.run(events, 1.0 / choices.rate))
                    killing = group.create_task(self._kill(places))
                say(f"{producer.sent_count} events are published; waiting for the last acks")
                await self._settle()
                places.append(Places("at the end", demo_listeners.places(self._listeners)))
                folder, ledger = self._installation.folder, self._ledger
                operator = Operator(folder, TENANT, store=self._store, ledger=ledger, teller=self._teller)
                evidence = await operator.gather(audience.mute, sdk, self._listeners[0].name, self._listeners[-1].name)
                rows, missing = await self._check_inboxes(rest)
        totals = demo_listeners.total(listener.stats for listener in self._listeners)
        kill = killing.result()
        spreads = {phase: spread(found) for phase, found in self._ledger.latencies(kill.killed, kill.recovered).items()}
        return Outcome(
            counts=self._ledger.counts(),
            evidence=evidence,
            spreads=spreads,
            places=places,
            kill=kill,
            duplicates=totals.duplicates_on_wire,
            replayed=totals.replayed,
            rows=rows,
            missing_rows=missing,
            refused=producer.refused,
        )

    def _store(self, listener: str) -> Refusing:
        if self._choices.engines is None:
            return RefusingStore(self._installation.folder / "data", join_key(TENANT, listener))
        urls = service_urls(read_engines(self._choices.engines), self._installation.name)
        return DenyingStore(urls["delivery"]["store_url"], TENANT, listener)

    @property
    def _event_count(self) -> int:
        return round(self._choices.rate * self._choices.seconds)

    def _tell_places(self, before: Places) -> None:
        text = " and ".join(f"{count} on {node}" for node, count in sorted(before.sessions.items()))
        forms = Counter(listener.form for listener in self._listeners)
        self._teller.say(
            f"{len(self._listeners)} listeners are connected, {text}: "
            f"{forms['json']} WebSockets with JSON, {forms['proto']} with the binary form, {forms['grpc']} gRPC streams"
        )

    def _audience(self) -> tuple[Sequence[Change], Audience]:
        """Reads the source, and decides who follows what."""
        what, changes = read_source()
        audience = self._audience_of(changes)
        if audience.mute is None:
            # All of one category: there would be nothing to mute without muting everything.
            what, changes = read_archive()
            audience = self._audience_of(changes)
        folders = {folder for change in changes for folder in folders_of(change)}
        self._teller.say(f"read {what}; each becomes an event for those who follow a folder that it touches")
        self._teller.say(
            f"{len(audience.folders)} listeners follow {min(_FOLDERS_EACH, len(folders))} of {len(folders)} folders "
            f"each: {len(audience.by_topic)} by topic, {len(audience.folders) - len(audience.by_topic)} by name"
        )
        return changes, audience

    def _audience_of(self, changes: Sequence[Change]) -> Audience:
        names = [listener.name for listener in self._listeners]
        folders = {folder for change in changes for folder in folders_of(change)}
        topical = frozenset(name for index, name in enumerate(names) if demo_wishes.follows_by_topic(index))
        audience = Audience(subscribe(names, folders, _FOLDERS_EACH), topical)
        return msgspec.structs.replace(audience, mute=choose_mute(changes, audience, self._event_count))

    async def _make_wishes(self, audience: Audience, rest: httpx2.AsyncClient) -> None:
        """Lets listeners subscribe, and one of them mute something."""
        ways = await demo_wishes.subscribe(self._listeners, audience, rest)
        self._teller.say("subscribed to topics: " + " and ".join(f"{count} {way}" for way, count in ways.items()))
        if audience.mute is not None:
            await demo_wishes.set_mute(audience.mute, self._token(audience.mute.listener), rest)
            self._teller.say(f'{audience.mute.listener} muted the category "{audience.mute.category}", over REST')

    def _token(self, name: str) -> str:
        return self._installation.token(name, tenant=TENANT)

    def _publisher(self) -> Publisher:
        return Publisher(self._edge, tls=self._producer_tls)

    def _rest(self) -> httpx2.AsyncClient:
        token = self._installation.token(PRODUCER, tenant=TENANT, role="producer")
        return httpx2.AsyncClient(
            base_url=f"https://{self._edge}",
            verify=self._tls.context(),
            headers={"authorization": f"Bearer {token}"},
            timeout=10.0,
            # The edge is on this machine, whatever the environment says about proxies.
            trust_env=False,
        )

    # ---------------------------------------------------------------- the kill

    async def _kill(self, places: list[Places]) -> Kill:
        """Kills the node with most sessions in the middle, and waits until its listeners are back."""
        await asyncio.sleep(self._choices.kill_after)
        node = demo_listeners.places(self._listeners).most_common(1)[0][0]
        orphans = [listener for listener in self._listeners if listener.node == node]
        expected = {listener.name: listener.losses + 1 for listener in orphans}
        process = self._installation.up.processes[node]
        killed = time.monotonic()
        os.kill(process.pid, signal.SIGKILL)
        self._teller.say(f"killed {node} (SIGKILL, pid {process.pid}) with its {len(orphans)} sessions")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tell_restart(node, process.restart_count))
            await demo_listeners.until_lost(expected, orphans, _READY_LIMIT_S)
            recovered = await demo_listeners.until_ready(orphans, _READY_LIMIT_S)
            places.append(Places("after the kill", demo_listeners.places(self._listeners)))
            self._teller.say(
                f"all {len(orphans)} are back and have caught up; the last one took {recovered - killed:.1f} s"
            )
        return Kill(node, killed, recovered)

    async def _tell_restart(self, node: str, restart_count: int) -> None:
        began = time.monotonic()
        while time.monotonic() - began < _RESTART_LIMIT_S:
            found = self._installation.up.processes[node]
            if found.restart_count > restart_count and found.state == "serving":
                self._teller.say(f"{node} was started again (pid {found.pid}) and serves")
                return
            await asyncio.sleep(_POLL_S)
        self._teller.say(f"{node} does not serve again after {_RESTART_LIMIT_S:g} s")

    # ---------------------------------------------------------------- the end

    async def _settle(self) -> None:
        end = time.monotonic() + _SETTLE_LIMIT_S
        left = self._ledger.outstanding()
        while left and time.monotonic() < end:
            await asyncio.sleep(_POLL_S)
            left = self._ledger.outstanding()
        self._teller.say(f"{left} acks are missing after {_SETTLE_LIMIT_S:g} s" if left else "every ack is stored")

    async def _check_inboxes(self, rest: httpx2.AsyncClient) -> tuple[int, int]:
        """Compares what every recipient's inbox lists with what it must list; returns rows and missing rows."""
        rows = missing = 0
        for listener in self._listeners:
            token = self._token(listener.name)
            expected = self._ledger.window_of(listener.name)
            listed = await read_inbox(rest, token)
            rows += len(listed)
            missing += len(expected - listed)
        self._teller.say(f"read {len(self._listeners)} inboxes over REST: {rows} rows, {missing} missing")
        return rows, missing


def _form(index: int) -> Form:
    """Returns what a listener speaks: one of eight gRPC, the others JSON and the binary form in turn."""
    if index % 8 == 0:
        return "grpc"
    return "json" if index % 2 else "proto"


def _names(count: int) -> list[str]:
    """Returns names that no earlier run on the same stores had: its notifications are not this one's."""
    run = time.time_ns() // 1_000_000_000 % 0x10000
    return [f"listener-{run:04x}-{number:02d}" for number in range(1, count + 1)]


def show(outcome: Outcome, teller: Teller) -> None:
    """Shows the tables and the verdict."""
    teller.table(
        demo_report.counts_table(
            outcome.counts,
            outcome.evidence,
            duplicates=outcome.duplicates,
            replayed=outcome.replayed,
            rows=outcome.rows,
            missing_rows=outcome.missing_rows,
        )
    )
    teller.table(demo_report.latency_table(outcome.spreads))
    teller.table(demo_report.places_table(outcome.places, outcome.kill.node))
    for text in outcome.refused[:5]:
        teller.plain(f"not accepted: {text}")
    teller.verdict(outcome.faults)


def play(choices: Choices, *, keep: bool, teller: Teller) -> int:
    """Runs the demo; returns the exit code."""
    teller.head("Heliograph demo: one repository's history, published to those who follow its folders")
    stores = "embedded stores" if choices.engines is None else "Kafka, Redis, Cassandra and PostgreSQL"
    teller.say(f"starting six services, their sidecars and the edge: mutual TLS, {stores}, two gateway nodes")
    kept = (_KEPT_FOLDER, _KEPT_PORT) if keep else (None, None)
    with (
        interruptible(),
        Installation(
            direct=False,
            gateways=_NODES,
            folder=kept[0],
            base_port=kept[1],
            environ={} if choices.engines is None else QUICK_TRIES,
            engines=choices.engines,
            # Names of its own: what an earlier demo published is not this one's.
            name=f"demo_{int(time.time())}",
        ) as installation,
    ):
        up = installation.up
        teller.say(f"{len(up.processes)} processes serve; the edge is https://{up.edge}")
        try:
            outcome = asyncio.run(Demo(installation, choices, teller).run())
            show(outcome, teller)
        finally:
            if keep:
                installation.leave_running()
            else:
                teller.say("stopping everything")
        if keep:
            teller.plain(demo_report.keep_text(installation.folder, up))
    if not keep:
        teller.say("everything is stopped")
    return 1 if outcome.faults else 0


def main() -> None:
    """Runs the command and exits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = Choices()
    parser.add_argument("--keep", action="store_true", help="leave the mesh running, with its state in .heliograph")
    parser.add_argument("--listeners", type=int, default=defaults.listeners)
    parser.add_argument("--rate", type=float, default=defaults.rate, help="events a second")
    parser.add_argument("--seconds", type=float, default=defaults.seconds, help="for how long they are published")
    parser.add_argument("--kill-after", type=float, default=defaults.kill_after, help="seconds until a node is killed")
    asked = parser.parse_args()
    if asked.listeners < _FEWEST_LISTENERS or asked.rate <= 0 or not 0 <= asked.kill_after < asked.seconds:
        parser.error(f"at least {_FEWEST_LISTENERS} listeners, a positive rate, and the kill before the end are needed")
    try:
        engines = chosen_engines(os.environ)
    except CommandFailed as error:
        parser.error(str(error))
    choices = Choices(asked.listeners, asked.rate, asked.seconds, asked.kill_after, engines)
    teller = Teller()
    try:
        code = play(choices, keep=asked.keep, teller=teller)
    except* (RuntimeError, NotReady, Failure, httpx2.HTTPError) as errors:
        print(f"the demo could not run: {errors.exceptions[0]}", file=sys.stderr)
        code = 2
    except* KeyboardInterrupt:
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
