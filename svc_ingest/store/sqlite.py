"""The request log in a SQLite file. Path step 2.

Must not be asked to prove anything: the lanes are the truth, this is a memory. So its commits survive the end of the
process, not a loss of power, and cost no sync: losing the last ones means a second record with the same id.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from mesh import ids, sqlite
from svc_ingest import limits
from svc_ingest.ports import Answer, Claim, Done, Fresh, Known, Pending

_MICROS = 1_000_000
_LEASE = round(limits.REQUEST_LEASE_S * _MICROS)
# A clock that was set back further than this makes a lease end rather than live on.
_SET_BACK = _MICROS

_INSERT = """insert into request (producer_key, request_id, digest, id_time_ms, begin_micros, holder)
values (?, ?, ?, ?, ?, ?) on conflict do nothing"""
_SELECT = """select digest, id_time_ms, begin_micros, holder, event_id, accept_micros from request
where producer_key = ? and request_id = ?"""
# Taken out and put in again, so that numbers stay in the order of time.
_DELETE = "delete from request where producer_key = ? and request_id = ?"
_FINISH = """insert into request (producer_key, request_id, digest, id_time_ms, begin_micros, event_id, accept_micros)
values (?, ?, ?, ?, ?, ?, ?) on conflict (producer_key, request_id) do update set
digest = excluded.digest, id_time_ms = excluded.id_time_ms, holder = null, event_id = excluded.event_id,
accept_micros = excluded.accept_micros where holder is not null"""
_RELEASE = "delete from request where producer_key = ? and request_id = ? and holder = ?"
_SWEEP = """delete from request where number in (select number from request order by number limit ?)
and begin_micros < ?"""


class SqliteRequestLog:
    """`RequestLog` in one file, written by this process only."""

    def __init__(self, url: str, data_dir: Path) -> None:
        self._writer = sqlite.Writer(
            sqlite.file_of(url, data_dir), migrations=sqlite.load_migrations("svc_ingest.store"), synced=False
        )

    async def open(self) -> None:
        """Opens or makes the file."""
        await self._writer.open()

    async def begin(self, claims: Sequence[Claim], now: float) -> Sequence[Known]:
        """Claims requests in one transaction."""
        now_micros = round(now * _MICROS)
        rows = [
            (_key(claim), claim.request_id, claim.digest, claim.id_time_ms, now_micros, claim.holder)
            for claim in claims
        ]

        def work(connection: sqlite3.Connection) -> list[Known]:
            before = connection.total_changes
            connection.executemany(_INSERT, rows)
            if connection.total_changes - before == len(rows):
                return [Fresh(claim.id_time_ms) for claim in claims]
            mine: set[tuple[str, bytes]] = set()
            return [_judge(connection, claim, now_micros, mine) for claim in claims]

        return await self._writer.submit(work)

    async def finish(self, answers: Sequence[Answer]) -> None:
        """Makes requests done in one transaction."""
        rows = [
            (
                _key(answer.claim),
                answer.claim.request_id,
                answer.claim.digest,
                answer.claim.id_time_ms,
                answer.accept_micros,
                answer.event_id,
                answer.accept_micros,
            )
            for answer in answers
        ]
        await self._writer.submit(lambda connection: _run_all(connection, _FINISH, rows))

    async def release(self, claims: Sequence[Claim]) -> None:
        """Forgets what these holders still hold."""
        rows = [(_key(claim), claim.request_id, claim.holder) for claim in claims]
        await self._writer.submit(lambda connection: _run_all(connection, _RELEASE, rows))

    async def sweep(self, before: float, limit: int) -> int:
        """Forgets the oldest requests."""
        arguments = (limit, round(before * _MICROS))
        return await self._writer.submit(lambda connection: connection.execute(_SWEEP, arguments).rowcount)

    async def close(self) -> None:
        """Finishes what is queued and closes the file."""
        await self._writer.close()


# Producers are few.
_join = lru_cache(maxsize=1024)(ids.join_key)


def _key(claim: Claim) -> str:
    return _join(claim.tenant_id, claim.producer_id)


def _run_all(connection: sqlite3.Connection, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
    connection.executemany(statement, rows)


def _judge(connection: sqlite3.Connection, claim: Claim, now_micros: int, mine: set[tuple[str, bytes]]) -> Known:
    """Says what a claim found after all claims of the call were inserted where nothing stood."""
    key = (_key(claim), claim.request_id)
    row = connection.execute(_SELECT, key).fetchone()
    digest, id_time_ms, begin_micros, holder, event_id, accept_micros = row
    if holder is None:
        return Done(digest, event_id, accept_micros)
    if holder == claim.holder and key not in mine:
        mine.add(key)
        return Fresh(id_time_ms)
    elapsed = now_micros - begin_micros
    if -_SET_BACK <= elapsed < _LEASE:
        return Pending(min(_LEASE, _LEASE - elapsed) / _MICROS)
    kept = id_time_ms if digest == claim.digest else claim.id_time_ms
    connection.execute(_DELETE, key)
    connection.execute(_INSERT, (*key, claim.digest, kept, now_micros, claim.holder))
    mine.add(key)
    return Fresh(kept)
