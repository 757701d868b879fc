"""The rule that makes a write count: the store must answer within W of the stamp, else again under a fresh one.

A cursor stands W + S before the read that issued it, so a row that is not yet visible to that read must get a later
stamp than the cursor. That holds only for writers that believe no late answer.

Must not know what is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mesh.clock import Stamper
from svc_delivery import core
from svc_delivery.ports import DecisionWrite, FollowUpWrite, Inbox, MarkOutcome, MarkWrite, RowsRefused, RowWrite


class FreshWriter:
    """Writes to the inbox under stamps that count."""

    def __init__(
        self, *, inbox: Inbox, stamper: Stamper, limit: float, late: Callable[[], None], tries: int = 3
    ) -> None:
        """Holds on to its parts.

        Args:
            inbox: where to write.
            stamper: the process's one writer's clock.
            limit: W in seconds.
            late: told of each answer that came too late.
            tries: after so many late answers the store counts as not answering.
        """
        self._inbox = inbox
        self._stamper = stamper
        self._limit = limit
        self._late = late
        self._tries = tries

    async def write(
        self,
        rows: Sequence[RowWrite],
        follow_up: FollowUpWrite | None = None,
        decisions: Sequence[DecisionWrite] = (),
    ) -> int:
        """Stores rows, follow-up and decisions; returns the stamp that counts.

        Raises:
            Unavailable: the store did not answer, or always too late, or the clock was set; what it has is unknown.
            RowsRefused: the store refused some rows; the others are stored under a stamp that counts, nothing else is.
        """
        for attempt in range(self._tries):
            self._stamper.check()
            stamp = self._stamper.next()
            try:
                await self._inbox.write(rows, stamp=stamp, follow_up=follow_up, decisions=decisions)
            except RowsRefused as refusal:
                if self._is_fresh(stamp):
                    if attempt:  # what the try before stored, late, is there
                        raise RowsRefused(refusal.reasons, refusal.reasons) from refusal
                    raise
                self._late()
                continue
            if self._is_fresh(stamp):
                return stamp
            self._late()
            # They are durable, however late; only the rows' stamps do not count.
            follow_up, decisions = None, ()
        raise core.too_slow(self._limit)

    async def mark(self, marks: Sequence[MarkWrite]) -> Sequence[MarkOutcome]:
        """Stores marks.

        Raises:
            Unavailable: the store did not answer, or always too late, or the clock was set; what it has is unknown.
        """
        for attempt in range(self._tries):
            self._stamper.check()
            stamp = self._stamper.next()
            outcomes = await self._inbox.mark(marks, stamp=stamp, again=attempt > 0)
            if self._is_fresh(stamp):
                return outcomes
            self._late()
        raise core.too_slow(self._limit)

    def _is_fresh(self, stamp: int) -> bool:
        # A clock that was set meanwhile may hide how long the answer took.
        self._stamper.check()
        return self._stamper.age(stamp) <= self._limit
