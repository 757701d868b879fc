"""A record that kills the process is found and set apart, with real deaths; everybody else's are worked."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from heliograph.delivery.v1 import dead_letter_service_pb2 as pb
from heliograph.delivery.v1 import lane_record_pb2
from svc_delivery.caution import Caution
from svc_delivery.ports import FollowUpRecord
from tests.support.dying import DIED
from tests.support.retrying import envelope_of, retrying

ROOT = Path(__file__).parents[3]


async def died(data_dir: Path, follow_ups_url: str, seconds: float) -> bool:
    """Lets a process work what is due; whether it died."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.dying", str(data_dir), follow_ups_url, str(seconds), cwd=ROOT
    )
    code = await process.wait()
    assert code in (0, DIED)
    return code == DIED


@pytest.mark.parametrize(
    ("follow_ups_url", "place"),
    [("", "follow_ups/1"), ("sqlite:///lanes", "retry-10s/0/1")],
    ids=["sqlite", "lanes"],
)
async def test_a_record_that_kills_the_process_is_parked(tmp_path: Path, follow_ups_url: str, place: str) -> None:
    """One death without suspicion and three by name; then it is a dead letter with its bytes and others are done."""
    async with retrying(tmp_path, follow_ups_url=follow_ups_url) as first:
        await first.dispatch(envelope_of(1), to=["alice", "poison"])
        for number in range(2, 7):
            await first.dispatch(envelope_of(number), to=["bob"])
    deaths = 0
    while await died(tmp_path, follow_ups_url, 10.0):
        deaths += 1
        assert deaths < 10
    assert deaths == 4
    async with retrying(tmp_path, follow_ups_url=follow_ups_url) as heir:
        assert not heir.store.suspects.after_crash
        (letter,) = await heir.buried()
        assert letter.reason == pb.DEAD_LETTER_REASON_POISON
        record = lane_record_pb2.LaneRecord.FromString(letter.original)
        assert [item.recipient_key for item in record.follow_ups.items] == ["acme/alice", "acme/poison"]
        assert pb.DeadLetter.FromString(letter.letter).lane_position == place
        # Whoever was not connected rests in the inbox: nothing is left of the others.
        assert await heir.waiting() == []


class Names:
    """Suspects in memory, after a crash or not."""

    def __init__(self, *, after_crash: bool) -> None:
        self.after_crash = after_crash
        self.named: list[int] = []

    async def name(self, record_id: int) -> int:
        """See the port."""
        self.named.append(record_id)
        return 0

    async def clear(self, record_id: int) -> None:
        """See the port."""


async def test_a_clean_start_names_nothing(tmp_path: Path) -> None:
    """Caution costs a write a record, so it is for after a crash only."""
    names = Names(after_crash=False)
    caution = Caution(names, page=4)
    assert caution.page == 4
    assert await caution.admits(FollowUpRecord(1, 0, b""))
    assert names.named == []


async def test_caution_ends_after_two_pages(tmp_path: Path) -> None:
    """What killed the process was among the first that were due; or at once when nothing is due."""
    names = Names(after_crash=True)
    caution = Caution(names, page=4)
    for number in range(8):
        assert caution.page == 1
        record = FollowUpRecord(number, 0, b"")
        assert await caution.admits(record)
        await caution.worked([record])
    assert (caution.page, names.named) == (4, list(range(8)))
    idle = Caution(Names(after_crash=True), page=4)
    assert idle.page == 1
    await idle.worked([])
    assert idle.page == 4
