"""What delivery needs to keep what was given up: dead letters, and the names of records that may kill a process.

Must not hold rules: when something is given up is in `core`, `steps` and `worker`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec


class DeadLetterRecord(msgspec.Struct, frozen=True, gc=False):
    """One delivery that was given up.

    Attributes:
        letter_id: sixteen bytes, derived: the same delivery and step have the same id, whoever gives it up.
        reason: a `DeadLetterReason`.
        tenant_id: whose it is; empty where it could not be read.
        recipient_key: escaped "tenant/recipient"; empty where it could not be read.
        notification_id: which notification; empty where it could not be read.
        bury_us: when it was given up.
        letter: a serialised `DeadLetter` without the bytes of the record.
        original: the bytes of the record; with the letter at most `letters.LARGEST_LETTER`, or left out.
    """

    letter_id: bytes
    reason: int
    tenant_id: str
    recipient_key: str
    notification_id: bytes
    bury_us: int
    letter: bytes
    original: bytes = b""


class PageStart(msgspec.Struct, frozen=True, gc=False):
    """A page begins behind the letter with this time and id."""

    bury_us: int
    letter_id: bytes


class DeadLetters(Protocol):
    """Dead letters by id, and newest first. Raises `mesh.errors.Unavailable` when the store cannot be asked."""

    async def bury(self, letters: Sequence[DeadLetterRecord]) -> None:
        """Stores letters; one that is there already stays as it is. Durable on return."""
        ...

    async def page(
        self, *, tenant_id: str, reason: int, start: PageStart | None, limit: int
    ) -> Sequence[DeadLetterRecord]:
        """Returns letters without their original, newest first.

        Args:
            tenant_id: only this tenant's; empty: all.
            reason: only with this reason; 0: all.
            start: behind this one; None: from the newest.
            limit: so many at most.
        """
        ...

    async def get(self, letter_ids: Sequence[bytes]) -> Sequence[DeadLetterRecord | None]:
        """Returns letters whole, in the order of their ids; None for one that is not there."""
        ...

    async def about(self, recipient_key: str, notification_id: bytes) -> Sequence[DeadLetterRecord]:
        """Returns the letters of one delivery without their original, oldest first."""
        ...

    async def remove(self, letter_ids: Sequence[bytes]) -> None:
        """Removes letters; one that is gone is no error. Durable on return."""
        ...

    async def sweep(self, now_us: int, limit: int) -> int:
        """Removes up to `limit` letters that are older than 30 days, and returns how many; 0 when there is none."""
        ...


class Suspects(Protocol):
    """Names of records that were worked on when the process died."""

    @property
    def after_crash(self) -> bool:
        """Whether the process before this one did not end in order. Known once the store is open."""
        ...

    async def name(self, record_id: int) -> int:
        """Notes that a record is worked on; returns how often that was noted before without `clear`. Durable."""
        ...

    async def clear(self, record_id: int) -> None:
        """The record did no harm."""
        ...
