"""Dead letters in Cassandra: whole ones by their id, and lists of their places by day. Step 9 of the path.

A letter is in several tables, and a process may die between two of them. The table by id says what there is: it is
written last and cleared first, so a place in a list without its letter is passed over, and nothing is half there. What
is left behind by a crash goes with its TTL.

Must not read inside a letter.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

from mesh.cassandra import Session
from svc_delivery.ports_dead_letters import DeadLetterRecord, PageStart
from svc_delivery.store.cassandra_calls import all_of, prepare_all

_DAY_US: Final = 86_400_000_000
_DAY_S: Final = 86_400
# A day of one tenant is spread over so many partitions.
_SHARDS: Final = 4
# No tenant's id: letters of all tenants are listed under it.
_EVERYBODY: Final = "*"
_LATEST: Final = PageStart(2**63 - 1, b"")
# A day is noted again so that it outlives its letters, and days are remembered to note them seldom.
_DAYS_KEPT: Final = 10_000

# Time and id, as a list has them; newest first by comparing them.
_Place: TypeAlias = tuple[int, bytes]

_COLUMNS: Final = "letter_id, reason, tenant, recipient, notification_id, bury_us, letter"
_FIND: Final = "select bury_us from dead_by_id where letter_id = ? limit 1"
_READ: Final = f"select {_COLUMNS} from dead_by_id where letter_id = ? limit 1"
_READ_WHOLE: Final = f"select {_COLUMNS}, original from dead_by_id where letter_id = ? limit 1"
_INSERT: Final = (
    f"insert into dead_by_id ({_COLUMNS}, original) values (?, ?, ?, ?, ?, ?, ?, ?) using timestamp ? and ttl ?"
)
_ATTEMPTS: Final = (
    "select bury_us, reason, tenant, recipient, notification_id, writetime(letter) from dead_by_id where letter_id = ?"
)
_DELETE: Final = "delete from dead_by_id using timestamp ? where letter_id = ?"

_NOTE_DAY: Final = "insert into dead_days (tenant, day) values (?, ?) using timestamp ? and ttl ?"
_DAYS: Final = "select day from dead_days where tenant = ? and day <= ?"

_LIST: Final = (
    "insert into dead_letters (tenant, day, shard, bury_us, letter_id) values (?, ?, ?, ?, ?) "
    "using timestamp ? and ttl ?"
)
_UNLIST: Final = (
    "delete from dead_letters using timestamp ? "
    "where tenant = ? and day = ? and shard = ? and bury_us = ? and letter_id = ?"
)
_PAGE: Final = (
    "select bury_us, letter_id from dead_letters "
    "where tenant = ? and day = ? and shard = ? and (bury_us, letter_id) < (?, ?) limit ?"
)
_OLDEST: Final = (
    "select bury_us, letter_id from dead_letters where tenant = ? and day = ? and shard = ? and bury_us <= ? "
    "order by bury_us asc, letter_id asc limit ?"
)

_LIST_REASON: Final = (
    "insert into dead_by_reason (tenant, reason, day, bury_us, letter_id) values (?, ?, ?, ?, ?) "
    "using timestamp ? and ttl ?"
)
_UNLIST_REASON: Final = (
    "delete from dead_by_reason using timestamp ? "
    "where tenant = ? and reason = ? and day = ? and bury_us = ? and letter_id = ?"
)
_PAGE_REASON: Final = (
    "select bury_us, letter_id from dead_by_reason "
    "where tenant = ? and reason = ? and day = ? and (bury_us, letter_id) < (?, ?) limit ?"
)

_LIST_RECIPIENT: Final = (
    "insert into dead_by_recipient (recipient, notification_id, bury_us, letter_id) values (?, ?, ?, ?) "
    "using timestamp ? and ttl ?"
)
_UNLIST_RECIPIENT: Final = (
    "delete from dead_by_recipient using timestamp ? "
    "where recipient = ? and notification_id = ? and bury_us = ? and letter_id = ?"
)
_ABOUT: Final = "select bury_us, letter_id from dead_by_recipient where recipient = ? and notification_id = ?"
_STATEMENTS: Final = (
    *(_FIND, _READ, _READ_WHOLE, _INSERT, _ATTEMPTS, _DELETE, _NOTE_DAY, _DAYS, _LIST, _UNLIST, _PAGE, _OLDEST),
    *(_LIST_REASON, _UNLIST_REASON, _PAGE_REASON, _LIST_RECIPIENT, _UNLIST_RECIPIENT, _ABOUT),
)


class CassandraDeadLetters:
    """Implements `DeadLetters` on a session that is opened and closed elsewhere."""

    def __init__(self, session: Session, *, keep_days: int, stamp: Callable[[], int]) -> None:
        """Takes what it needs.

        Args:
            session: of the inbox's keyspace.
            keep_days: letters are gone then, by TTL.
            stamp: the writer's clock in µs, never twice the same.
        """
        self._session = session
        self._keep_us = keep_days * _DAY_US
        self._keep_s = keep_days * _DAY_S
        self._stamp = stamp
        # (tenant, day) → the stamp of its note.
        self._noted: dict[tuple[str, int], int] = {}

    async def load(self) -> None:
        """Prepares the statements; to be called once, before use.

        Raises:
            StartError: the keyspace has another schema.
        """
        await prepare_all(self._session, "the dead letters", _STATEMENTS)

    async def bury(self, letters: Sequence[DeadLetterRecord]) -> None:
        """See `DeadLetters`."""
        known = await all_of(self._session.execute(_FIND, (letter.letter_id,)) for letter in letters)
        new = {letter.letter_id: letter for letter, found in zip(letters, known, strict=True) if not found}
        # Of one that is there twice in this call, the first stays.
        new.update({letter.letter_id: letter for letter in reversed(letters) if letter.letter_id in new})
        if not new:
            return
        # One stamp for all tables: what removes a letter later reads it and covers exactly this attempt.
        stamp = self._stamp()
        await self._note_days(new.values(), stamp)
        await all_of(self._session.execute(*one) for letter in new.values() for one in self._listings(letter, stamp))
        await all_of(
            self._session.execute(_INSERT, (*_columns_of(letter), stamp, self._keep_s)) for letter in new.values()
        )

    async def page(
        self, *, tenant_id: str, reason: int, start: PageStart | None, limit: int
    ) -> Sequence[DeadLetterRecord]:
        """See `DeadLetters`."""
        tenant = tenant_id or _EVERYBODY
        behind = start or _LATEST
        found: list[DeadLetterRecord] = []
        for day in await self._days(tenant, behind.bury_us):
            while len(found) < limit:
                places = await self._places(tenant, reason, day, behind, limit - len(found))
                if not places:
                    break
                found += await self._letters(places)
                behind = PageStart(*places[-1])
            if len(found) >= limit:
                break
        return found

    async def get(self, letter_ids: Sequence[bytes]) -> Sequence[DeadLetterRecord | None]:
        """See `DeadLetters`."""
        answers = await all_of(self._session.execute(_READ_WHOLE, (letter_id,)) for letter_id in letter_ids)
        return [DeadLetterRecord(*rows[0]) if rows else None for rows in answers]

    async def about(self, recipient_key: str, notification_id: bytes) -> Sequence[DeadLetterRecord]:
        """See `DeadLetters`."""
        if not recipient_key:
            return []
        (places,) = await all_of([self._session.execute(_ABOUT, (recipient_key, notification_id))])
        return await self._letters(places)

    async def remove(self, letter_ids: Sequence[bytes]) -> None:
        """See `DeadLetters`."""
        await self._remove(letter_ids)

    async def sweep(self, now_us: int, limit: int) -> int:
        """See `DeadLetters`; the TTL has removed them all, unless clocks or settings were changed."""
        end_us = now_us - self._keep_us
        removed = 0
        for day in reversed(await self._days(_EVERYBODY, end_us)):
            while removed < limit and (places := await self._oldest(day, end_us, limit - removed)):
                removed += await self._remove([letter_id for _, letter_id in places])
                # Also those whose letter was gone already: else they would be found again and again.
                await all_of(self._session.execute(*self._unlisting(_EVERYBODY, place)) for place in places)
        return removed

    # ---------------------------------------------------------------- lists

    async def _note_days(self, letters: Iterable[DeadLetterRecord], stamp: int) -> None:
        days = {(tenant, _day_of(letter.bury_us)) for letter in letters for tenant in _tenants_of(letter.tenant_id)}
        due = [day for day in days if self._noted.get(day, 0) < stamp - _DAY_US]
        # A day later than its letters of the same day may be.
        keep_s = self._keep_s + 2 * _DAY_S
        await all_of(self._session.execute(_NOTE_DAY, (*day, stamp, keep_s)) for day in due)
        if len(self._noted) > _DAYS_KEPT:
            self._noted.clear()
        self._noted.update(dict.fromkeys(due, stamp))

    def _listings(self, letter: DeadLetterRecord, stamp: int) -> Iterable[tuple[str, tuple[Any, ...]]]:
        place = (letter.bury_us, letter.letter_id)
        day = _day_of(letter.bury_us)
        written = (stamp, self._keep_s)
        for tenant in _tenants_of(letter.tenant_id):
            yield _LIST, (tenant, day, _shard_of(letter.letter_id), *place, *written)
            yield _LIST_REASON, (tenant, letter.reason, day, *place, *written)
        if letter.recipient_key:
            yield _LIST_RECIPIENT, (letter.recipient_key, letter.notification_id, *place, *written)

    async def _days(self, tenant: str, end_us: int) -> list[int]:
        """Returns the days that have letters of a tenant, up to this time; the latest first."""
        end = _day_of(min(end_us, _LAST_DAY_US))
        (days,) = await all_of([self._session.execute(_DAYS, (tenant, end))])
        return [day for (day,) in days]

    async def _places(self, tenant: str, reason: int, day: int, behind: PageStart, limit: int) -> Sequence[_Place]:
        bound = (behind.bury_us, behind.letter_id, limit)
        if reason:
            (places,) = await all_of([self._session.execute(_PAGE_REASON, (tenant, reason, day, *bound))])
            return places
        shards = await all_of(self._session.execute(_PAGE, (tenant, day, shard, *bound)) for shard in range(_SHARDS))
        return list(islice(heapq.merge(*shards, reverse=True), limit))

    async def _oldest(self, day: int, end_us: int, limit: int) -> Sequence[_Place]:
        bound = (end_us, limit)
        shards = await all_of(
            self._session.execute(_OLDEST, (_EVERYBODY, day, shard, *bound)) for shard in range(_SHARDS)
        )
        return list(islice(heapq.merge(*shards), limit))

    async def _letters(self, places: Sequence[_Place]) -> list[DeadLetterRecord]:
        """Returns the letters of places, in their order, without those that are not there or are somewhere else."""
        answers = await all_of(self._session.execute(_READ, (letter_id,)) for _, letter_id in places)
        letters = [DeadLetterRecord(*rows[0]) if rows else None for rows in answers]
        return [
            letter
            for letter, (bury_us, _) in zip(letters, places, strict=True)
            if letter is not None and letter.bury_us == bury_us
        ]

    # ---------------------------------------------------------------- removing

    async def _remove(self, letter_ids: Sequence[bytes]) -> int:
        """Removes letters, and returns how many there were."""
        found = await all_of(self._session.execute(_ATTEMPTS, (letter_id,)) for letter_id in letter_ids)
        attempts = [(letter_id, rows) for letter_id, rows in zip(letter_ids, found, strict=True) if rows]
        # At the stamp of what was read: a letter that is buried anew meanwhile has a later one, whosever clock it is.
        await all_of(
            self._session.execute(_DELETE, (max(row[-1] for row in rows), letter_id)) for letter_id, rows in attempts
        )
        await all_of(
            self._session.execute(*one)
            for letter_id, rows in attempts
            for row in rows
            for one in self._unlistings(letter_id, *row)
        )
        return len({letter_id for letter_id, _ in attempts})

    def _unlistings(
        self, letter_id: bytes, bury_us: int, reason: int, tenant_id: str, recipient: str, about: bytes, stamp: int
    ) -> Iterable[tuple[str, tuple[Any, ...]]]:
        place = (bury_us, letter_id)
        day = _day_of(bury_us)
        for tenant in _tenants_of(tenant_id):
            yield _UNLIST, (stamp, tenant, day, _shard_of(letter_id), *place)
            yield _UNLIST_REASON, (stamp, tenant, reason, day, *place)
        if recipient:
            yield _UNLIST_RECIPIENT, (stamp, recipient, about, *place)

    def _unlisting(self, tenant: str, place: _Place) -> tuple[str, tuple[Any, ...]]:
        bury_us, letter_id = place
        return _UNLIST, (self._stamp(), tenant, _day_of(bury_us), _shard_of(letter_id), bury_us, letter_id)


_LAST_DAY_US: Final = (2**31 - 1) * _DAY_US


def _columns_of(letter: DeadLetterRecord) -> tuple[Any, ...]:
    return (
        letter.letter_id,
        letter.reason,
        letter.tenant_id,
        letter.recipient_key,
        letter.notification_id,
        letter.bury_us,
        letter.letter,
        letter.original,
    )


def _tenants_of(tenant_id: str) -> tuple[str, ...]:
    """Returns under which tenants a letter is listed; what could not be read belongs to none."""
    return (_EVERYBODY, tenant_id) if tenant_id else (_EVERYBODY,)


def _day_of(time_us: int) -> int:
    return time_us // _DAY_US


def _shard_of(letter_id: bytes) -> int:
    return zlib.crc32(letter_id) % _SHARDS
