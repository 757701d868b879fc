"""Decision records in the inbox's SQLite file: why recipients of an event got nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from svc_delivery.ports import DecisionWrite

_INSERT: Final = """
insert or ignore into decisions (tenant, event_id, reason, recipients, page, decide_us) values (?, ?, ?, ?, ?, ?)"""


def insert_decisions(connection: sqlite3.Connection, decisions: Sequence[DecisionWrite]) -> None:
    """Stores decisions inside somebody's transaction; a page that is there already stays as it is."""
    if decisions:
        connection.executemany(_INSERT, [_values(decision) for decision in decisions])


def read_decisions(connection: sqlite3.Connection, tenant_id: str, event_id: bytes) -> list[DecisionWrite]:
    """Returns the decisions of an event, oldest first."""
    found = connection.execute(
        "select reason, recipients, decide_us from decisions where tenant = ? and event_id = ? order by number",
        (tenant_id, event_id),
    ).fetchall()
    return [
        DecisionWrite(tenant_id, event_id, reason, tuple(recipients.split("\n")), decide_us)
        for reason, recipients, decide_us in found
    ]


def sweep_decisions(connection: sqlite3.Connection, oldest_us: int, limit: int) -> int:
    """Looks at the oldest decisions; removes those made at this time or before, and returns how many."""
    return connection.execute(
        "delete from decisions where number in "
        "(select number from decisions order by number limit ?) and decide_us <= ?",
        (limit, oldest_us),
    ).rowcount


def _values(decision: DecisionWrite) -> tuple[str, bytes, int, str, bytes, int]:
    recipients = "\n".join(decision.recipient_ids)
    page = blake2b(recipients.encode(), digest_size=16).digest()
    return decision.tenant_id, decision.event_id, decision.suppress_reason, recipients, page, decision.decide_us
