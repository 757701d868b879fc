"""Statements that run side by side, for stores in which a refused statement is no fault of one row.

Must not know any table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import TypeVar

from mesh.cassandra import Session, StatementRefused
from mesh.errors import StartError, Unavailable

T = TypeVar("T")


async def all_of(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Awaits calls that run side by side, and returns their answers in order.

    All of them, so that none is left behind when another fails.

    Raises:
        mesh.errors.Unavailable: one of them did not succeed.
    """
    answers: list[T] = []
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(answer, StatementRefused):
            raise Unavailable(str(answer), reason="STORE_UNAVAILABLE") from None
        if isinstance(answer, BaseException):
            raise answer
        answers.append(answer)
    return answers


async def prepare_all(session: Session, what: str, statements: Sequence[str]) -> None:
    """Prepares what a store uses, so that its first use is as quick as the next.

    Raises:
        StartError: the keyspace has another schema.
    """
    try:
        await session.prepare(statements)
    except StatementRefused as error:
        raise StartError(f"{what} in Cassandra: {error}; run `heliograph stores migrate`") from None
