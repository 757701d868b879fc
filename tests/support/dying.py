"""A delivery that dies at a record: its presence ends the process when it is asked for one recipient.

Run as a program: works what is due in a folder until nothing is left, or until it dies. Must not assert anything.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.delivering import InProcessPresence
from tests.support.retrying import Retrying, retrying

POISON = "acme/poison"
DIED = 9


class DeadlyPresence(InProcessPresence):
    """Ends the process, without any order, when it is asked for the poisonous recipient."""

    async def look_up(self, recipient_keys: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """See the port."""
        if POISON in recipient_keys:
            os._exit(DIED)
        return await super().look_up(recipient_keys)


async def work(data_dir: Path, follow_ups_url: str, seconds: float) -> None:
    """Works what is due after so many seconds."""
    async with retrying(data_dir, follow_ups_url=follow_ups_url) as made:
        dying = Retrying(made.store, presence=DeadlyPresence(), clock=made.clock)
        await dying.after(seconds)


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
