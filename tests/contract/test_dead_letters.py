"""What every store of dead letters promises; see `svc_delivery.ports_dead_letters.DeadLetters`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from heliograph.delivery.v1 import dead_letter_service_pb2
from svc_delivery import letters as rules
from svc_delivery.ports import FollowUpRecord
from svc_delivery.ports_dead_letters import DeadLetterRecord, DeadLetters, PageStart
from svc_delivery.store import InboxStore
from tests.support.backends import Opener, inbox_backends
from tests.support.inbox import ALICE, BOB, DAY_US, NOW_US, make_id


@pytest.fixture(params=inbox_backends())
async def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener[InboxStore]:
    """Opens the same store again and again."""
    opened: Opener[InboxStore] = request.param(tmp_path)
    return opened


@pytest.fixture
async def letters(opener: Opener[InboxStore]) -> AsyncIterator[DeadLetters]:
    """An empty store of each kind."""
    async with opener() as store:
        yield store.dead_letters


def letter(number: int, *, reason: int = 3, recipient_key: str = ALICE, bury_us: int | None = None) -> DeadLetterRecord:
    """Letter `number`, buried a second after the one before."""
    return DeadLetterRecord(
        letter_id=make_id(number),
        reason=reason,
        tenant_id=recipient_key.partition("/")[0],
        recipient_key=recipient_key,
        notification_id=make_id(number),
        bury_us=NOW_US + number * 1_000_000 if bury_us is None else bury_us,
        letter=b"letter %d" % number,
        original=b"original %d" % number,
    )


async def listed(
    letters: DeadLetters, *, tenant_id: str = "", reason: int = 0, start: PageStart | None = None, limit: int = 100
) -> list[bytes]:
    """The letters of a page, by what they say."""
    page = await letters.page(tenant_id=tenant_id, reason=reason, start=start, limit=limit)
    assert all(one.original == b"" for one in page)
    return [one.letter for one in page]


async def test_a_buried_letter_is_there_whole(opener: Opener[InboxStore]) -> None:
    """Every field comes back, also after a restart; ids that are not there are None."""
    async with opener() as store:
        await store.dead_letters.bury([letter(1), letter(2, recipient_key="")])
    async with opener() as store:
        found = await store.dead_letters.get([make_id(2), make_id(9), make_id(1)])
        assert list(found) == [letter(2, recipient_key=""), None, letter(1)]


async def test_burying_again_changes_nothing(letters: DeadLetters) -> None:
    """Whoever repeats a step after a crash buries the same letter; the first one stays."""
    await letters.bury([letter(1)])
    await letters.bury([msgspec.structs.replace(letter(1), bury_us=NOW_US + 9, letter=b"other"), letter(2)])
    assert await listed(letters) == [b"letter 2", b"letter 1"]
    assert list(await letters.get([make_id(1)])) == [letter(1)]


async def test_pages_are_newest_first_and_complete(letters: DeadLetters) -> None:
    """Each letter is in one page, whatever the size, those of the same time as well; newcomers disturb no page."""
    await letters.bury([letter(number, bury_us=NOW_US + number // 3) for number in range(20)])
    for size in (1, 2, 3, 7, 20):
        seen: list[bytes] = []
        start = None
        while page := await letters.page(tenant_id="", reason=0, start=start, limit=size):
            seen += [one.letter_id for one in page]
            start = PageStart(page[-1].bury_us, page[-1].letter_id)
        newest_first = sorted(range(20), key=lambda number: (number // 3, make_id(number)), reverse=True)
        assert seen == [make_id(number) for number in newest_first]
    start = PageStart(NOW_US + 3, make_id(9))
    before = await listed(letters, start=start)
    await letters.bury([letter(99)])
    assert await listed(letters, start=start) == before


async def test_a_filter_shows_what_it_names(letters: DeadLetters) -> None:
    """By tenant, by reason, by both; what could not be read belongs to no tenant."""
    await letters.bury([letter(1), letter(2, reason=4)])
    await letters.bury([letter(3, recipient_key="other/eve"), letter(4, recipient_key="")])
    assert await listed(letters, tenant_id="acme") == [b"letter 2", b"letter 1"]
    assert await listed(letters, reason=3) == [b"letter 4", b"letter 3", b"letter 1"]
    assert await listed(letters, tenant_id="acme", reason=4, limit=5) == [b"letter 2"]
    assert await listed(letters, tenant_id="nobody") == []
    assert await listed(letters) == [b"letter %d" % number for number in (4, 3, 2, 1)]


async def test_the_letters_of_a_delivery_are_found(letters: DeadLetters) -> None:
    """Of this recipient and notification only, oldest first."""
    second = msgspec.structs.replace(letter(1), letter_id=make_id(7), bury_us=NOW_US, letter=b"second")
    await letters.bury([letter(1), second, letter(2)])
    assert [one.letter for one in await letters.about(ALICE, make_id(1))] == [b"second", b"letter 1"]
    assert list(await letters.about(BOB, make_id(1))) == []


async def test_a_removed_letter_is_gone(letters: DeadLetters) -> None:
    """Removing it again is no error, and it may be buried anew."""
    await letters.bury([letter(1), letter(2)])
    for _ in range(2):
        await letters.remove([make_id(1), make_id(5)])
        assert await listed(letters) == [b"letter 2"]
    await letters.bury([letter(1)])
    assert await listed(letters) == [b"letter 2", b"letter 1"]


async def test_letters_are_kept_for_thirty_days(letters: DeadLetters) -> None:
    """The sweep removes older ones, in slices, and nothing else."""
    await letters.bury([letter(number) for number in range(5)])
    assert await letters.sweep(NOW_US + 30 * DAY_US - 1, 10) == 0
    now_us = NOW_US + 30 * DAY_US + 2_000_000
    assert [await letters.sweep(now_us, 2) for _ in range(3)] == [2, 1, 0]
    assert await listed(letters) == [b"letter 4", b"letter 3"]


async def test_a_letter_of_the_largest_size_is_taken(opener: Opener[InboxStore]) -> None:
    """Beyond it the bytes are left out; what remains says how many there were, and where the record lay."""
    async with opener() as store:
        for number, size in ((1, rules.LARGEST_LETTER - 1_000), (2, 20 << 20)):
            record = FollowUpRecord(number, 0, b"\xff" * size)
            reason = dead_letter_service_pb2.DEAD_LETTER_REASON_UNDECODABLE
            await store.dead_letters.bury(
                [rules.unreadable(record, "no", reason=reason, epoch="e", now_us=NOW_US + number)]
            )
    async with opener() as store:
        page = await store.dead_letters.page(tenant_id="", reason=0, start=None, limit=10)
        large, whole = [
            rules.show(one, whole=True)
            for one in await store.dead_letters.get([one.letter_id for one in page])
            if one is not None
        ]
    assert (large.original, large.left_out.size_bytes, large.lane_position) == (b"", 20 << 20, "follow_ups/2")
    assert (len(whole.original), whole.HasField("left_out")) == (rules.LARGEST_LETTER - 1_000, False)
