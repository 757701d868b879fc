"""Follow-ups on real lanes that refuse, fill up and are read anew: nothing is lost, and what is urgent gets through."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from heliograph.type.v1.notification_pb2 import PRIORITY_BULK, PRIORITY_HIGH
from mesh.clock import ManualClock
from mesh.errors import Unavailable
from mesh.lanes import LaneUnavailable, LaneWriter, open_reader, open_writer, position_migrations
from mesh.sqlite import Writer
from svc_delivery.ports import FollowUpRecord, FollowUpWrite
from svc_delivery.ports_dead_letters import DeadLetterRecord
from svc_delivery.retry_lanes import LANES, Waiting
from svc_delivery.store.lane_follow_ups import Ends, LaneFollowUps
from svc_delivery.store.sqlite import Limits
from svc_delivery.store.sqlite_store import SqliteStore
from tests.support.fanning import UnsteadyLane
from tests.support.inbox import NOW_US

URL = "sqlite:///lanes"
LETTER = DeadLetterRecord(b"0123456789abcdef", 1, "acme", "acme/alice", b"", NOW_US, b"letter", b"original")


class Lanes:
    """Follow-ups on the lanes of a folder, of one process after the other."""

    def __init__(self, folder: Path, run_dir: Path) -> None:
        self.clock = ManualClock(wall=NOW_US / 1e6)
        self._folder = folder
        self._run_dir = run_dir
        self._open = contextlib.AsyncExitStack()
        self.ends: list[UnsteadyLane] = []
        self.store: SqliteStore
        self.follow_ups: LaneFollowUps

    async def begin(self, **room: int) -> None:
        """Makes a new process: what was in memory is gone, what was not committed is read again."""
        await self.close()
        self.store = SqliteStore("sqlite:///inbox.db", self._folder / "inbox.db", limits=Limits(), lock_wait=0.0)
        positions = Writer(self._folder / "positions.db", migrations=position_migrations(), lock_wait=0.0)
        for part in (self.store, positions):
            await part.open()
            self._open.push_async_callback(part.close)
        self.ends = [await self._ends(lane.name, positions) for lane in LANES]
        self.follow_ups = LaneFollowUps(
            lanes=[Ends(one, one) for one in self.ends],
            letters=self.store.dead_letters,
            clock=self.clock,
            waiting=Waiting(**room),
            commit_interval=0.0,
        )

    async def close(self) -> None:
        """Closes everything, without a last commit."""
        await self._open.aclose()

    async def _ends(self, name: str, positions: Writer) -> UnsteadyLane:
        writer: LaneWriter = open_writer(
            URL, name, data_dir=self._folder, run_dir=self._run_dir, clock=self.clock, lock_wait=0.0
        )
        reader = open_reader(
            URL,
            name,
            data_dir=self._folder,
            run_dir=self._run_dir,
            clock=self.clock,
            positions=positions,
            lock_wait=0.0,
        )
        for end in (writer, reader):
            await end.open()
            self._open.push_async_callback(end.close)
        return UnsteadyLane(reader, writer)

    @property
    def now_us(self) -> int:
        """The wall clock."""
        return round(self.clock.wall() * 1e6)

    async def append(self, *records: tuple[float, bytes], priority: int = 0) -> None:
        """Appends what is due in so many seconds."""
        await self.follow_ups.append(
            [FollowUpWrite(self.now_us + round(s * 1e6), name, priority) for s, name in records]
        )

    async def due(self, limit: int = 100) -> Sequence[FollowUpRecord]:
        """What is due now."""
        return await self.follow_ups.due(self.now_us, limit)

    async def names(self) -> list[bytes]:
        """The bytes of what is due now."""
        return [record.record for record in await self.due()]

    async def done(self) -> list[bytes]:
        """Finishes what is due now, and tells what it was."""
        records = await self.due()
        await self.follow_ups.finish([record.record_id for record in records])
        return [record.record for record in records]

    async def lengths(self) -> list[int]:
        """How many records of each lane are not committed."""
        return [(await one.lag()).record_count for one in self.ends]


@pytest.fixture
async def lanes(tmp_path: Path, run_dir: Path) -> AsyncIterator[Lanes]:
    """Empty lanes and a process on them."""
    made = Lanes(tmp_path, run_dir)
    await made.begin()
    yield made
    await made.close()


async def test_each_record_waits_in_the_lane_of_its_delay(lanes: Lanes) -> None:
    """And what is finished is committed."""
    await lanes.append((0, b"now"), (10, b"10 s"), (60, b"1 min"), (600, b"10 min"), (900, b"15 min"))
    assert await lanes.lengths() == [2, 1, 2]
    seen = []
    for seconds in (0, 10, 50, 540, 300):
        lanes.clock.advance(seconds)
        seen.append(await lanes.done())
    assert seen == [[b"now"], [b"10 s"], [b"1 min"], [b"10 min"], [b"15 min"]]
    assert await lanes.names() == []
    assert await lanes.lengths() == [0, 0, 0]


@pytest.mark.parametrize(("due_s", "hops"), [(15, 0), (45, 3), (130, 1), (1_300, 1), (2_530, 3)])
async def test_what_waits_for_longer_than_its_lane_moves_on_in_time(lanes: Lanes, due_s: int, hops: int) -> None:
    """So that no position is held up for long; it comes when it is due, not before, and once."""
    await lanes.append((due_s, b"patient"))
    places = set()
    for _ in range(due_s - 1):
        lanes.clock.advance(1)
        assert await lanes.names() == []
        (found,) = await lanes.follow_ups.containing(b"patient", 10)
        places.add(found.origin)
    lanes.clock.advance(1)
    assert await lanes.done() == [b"patient"]
    assert await lanes.names() == []
    assert len(places) == hops + 1
    assert await lanes.lengths() == [0, 0, 0]


async def test_a_process_that_dies_leaves_what_it_did_not_finish(lanes: Lanes) -> None:
    """Also what it had read and what it had finished after its last commit: that is repeated, nothing is lost."""
    await lanes.append((0, b"1"), (0, b"2"), (0, b"3"), (60, b"4"))
    first, second, _ = await lanes.due()
    await lanes.follow_ups.finish([second.record_id], [FollowUpWrite(lanes.now_us, b"2 again")])
    assert await lanes.names() == [b"1", b"3", b"2 again"]
    await lanes.begin()
    assert await lanes.names() == [b"1", b"2", b"3", b"2 again"]
    await lanes.follow_ups.finish([first.record_id, second.record_id])
    await lanes.names()
    await lanes.begin()
    assert await lanes.names() == [b"3", b"2 again"]
    lanes.clock.advance(60)
    assert await lanes.names() == [b"3", b"2 again", b"4"]


async def test_a_crash_between_append_and_end_repeats_and_loses_nothing(lanes: Lanes) -> None:
    """Letters are durable first, then what is left: whoever comes next finds the record beside its successor."""
    await lanes.append((0, b"record"))
    (record,) = await lanes.due()
    lanes.ends[1].refuses, lanes.ends[1].unknown = {"append"}, True
    with pytest.raises(LaneUnavailable):
        await lanes.follow_ups.finish([record.record_id], [FollowUpWrite(lanes.now_us + 60_000_000, b"next")], [LETTER])
    await lanes.begin()
    assert await lanes.store.dead_letters.get([LETTER.letter_id]) == [LETTER]
    assert await lanes.names() == [b"record"]
    await lanes.follow_ups.finish([record.record_id], [FollowUpWrite(lanes.now_us + 60_000_000, b"next")], [LETTER])
    assert await lanes.names() == []
    lanes.clock.advance(60)
    assert await lanes.done() == [b"next", b"next"]


async def test_a_letter_that_is_not_buried_keeps_its_record(lanes: Lanes) -> None:
    """Nothing of the call happens."""
    await lanes.append((0, b"record"))
    (record,) = await lanes.due()
    await lanes.store.close()
    with pytest.raises(Unavailable):
        await lanes.follow_ups.finish([record.record_id], [FollowUpWrite(lanes.now_us, b"next")], [LETTER])
    assert await lanes.names() == [b"record"]


async def test_a_lane_that_cannot_be_read_stops_no_other(lanes: Lanes) -> None:
    """It is told when nothing else is due, and read again when it can be."""
    await lanes.append((0, b"first"), (60, b"second"))
    lanes.clock.advance(60)
    lanes.ends[1].refuses = {"read"}
    assert await lanes.done() == [b"first"]
    with pytest.raises(LaneUnavailable):
        await lanes.due()
    lanes.ends[1].refuses = set()
    assert await lanes.names() == [b"second"]


async def test_what_is_not_committed_is_committed_later(lanes: Lanes) -> None:
    """A lane that refuses a commit is no failure of anything else."""
    await lanes.append((0, b"first"))
    lanes.ends[0].refuses = {"commit"}
    assert await lanes.done() == [b"first"]
    assert await lanes.names() == []
    assert (lanes.ends[0].refused, await lanes.lengths()) == (1, [1, 0, 0])
    lanes.ends[0].refuses = set()
    await lanes.names()
    assert await lanes.lengths() == [0, 0, 0]


async def test_what_cannot_be_moved_stays(lanes: Lanes) -> None:
    """And comes when it is due."""
    await lanes.append((45, b"patient"))
    lanes.ends[0].refuses = {"append"}
    for _ in range(45):
        lanes.clock.advance(1)
        found = await lanes.names()
    assert lanes.ends[0].refused > 1
    assert found == [b"patient"]


async def test_what_is_urgent_is_reached_in_a_backlog_that_memory_does_not_hold(lanes: Lanes) -> None:
    """Before most of what lies in front of it; and everything is worked, once."""
    await lanes.begin(most_records=20)
    expected = [b"bulk %03d" % number for number in range(200)]
    await lanes.append(*((10, name) for name in expected), priority=PRIORITY_BULK)
    lanes.clock.advance(11)
    await lanes.append((-1, b"urgent"), priority=PRIORITY_HIGH)
    worked: list[bytes] = []
    assert await lanes.follow_ups.backlog(lanes.now_us) == 201
    while due := await lanes.due(limit=2):
        await lanes.follow_ups.finish([record.record_id for record in due])
        worked += [record.record for record in due]
    assert worked.index(b"urgent") < 60
    assert sorted(worked) == [*expected, b"urgent"]
    assert await lanes.lengths() == [0, 0, 0]


async def test_memory_is_bounded(lanes: Lanes) -> None:
    """What does not fit is read when there is room: nothing comes twice or never."""
    await lanes.begin(most_records=8)
    expected = [b"%03d" % number for number in range(100)]
    await lanes.append(*((10, name) for name in expected))
    lanes.clock.advance(10)
    worked: list[bytes] = []
    while due := await lanes.due(limit=3):
        await lanes.follow_ups.finish([record.record_id for record in due])
        worked += [record.record for record in due]
    assert sorted(worked) == expected


async def test_lanes_are_trimmed_up_to_what_is_not_finished(lanes: Lanes) -> None:
    """A minute after it was finished; what waits stays, however old it is."""
    await lanes.append((0, b"first"), (0, b"second"), (0, b"third"))
    first, second, _ = await lanes.due()
    await lanes.follow_ups.finish([first.record_id])
    lanes.clock.advance(3_600)
    await lanes.names()
    await lanes.append((0, b"fourth"))
    await lanes.follow_ups.trim()
    assert [found.origin for found in await lanes.follow_ups.containing(b"", 10)] == [
        f"retry-10s/0/{number}" for number in (2, 3, 4)
    ]
    await lanes.begin()
    assert await lanes.names() == [b"second", b"third", b"fourth"]
    assert second.record_id == (await lanes.due())[0].record_id
