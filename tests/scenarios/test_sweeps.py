"""Housekeeping by running processes, in one loop and by a clock of the test: what is too old goes, the rest stays."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from mesh.app import App
from mesh.clock import ManualClock
from mesh.lanes import Record
from mesh.settings import load
from svc_delivery import main as delivery
from svc_delivery.ports import Body, DecisionWrite
from svc_delivery.ports_dead_letters import DeadLetterRecord
from svc_delivery.settings import DeliverySettings
from svc_delivery.store import open_store as open_inbox
from svc_ingest import limits
from svc_ingest import main as ingest
from svc_ingest.ports import Claim, Fresh, Pending
from svc_ingest.settings import IngestSettings
from svc_ingest.store import open_store as open_requests
from tests.support.inbox import ALICE, DAY_US, NOW_US, make_id, make_key, make_row
from tests.support.publishing import open_lanes, read_lane
from tests.support.wait import until

ROOT = Path(__file__).resolve().parents[2]
DAY_S = 86_400.0


@asynccontextmanager
async def running(app: App) -> AsyncIterator[None]:
    """Runs a service until the body is through; it must end in order."""
    living = asyncio.create_task(app.run())
    try:
        await until(lambda: app.started.is_set() or living.done(), 10.0, "the start")
        yield
    finally:
        app.request_stop("test")
        await living


async def test_ingest_forgets_requests_after_a_day_and_records_after_a_week(run_dir: Path) -> None:
    """The sweep of the process itself, in its first round; younger ones are known and readable afterwards."""
    clock = ManualClock(NOW_US / 1_000_000)
    log = open_requests("sqlite:///requests.db", run_dir)
    await log.open()
    async with open_lanes(run_dir, clock) as lanes:
        for lane in lanes.values():
            await lane.append([Record(b"k", b"a week old")])
        clock.advance(6 * DAY_S)
        await log.begin([_claim(1)], clock.wall())
        for lane in lanes.values():
            await lane.append([Record(b"k", b"a day old"), Record(b"k", b"newest")])
        clock.advance(DAY_S + 55)
        await log.begin([_claim(2)], clock.wall())
    await log.close()
    clock.advance(5)
    files = (
        f"--categories-file={ROOT}/deploy/categories.toml",
        f"--producers-file={ROOT}/deploy/producers.example.toml",
    )
    settings = load(IngestSettings, [*_place(run_dir), *files])
    app = App(name="ingest", settings=settings, clock=clock)
    ingest.wire(app, settings)

    def swept(store: str) -> float | None:
        return app.telemetry.registry.get_sample_value("heliograph_ingest_swept_records_total", {"store": store})

    stores = ["requests", *(f"lane_{name}" for name in lanes)]
    async with running(app):
        await until(lambda: [swept(store) for store in stores] == [1.0] * 4, 20.0, "the first round")
    for name in lanes:
        assert [stored.value for stored in await read_lane(run_dir, name)] == [b"a day old", b"newest"]
    await log.open()
    known = await log.begin([_claim(1, b"other"), _claim(2, b"other")], clock.wall())
    await log.close()
    # The young one is known: its holder may still be at work, or has left it to whoever asks next.
    assert known == [Fresh(1), Pending(limits.REQUEST_LEASE_S - 5)]


def _place(folder: Path) -> list[str]:
    return [f"--run-dir={folder}", f"--data-dir={folder}", "--direct=true"]


def _claim(number: int, holder: bytes = b"first") -> Claim:
    return Claim("acme", "demo", number.to_bytes(16, "big"), b"d" * 32, number, holder)


def _letter(number: int, bury_us: int) -> DeadLetterRecord:
    return DeadLetterRecord(
        letter_id=make_id(number),
        reason=3,
        tenant_id="acme",
        recipient_key=ALICE,
        notification_id=make_id(number),
        bury_us=bury_us,
        letter=b"letter",
        original=b"original",
    )


def counts(file: Path) -> tuple[int, ...]:
    """How many rows, decisions and dead letters there are, seen beside the process that writes them."""
    connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=5.0)
    try:
        tables = ("inbox", "decisions", "dead_letters")
        return tuple(connection.execute(f"select count(*) from {table}").fetchone()[0] for table in tables)
    finally:
        connection.close()


async def test_delivery_forgets_rows_after_90_days_decisions_and_dead_letters_after_30(run_dir: Path) -> None:
    """The sweeps of the process itself, each by the age of its own kind; what is a day younger stays."""
    now_us = NOW_US + 100 * DAY_US
    rows, rest = now_us - 90 * DAY_US, now_us - 30 * DAY_US
    store = open_inbox("sqlite:///inbox.db", run_dir)
    await store.open()
    for number, age_us in ((1, -DAY_US), (2, DAY_US)):
        decision = DecisionWrite("acme", make_id(number), 2, ("bob",), rest + age_us)
        row = make_row(number, expire_us=now_us + 50 * DAY_US)
        await store.inbox.write([row], stamp=rows + age_us, decisions=[decision])
        await store.dead_letters.bury([_letter(number, rest + age_us)])
    await store.close()
    settings = load(DeliverySettings, _place(run_dir))
    app = App(name="delivery", settings=settings, clock=ManualClock(now_us / 1_000_000))
    delivery.wire(app, settings)
    async with running(app):
        await until(lambda: counts(run_dir / "inbox.db") == (1, 1, 1), 15.0, "what is too old is gone")
    await store.open()
    try:
        assert await store.inbox.bodies([make_key(1), make_key(2)]) == {make_key(2): Body(1, b"content 1 of 2")}
        assert list(await store.inbox.decisions("acme", make_id(1))) == []
        assert len(await store.inbox.decisions("acme", make_id(2))) == 1
        old, young = await store.dead_letters.get([make_id(1), make_id(2)])
        assert old is None
        assert young is not None
    finally:
        await store.close()
