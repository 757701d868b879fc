"""Rows that SQLite refuses, told from those beside them.

What a row itself is to blame for (it breaks a constraint, is too large, cannot be encoded) must harm no neighbour; what
the file or the disk is to blame for concerns all of them. Must not know what a row is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

T = TypeVar("T")

# Everything else is the file's fault, or ours.
ITEM_ERRORS: Final = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, OverflowError, ValueError)
_LARGEST_REASON: Final = 200


async def put_apart(values: list[T], error: Exception, put: Callable[[list[T]], Awaitable[None]]) -> dict[int, str]:
    """Stores rows in ever smaller parts after they failed together; returns which of them are to blame, and why."""
    reasons: dict[int, str] = {}

    async def halve(start: int, end: int, error: Exception) -> None:
        if end - start == 1:
            reasons[start] = f"{type(error).__name__}: {error}"[:_LARGEST_REASON]
            return
        middle = (start + end) // 2
        for first, last in ((start, middle), (middle, end)):
            try:
                await put(values[first:last])
            except ITEM_ERRORS as cause:
                await halve(first, last, cause)

    if len(values) > 1:
        await halve(0, len(values), error)
    elif values:
        try:
            await put(values)
        except ITEM_ERRORS as cause:
            await halve(0, 1, cause)
    return reasons
