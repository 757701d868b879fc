"""After an unclean end, works the records that may have caused it one at a time, naming each in the store before.

Path step 9. A record that kills the process kills it again after every start, and everything behind it waits. Named
first, it is known for what it is after a few deaths, and is buried with its bytes. Costs nothing after a clean end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from svc_delivery.ports import FollowUpRecord
from svc_delivery.ports_dead_letters import Suspects

DEATHS: Final = 3


class Caution:
    """How carefully due records are to be taken."""

    def __init__(self, suspects: Suspects, *, page: int) -> None:
        """Holds on to its parts.

        Args:
            suspects: names of records that were worked on.
            page: records taken at once when nothing is suspected; what killed the process was among so many.
        """
        self._suspects = suspects
        self._page = page
        self._left: int | None = None

    @property
    def page(self) -> int:
        """How many records to take next."""
        return 1 if self._suspicious else self._page

    async def admits(self, record: FollowUpRecord) -> bool:
        """Says whether a record may be worked on; False for one with which the process died too often."""
        if not self._suspicious:
            return True
        return await self._suspects.name(record.record_id) < DEATHS

    async def worked(self, records: Sequence[FollowUpRecord]) -> None:
        """These did no harm; without any, nothing that was due is left to suspect."""
        if not self._suspicious:
            return
        for record in records:
            await self._suspects.clear(record.record_id)
        self._left = self._remaining - len(records) if records else 0

    @property
    def _remaining(self) -> int:
        if self._left is None:
            # Twice a page: records may have become due before those that were taken.
            self._left = 2 * self._page if self._suspects.after_crash else 0
        return self._left

    @property
    def _suspicious(self) -> bool:
        return self._remaining > 0
