"""Topics with as many subscribers as a benchmark wants, written where the embedded store of prefs keeps them.

By calls, which are durable one by one, a hundred thousand would take minutes. Must not be used on engines.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import time
from collections.abc import Mapping, Sequence

from bench.installation import Installation

_TENANT = "acme"
# Rows of a transaction: prefs waits a second for its turn to write.
_GROUP = 5_000
_WAIT_S = 30.0
_INSERT = "insert or ignore into subscriptions (tenant_id, recipient_id, topic_id, create_us) values (?, ?, ?, ?)"


def subscribe(installation: Installation, topics: Mapping[str, Sequence[str]]) -> None:
    """Subscribes recipients.

    Args:
        installation: it serves.
        topics: ids with their subscribers.
    """
    now_us = time.time_ns() // 1_000
    rows = ((_TENANT, recipient, topic, now_us) for topic, members in topics.items() for recipient in members)
    path = installation.folder / "data" / "prefs.db"
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=rw", uri=True, timeout=_WAIT_S)) as connection:
        while group := list(itertools.islice(rows, _GROUP)):
            with connection:
                connection.executemany(_INSERT, group)


def interleaved(listening: Sequence[str], count: int) -> list[str]:
    """Returns so many ids, with those of `listening` spread evenly over their order by bytes.

    Args:
        listening: ids in order, none the beginning of another one.
        count: a multiple of their number.
    """
    return [
        f"{name}-{number:05d}" if number else name for name in listening for number in range(count // len(listening))
    ]
