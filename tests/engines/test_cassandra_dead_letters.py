"""Dead letters in several tables of Cassandra: a process that dies between two of them leaves nothing half there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest

from mesh.cassandra import Bound, Row, Session, StoreUnavailable, Value, open_session, parse
from svc_delivery.ports_dead_letters import DeadLetterRecord
from svc_delivery.store.cassandra_dead_letters import CassandraDeadLetters
from tests.support.cassandra import CassandraOpener
from tests.support.inbox import ALICE, NOW_US, make_id

pytestmark = pytest.mark.engines

LETTER = DeadLetterRecord(make_id(1), 3, "acme", ALICE, make_id(1), NOW_US, b"letter", b"original")
LATER = msgspec.structs.replace(LETTER, bury_us=NOW_US + 90_000_000_000)


class DyingSession:
    """A session whose process dies after so many writes."""

    def __init__(self, session: Session, writes: int) -> None:
        self._session = session
        self._left = writes
        self.died = False

    @property
    def datacenter(self) -> str:
        """See `Session`."""
        return self._session.datacenter

    @property
    def connected(self) -> bool:
        """See `Session`."""
        return self._session.connected

    async def prepare(self, statements: Sequence[str]) -> None:
        """See `Session`."""
        await self._session.prepare(statements)

    async def execute(self, statement: str, values: Sequence[Value] = ()) -> list[Row]:
        """See `Session`."""
        if not statement.startswith("select"):
            self._left -= 1
            if self._left < 0:
                self.died = True
                raise StoreUnavailable("the process died", outcome_unknown=False)
        return await self._session.execute(statement, values)

    async def batch(self, statements: Sequence[Bound]) -> None:
        """See `Session`."""
        await self._session.batch(statements)

    async def close(self) -> None:
        """See `Session`."""
        await self._session.close()


class Clock:
    """Stamps that rise by one."""

    def __init__(self, at: int) -> None:
        self._at = at

    def next(self) -> int:
        """The next one."""
        self._at += 1
        return self._at


@pytest.fixture
async def session(tmp_path: Path) -> AsyncIterator[Session]:
    """A session of an empty keyspace."""
    opener = CassandraOpener("cassandra", tmp_path)
    async with opener():
        opened = await open_session(parse("tests", opener.url))
        try:
            yield opened
        finally:
            await opened.close()


def letters_of(session: Session, clock: Clock) -> CassandraDeadLetters:
    """A process's view of the letters."""
    return CassandraDeadLetters(session, keep_days=30, stamp=clock.next)


async def seen(letters: CassandraDeadLetters) -> list[list[DeadLetterRecord]]:
    """The letters of each way to look: all, by tenant, by reason, by both, by recipient, by id."""
    found: list[Sequence[DeadLetterRecord]] = [
        await letters.page(tenant_id=tenant, reason=reason, start=None, limit=9)
        for tenant in ("", "acme")
        for reason in (0, 3)
    ]
    found.append(await letters.about(ALICE, make_id(1)))
    whole = [one for one in await letters.get([LETTER.letter_id]) if one is not None]
    assert all(one.original == b"original" for one in whole)
    found.append([msgspec.structs.replace(one, original=b"") for one in whole])
    return [list(one) for one in found]


def everywhere(*letters: DeadLetterRecord) -> list[list[DeadLetterRecord]]:
    """What `seen` is when these are there."""
    return [[msgspec.structs.replace(one, original=b"") for one in letters]] * 6


async def test_a_burial_that_was_cut_off_is_repeated(session: Session) -> None:
    """Wherever it ends, the letter is nowhere or everywhere; the next process buries it, at another time, once."""
    writes = 0
    while True:
        clock = Clock(NOW_US + writes * 1_000)
        dying = DyingSession(session, writes)
        letters = letters_of(session, clock)
        if writes:
            await letters.remove([LETTER.letter_id])
        try:
            await letters_of(dying, clock).bury([LETTER])
        except StoreUnavailable:
            assert await seen(letters) == everywhere()
        else:
            assert await seen(letters) == everywhere(LETTER)
            break
        await letters.bury([LATER])
        assert await seen(letters) == everywhere(LATER)
        writes += 1
    # A note of the day for two tenants, two lists for each, the recipient's, and the letter.
    assert writes == 8


async def test_a_removal_that_was_cut_off_is_repeated(session: Session) -> None:
    """Wherever it ends, the letter is everywhere or nowhere, and may be buried anew."""
    for writes in range(7):
        clock = Clock(NOW_US + writes * 1_000)
        letters = letters_of(session, clock)
        await letters.bury([LETTER])
        dying = DyingSession(session, writes)
        try:
            await letters_of(dying, clock).remove([LETTER.letter_id])
        except StoreUnavailable:
            assert dying.died
        assert dying.died == (writes < 6)
        assert await seen(letters) == (everywhere() if writes else everywhere(LETTER))
        await letters.remove([LETTER.letter_id])
        assert await seen(letters) == everywhere()


async def test_two_who_bury_at_once_leave_one(session: Session) -> None:
    """The heir and the one that was thought dead: the earlier letter stays, whoever is first."""
    clock = Clock(NOW_US)
    one, other = letters_of(session, clock), letters_of(session, clock)
    for _ in range(20):
        await asyncio.gather(one.bury([LATER]), other.bury([LETTER]))
        found = await seen(one)
        assert found in (everywhere(LETTER), everywhere(LATER))
        await one.remove([LETTER.letter_id])
        assert await seen(one) == everywhere()


async def test_a_clock_that_is_behind_loses_no_letter(session: Session) -> None:
    """Removed by a process whose clock is ahead, buried anew by one that is behind: it is there."""
    ahead, behind = letters_of(session, Clock(NOW_US + 900_000)), letters_of(session, Clock(NOW_US + 100))
    await letters_of(session, Clock(NOW_US)).bury([LETTER])
    await ahead.remove([LETTER.letter_id])
    await behind.bury([LATER])
    assert await seen(ahead) == everywhere(LATER)
