"""How writes to many inboxes reach Cassandra: what belongs to one inbox together, several small inboxes in a message.

A message costs client and node more than what is in it, so inboxes share one, within what a node takes by the settings
that Cassandra is shipped with. Each inbox of a message is a mutation of its own there: what shares a message shares
neither a lock nor a moment, only the answer. What fails together is told apart before it is put down to anybody.

Must not know what is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from mesh.cassandra import Bound, Session, StatementRefused, StoreUnavailable

# Of one inbox in one message: far below what a node takes as one mutation.
_PART_STATEMENTS: Final = 100
_PART_BYTES: Final = 1 << 20
# Of several inboxes: cassandra.yaml as shipped warns above 10 partitions and 5 KiB, and refuses more than 50 KiB.
_MESSAGE_PARTS: Final = 10
_MESSAGE_BYTES: Final = 4_500
# Keys, timestamps and small cells of one statement.
_STATEMENT_BYTES: Final = 150
# So many messages are sent before others have a turn: encoding takes the event loop's time.
_BURST: Final = 8
# After a failure: long enough for a node that works, short enough to leave the caller's time alone.
_PROBE_TIME: Final = 1.0
_SOON: Final = 1.0

# Indexes of pieces that belong to one inbox.
_Part: TypeAlias = Sequence[int]
# What was sent together, and why it is not stored.
_Failure: TypeAlias = tuple[Sequence[_Part], StoreUnavailable]


class Piece(msgspec.Struct, frozen=True, gc=False):
    """What is stored as a whole or not at all.

    Attributes:
        partition: whose inbox.
        statements: what is written to it, at most 100.
        content_bytes: size of their large values.
    """

    partition: tuple[str, str]
    statements: Sequence[Bound]
    content_bytes: int = 0

    @property
    def size(self) -> int:
        """About what it takes in a message, bytes."""
        return self.content_bytes + _STATEMENT_BYTES * len(self.statements)


async def write_pieces(session: Session, pieces: Sequence[Piece], *, probe: str) -> Mapping[int, StoreUnavailable]:
    """Stores pieces; returns why some are not stored, by their index.

    What lies in one inbox is seen together, as far as it fits into one message. When some fail, the store is asked for
    something else before it is put down to them. Those that were refused together are tried alone: one of them is to
    blame. What did not answer is tried again when that was known soon, as when the node died that was asked; not when
    its time ran out.

    Args:
        session: where to.
        pieces: in any order.
        probe: a statement that a store answers that is as it must be.

    Raises:
        StoreUnavailable: the store as a whole is down; what may have been stored is unknown.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    failures = await _send(session, pieces, _messages(pieces))
    if not failures:
        return {}
    away = [error for _, error in failures if not isinstance(error, StatementRefused)]
    if away:
        await probe_store(session, probe, away[0])
    again, lost = _sort_out(failures, soon=loop.time() - began < _SOON)
    lost += await _send(session, pieces, [[part] for part in again])
    found = {index: error for parts, error in lost for part in parts for index in part}
    if len(found) == len(pieces) and not away:
        # Nothing got through: is it these pieces, or is the store not as it must be?
        await probe_store(session, probe, None)
    return found


async def probe_store(session: Session, probe: str, error: StoreUnavailable | None) -> None:
    """Returns when the store works apart from what has just failed.

    Raises:
        StoreUnavailable: it does not; what may have been stored is unknown.
    """
    try:
        async with asyncio.timeout(_PROBE_TIME):
            await session.execute(probe)
    except TimeoutError:
        raise error or StoreUnavailable("the store does not answer", outcome_unknown=True) from None


async def _send(session: Session, pieces: Sequence[Piece], messages: Sequence[Sequence[_Part]]) -> list[_Failure]:
    """Sends messages side by side; returns those that are not stored."""
    answers: list[Awaitable[Any]] = []
    for count, parts in enumerate(messages, start=1):
        if count % _BURST == 0:
            await asyncio.sleep(0)
        statements = [statement for part in parts for index in part for statement in pieces[index].statements]
        # One statement alone is cheaper than a batch of one.
        answers.append(session.batch(statements) if len(statements) > 1 else session.execute(*statements[0]))
    failures: list[_Failure] = []
    for parts, answer in zip(messages, await asyncio.gather(*answers, return_exceptions=True), strict=True):
        if isinstance(answer, StoreUnavailable):
            failures.append((parts, answer))
        elif isinstance(answer, BaseException):
            raise answer
    return failures


def _sort_out(failures: Sequence[_Failure], *, soon: bool) -> tuple[list[_Part], list[_Failure]]:
    """Returns what of a store that works is tried once more, each alone, and what is given up."""
    again: list[_Part] = []
    lost: list[_Failure] = []
    for parts, error in failures:
        if isinstance(error, StatementRefused) and sum(map(len, parts)) > 1:
            again += [[index] for part in parts for index in part]
        elif isinstance(error, StatementRefused) or not soon:
            lost.append((parts, error))
        else:
            again += parts
    return again, lost


def _messages(pieces: Sequence[Piece]) -> list[list[_Part]]:
    """Returns what is sent together."""
    messages: list[list[_Part]] = []
    count = size = 0
    for part in _parts(pieces):
        part_size = sum(pieces[index].size for index in part)
        if not messages or count == _MESSAGE_PARTS or size + part_size > _MESSAGE_BYTES:
            messages.append([])
            count = size = 0
        messages[-1].append(part)
        count += 1
        size += part_size
    return messages


def _parts(pieces: Sequence[Piece]) -> list[list[int]]:
    """Returns the indexes of pieces, each part of one inbox and of a bounded size."""
    parts: list[list[int]] = []
    open_parts: dict[tuple[str, str], tuple[list[int], int, int]] = {}
    for index, piece in enumerate(pieces):
        part, count, size = open_parts.get(piece.partition, ([], 0, 0))
        count += len(piece.statements)
        size += piece.size
        if not part or count > _PART_STATEMENTS or size > _PART_BYTES:
            part, count, size = [], len(piece.statements), piece.size
            parts.append(part)
        part.append(index)
        open_parts[piece.partition] = (part, count, size)
    return parts
