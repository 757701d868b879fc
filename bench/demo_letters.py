"""The demo's dead letter: a row that the inbox store refuses until it is given up, and its way back.

The store's file gets a trigger from outside, as damage would: no process knows of it. Its retries are hastened in the
same file, for nobody waits eleven minutes for a demo. On Cassandra see `demo_denial.py`. Must not judge:
`demo_ledger.py` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from heliograph.delivery.v1 import dead_letter_service_pb2, dead_letter_service_pb2_grpc
from heliograph_cli.connection import OPERATOR, Actor, Connection

# No change of the source has it, so nothing else is refused.
CATEGORY = "billing"

# On a lane a try may stand behind what is due later, for as long as an ack is waited for.
_LIMIT_S = 60.0
_POLL_S = 0.1
_LOCK_LIMIT_S = 5.0
_PAGE = 500
_AS_OPERATOR = Actor("operator", OPERATOR)


class Refusing(Protocol):
    """The inbox store of one installation, from outside."""

    @property
    def how(self) -> str:
        """What is done to it, in words."""
        ...

    def refusing(self) -> AbstractContextManager[None]:
        """Refuses the rows of one recipient while the context is open."""
        ...

    def hasten(self, event_id: str) -> None:
        """Makes what waits for another try of an event due now, where that is possible."""
        ...


class RefusingStore:
    """The inbox's file, which refuses the rows of one recipient in one category while `refusing` is open."""

    def __init__(self, data: Path, recipient_key: str) -> None:
        self._file = data / "inbox.db"
        self._recipient_key = recipient_key

    @property
    def how(self) -> str:
        """What is done to it, in words."""
        return f'a trigger in inbox.db makes it refuse rows of {self._recipient_key} in the category "{CATEGORY}"'

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Refuses such rows while the context is open."""
        key = self._recipient_key.replace("'", "''")
        self._execute("drop trigger if exists demo_refusal")
        self._execute(
            "create trigger demo_refusal before insert on inbox "
            f"when new.category = '{CATEGORY}' and new.recipient = '{key}' "
            "begin select raise(abort, 'this row is refused for the demo'); end"
        )
        try:
            yield
        finally:
            self._execute("drop trigger if exists demo_refusal")

    def hasten(self, event_id: str) -> None:
        """Makes what waits for another try of an event due now."""
        self._execute("update follow_ups set due_us = 0 where instr(record, ?) > 0", event_id.encode())

    def _execute(self, statement: str, *values: bytes) -> None:
        with contextlib.closing(sqlite3.connect(self._file, timeout=_LOCK_LIMIT_S)) as connection, connection:
            connection.execute(statement, values)


async def until_buried(
    connection: Connection, store: Refusing, tenant: str, recipient_key: str, event_id: str
) -> dead_letter_service_pb2.DeadLetter | None:
    """Waits until an event's row is given up, and returns its dead letter; None after 60 s.

    Raises:
        Failure: an operator's question is refused.
    """
    end = time.monotonic() + _LIMIT_S
    while time.monotonic() < end:
        await asyncio.to_thread(store.hasten, event_id)
        found = pick(await _list(connection, tenant), recipient_key, event_id)
        if found is not None:
            return await _get(connection, found.dead_letter_id)
        await asyncio.sleep(_POLL_S)
    return None


def pick(
    letters: Sequence[dead_letter_service_pb2.DeadLetter], recipient_key: str, event_id: str
) -> dead_letter_service_pb2.DeadLetter | None:
    """Returns the letter of one delivery; None when there is none."""
    for letter in letters:
        if letter.recipient_key == recipient_key and letter.envelope.event_id == event_id:
            return letter
    return None


def reason_of(letter: dead_letter_service_pb2.DeadLetter) -> str:
    """Returns the reason as a word."""
    return dead_letter_service_pb2.DeadLetterReason.Name(letter.reason).removeprefix("DEAD_LETTER_REASON_").lower()


async def redrive(connection: Connection, dead_letter_id: str) -> bool:
    """Sends a dead letter on its way again; says whether it went.

    Raises:
        Failure: the call is refused.
    """
    answer = await connection.call(
        "delivery",
        lambda channel: dead_letter_service_pb2_grpc.DeadLetterServiceStub(channel).RedriveDeadLetters,
        dead_letter_service_pb2.RedriveDeadLettersRequest(dead_letter_ids=[dead_letter_id]),
        _AS_OPERATOR,
    )
    return answer.redriven_count == 1


async def _list(connection: Connection, tenant: str) -> Sequence[dead_letter_service_pb2.DeadLetter]:
    answer = await connection.call(
        "delivery",
        lambda channel: dead_letter_service_pb2_grpc.DeadLetterServiceStub(channel).ListDeadLetters,
        dead_letter_service_pb2.ListDeadLettersRequest(tenant_id=tenant, page_size=_PAGE),
        _AS_OPERATOR,
    )
    return answer.dead_letters


async def _get(connection: Connection, dead_letter_id: str) -> dead_letter_service_pb2.DeadLetter:
    answer = await connection.call(
        "delivery",
        lambda channel: dead_letter_service_pb2_grpc.DeadLetterServiceStub(channel).GetDeadLetter,
        dead_letter_service_pb2.GetDeadLetterRequest(dead_letter_id=dead_letter_id),
        _AS_OPERATOR,
    )
    return answer.dead_letter
