"""Files of the first schema, with data: today's program takes them over, and everything that was in them is there.

A newer schema than the program's is refused, and the file is left as it is.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from heliograph.delivery.v1 import dead_letter_service_pb2 as letters_pb
from mesh.clock import ManualClock
from mesh.lanes import Record, open_reader, open_writer, position_migrations
from mesh.sqlite import Migration, StoreError, Writer
from svc_delivery.ports import AckLevel, Body, DecisionWrite, RowState
from svc_delivery.store import open_store as open_inbox
from svc_ingest.ports import Claim, Done, Fresh
from svc_ingest.store import open_store as open_requests
from svc_prefs.ports import Stored
from svc_prefs.store import open_store as open_prefs
from tests.support.first_schemas import STORES, version_of, write_first, write_with
from tests.support.inbox import ALICE, DAY_US, NOW_US, make_id, make_key, make_row


async def test_an_inbox_of_the_first_schema(tmp_path: Path) -> None:
    """Rows with their state and content, heads, follow-ups and decisions stay; parked records become dead letters."""
    expire_us = NOW_US + 80 * DAY_US
    cells = (ALICE, 0, make_id(1), 2, NOW_US, NOW_US - 5, expire_us, 3, 1, 0, "billing", b"content")
    file = await write_first(
        tmp_path,
        "inbox.db",
        ("insert into inbox values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", cells),
        ("insert into recipient (key, head) values (?, ?)", (ALICE, NOW_US + 7)),
        ("insert into follow_ups values (?, ?, ?)", (41, NOW_US, b"record")),
        ("insert into parked values (?, ?, ?, ?)", (12, b"bytes", "no reason", NOW_US)),
        ("insert into decisions values (1, 'acme', ?, 2, ?, x'00', ?)", (make_id(2), "bob\ncarol", NOW_US)),
        ("update meta set value = ? where name = 'epoch'", ("0123456789abcdef",)),
    )
    store = open_inbox("sqlite:///inbox.db", tmp_path)
    await store.open()
    try:
        window = await store.inbox.window(ALICE, NOW_US)
        assert window.head == NOW_US + 7
        assert window.rows == [
            RowState(make_id(1), 2, NOW_US, NOW_US - 5, AckLevel.SEEN, True, False, expire_us),
        ]
        assert await store.inbox.bodies([make_key(1)]) == {make_key(1): Body(2, b"content")}
        assert store.inbox.epoch == "0123456789abcdef"
        (due,) = await store.follow_ups.due(NOW_US, 10)
        assert (due.record_id, due.record) == (41, b"record")
        (decision,) = await store.inbox.decisions("acme", make_id(2))
        assert isinstance(decision, DecisionWrite)
        assert list(decision.recipient_ids) == ["bob", "carol"]
        await store.inbox.write([make_row(3)], stamp=NOW_US + 9)
        assert (await store.inbox.window(ALICE, NOW_US)).head == NOW_US + 9
        assert not store.suspects.after_crash
    finally:
        await store.close()
    connection = sqlite3.connect(file)
    ((reason, letter, original),) = connection.execute("select reason, letter, original from dead_letters").fetchall()
    connection.close()
    assert (reason, original) == (letters_pb.DEAD_LETTER_REASON_UNDECODABLE, b"bytes")
    assert letters_pb.DeadLetter.FromString(letter).lane_position == "follow_ups/12"
    assert version_of(file) == len(STORES["inbox.db"])


async def test_wishes_of_the_first_schema(tmp_path: Path) -> None:
    """Choices stay with their version, can be changed on, and topics can be subscribed to."""
    row = ("acme", "alice", 3, b"choices")
    await write_first(tmp_path, "prefs.db", ("insert into preferences values (?, ?, ?, ?)", row))
    store = open_prefs("sqlite:///prefs.db", data_dir=tmp_path)
    await store.open()
    try:
        found = await store.prefs.get_many("acme", ["alice", "bob"])
        assert list(found.rows) == [Stored(*row)]
        assert await store.prefs.replace(Stored("acme", "alice", 4, b"others"), NOW_US)
        changes = await store.prefs.list_changes(found.change_number, 10)
        assert (list(changes.owners), changes.reset) == ([("acme", "alice")], False)
        assert await store.topics.subscribe("acme", "alice", ["news"], now_us=NOW_US, most=10)
        assert list(await store.topics.list_subscribers("acme", "news", after="", limit=10)) == ["alice"]
    finally:
        await store.close()


async def test_requests_of_the_first_schema(tmp_path: Path) -> None:
    """A request that was done is answered as before, and is not taken for a new one."""
    row = ("acme/demo", bytes(16), b"d" * 32, 5, NOW_US, None, make_id(1), NOW_US)
    columns = "producer_key, request_id, digest, id_time_ms, begin_micros, holder, event_id, accept_micros"
    await write_first(tmp_path, "requests.db", (f"insert into request({columns}) values (?, ?, ?, ?, ?, ?, ?, ?)", row))
    log = open_requests("sqlite:///requests.db", tmp_path)
    await log.open()
    try:
        again = Claim("acme", "demo", bytes(16), b"d" * 32, 9, b"holder")
        other = Claim("acme", "demo", bytes([1]) * 16, b"d" * 32, 9, b"holder")
        done, fresh = await log.begin([again, other], NOW_US / 1_000_000)
        assert isinstance(done, Done)
        assert done.event_id == make_id(1)
        assert fresh == Fresh(9)
    finally:
        await log.close()


async def test_positions_and_a_lane_of_the_first_schema(tmp_path: Path, run_dir: Path) -> None:
    """The reader goes on behind its position in the lane that it knows, and what was parked is still there."""
    records = [(number, 1.0, b"k", b"record %d" % number) for number in (1, 2, 3)]
    await write_first(
        tmp_path,
        "lanes/normal.db",
        ("update lane set epoch = ?", (77,)),
        *(("insert into records values (?, ?, ?, ?)", record) for record in records),
    )
    await write_first(
        tmp_path,
        "positions.db",
        ("insert into positions values (?, ?, ?)", ("normal", 77, 2)),
        ("insert into parked values (?, ?, ?, ?, ?, ?, ?)", ("normal", 77, 1, b"k", b"record 1", "broken", 5.0)),
    )
    clock = ManualClock()
    lane = open_writer("sqlite:///lanes", "normal", data_dir=tmp_path, run_dir=run_dir, clock=clock)
    positions = Writer(tmp_path / "positions.db", migrations=position_migrations())
    await lane.open()
    await positions.open()
    reader = open_reader(
        "sqlite:///lanes", "normal", data_dir=tmp_path, run_dir=run_dir, clock=clock, positions=positions
    )
    await reader.open()
    try:
        await lane.append([Record(b"k", b"record 4")])
        found = await reader.read(10, 5.0)
        assert [(one.position, one.value) for one in found] == [(3, b"record 3"), (4, b"record 4")]
        assert [(one.position, one.value, one.reason) for one in await reader.parked(10)] == [
            (1, b"record 1", "broken")
        ]
        await reader.note(3, b"half")
        assert await reader.notes() == {3: b"half"}
        assert await reader.begin_life() == 0
        await reader.commit(4)
    finally:
        await reader.close()
        await positions.close()
        await lane.close()


@pytest.mark.parametrize("name", sorted(STORES))
async def test_a_newer_schema_is_refused_and_left_alone(name: str, tmp_path: Path) -> None:
    """The start stops with one line that says what to do; not a byte of the file is changed."""
    known = STORES[name]
    further = Migration(len(known) + 1, "further", "create table further(x)")
    file = tmp_path / name
    await write_with(file, [*known, further], ("insert into further values (?)", (1,)))
    before = file.read_bytes()
    older = Writer(file, migrations=known)
    with pytest.raises(
        StoreError, match=f"schema version {further.number}, this program knows up to {len(known)}"
    ) as it:
        await older.open()
    assert "start the newer program or choose another data folder" in str(it.value)
    assert file.read_bytes() == before
