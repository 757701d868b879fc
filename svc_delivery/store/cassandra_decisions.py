"""Decision records in Cassandra: why recipients of an event got nothing.

A page that comes again after a crash is stored beside the first one, and reads tell only the oldest: nothing has to be
read before a write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from mesh.cassandra import Session
from svc_delivery.ports import DecisionWrite

_PUT: Final = """
insert into decisions (tenant, event_id, decide_us, reason, page, recipients) values (?, ?, ?, ?, ?, ?)
using ttl ? and timestamp ?"""
_GET: Final = "select decide_us, reason, page, recipients from decisions where tenant = ? and event_id = ?"

DECISION_STATEMENTS: Final = (_PUT, _GET)


async def put_decisions(session: Session, decisions: Sequence[DecisionWrite], *, keep_seconds: int) -> None:
    """Stores decisions; durable on return."""
    await asyncio.gather(
        *[session.execute(_PUT, (*_values(decision), keep_seconds, decision.decide_us)) for decision in decisions]
    )


async def get_decisions(session: Session, tenant_id: str, event_id: bytes) -> list[DecisionWrite]:
    """Returns the decisions of an event, oldest first."""
    pages: dict[tuple[int, bytes], DecisionWrite] = {}
    for decide_us, reason, page, recipients in await session.execute(_GET, (tenant_id, event_id)):
        if (reason, page) not in pages:
            pages[reason, page] = DecisionWrite(tenant_id, event_id, reason, tuple(recipients.split("\n")), decide_us)
    return list(pages.values())


def _values(decision: DecisionWrite) -> tuple[str, bytes, int, int, bytes, str]:
    recipients = "\n".join(decision.recipient_ids)
    page = blake2b(recipients.encode(), digest_size=16).digest()
    return decision.tenant_id, decision.event_id, decision.decide_us, decision.suppress_reason, page, recipients
