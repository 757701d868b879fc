"""Rows of the inbox in Cassandra: their statements, the cells of a row, and how long they live.

Timestamps make writes commute: content is written at the time in the id plus its revision, so the higher revision
stays; a stamp, a head and a mark at the writer's stamp; an ack at the time in the id plus its level. Pure: no I/O.
"""

from __future__ import annotations

from typing import Any, Final

from mesh.cassandra import Bound, Value
from mesh.ids import id_time_ms, split_key
from svc_delivery.ports import RowState, RowWrite

DAY_US: Final = 86_400_000_000
_SECOND_US: Final = 1_000_000
_DAY_SECONDS: Final = 86_400

_ROW: Final = "where tenant = ? and recipient = ? and high = ? and id = ?"
PUT_CONTENT: Final = (
    "update inbox using ttl ? and timestamp ? set category = ?, revision = ?, content = ?, expire_us = ? " + _ROW
)
PUT_STAMP: Final = "update inbox using ttl ? and timestamp ? set stamp = ?, head = ? " + _ROW
PUT_VISIBLE: Final = "update inbox using ttl ? and timestamp ? set stamp = ?, mark_stamp = ?, head = ? " + _ROW
PUT_READ: Final = "update inbox using ttl ? and timestamp ? set read = ? " + _ROW
PUT_HIDDEN: Final = "update inbox using ttl ? and timestamp ? set hidden = true " + _ROW
PUT_ACK: Final = "update inbox using ttl ? and timestamp ? set acked = ? " + _ROW

STATE: Final = "id, revision, stamp, mark_stamp, acked, read, hidden, expire_us"
GET_STATES: Final = f"select {STATE} from inbox where tenant = ? and recipient = ? and high = ? and id in ?"
GET_MARKED: Final = (
    f"select {STATE}, writetime(read) from inbox where tenant = ? and recipient = ? and high = ? and id in ?"
)
GET_BODIES: Final = (
    "select id, revision, content from inbox where tenant = ? and recipient = ? and high = ? and id in ?"
)
GET_HEAD: Final = "select distinct head from inbox where tenant = ? and recipient = ?"

# Answered by a store that is as it must be, whatever becomes of its inboxes.
GET_INCARNATION: Final = "select value from store where name = 'incarnation'"

WRITE_STATEMENTS: Final = (PUT_CONTENT, PUT_STAMP, PUT_VISIBLE, PUT_READ, PUT_HIDDEN, PUT_ACK)
READ_STATEMENTS: Final = (GET_STATES, GET_MARKED, GET_BODIES, GET_HEAD, GET_INCARNATION)


def partition_of(recipient_key: str) -> tuple[str, str]:
    """Returns tenant and recipient.

    Raises:
        ValueError: the key has not two parts.
    """
    tenant, recipient = split_key(recipient_key)
    return tenant, recipient


def is_high(notification_id: bytes) -> bool:
    """Whether the id says "high priority"."""
    return notification_id[-1] & 1 == 1


def id_us(notification_id: bytes) -> int:
    """The time in an id, in microseconds."""
    return id_time_ms(notification_id) * 1000


class Lifetime:
    """How long cells live, in seconds: what is left of the days that an inbox keeps."""

    def __init__(self, keep_days: int) -> None:
        self.keep_us = keep_days * DAY_US
        # A head must not go before the rows that it covers, and a row's stamp not before its content: an id may be a
        # little ahead of the writer's clock.
        self.stamp = (keep_days + 1) * _DAY_SECONDS

    def left(self, notification_id: bytes, stamp: int) -> int:
        """Seconds that are left to a row at this stamp; never none, because that would mean "for ever"."""
        return max(1, -(-(id_us(notification_id) + self.keep_us - stamp) // _SECOND_US))


def put_row(row: RowWrite, partition: tuple[str, str], *, stamp: int, lifetime: Lifetime) -> list[Bound]:
    """Returns the statements that store a row."""
    id_ = row.notification_id
    time_us = id_us(id_)
    end = time_us + lifetime.keep_us
    if row.expire_us is not None and row.expire_us < end:
        end = row.expire_us
    key = (*partition, is_high(id_), id_)
    content = (lifetime.left(id_, stamp), time_us + row.revision, row.category, row.revision, row.content, end, *key)
    return [(PUT_CONTENT, content), (PUT_STAMP, (lifetime.stamp, stamp, stamp, stamp, *key))]


def put_cells(
    partition: tuple[str, str],
    notification_id: bytes,
    *,
    stamp: int,
    lifetime: Lifetime,
    ack: int | None = None,
    read: bool | None = None,
    hide: bool = False,
    visible: bool = False,
) -> list[Bound]:
    """Returns the statements that store what marks do to one row."""
    key: tuple[Value, ...] = (*partition, is_high(notification_id), notification_id)
    left = lifetime.left(notification_id, stamp)
    statements: list[Bound] = []
    if ack is not None:
        statements.append((PUT_ACK, (left, id_us(notification_id) + ack, ack, *key)))
    if read is not None:
        statements.append((PUT_READ, (left, stamp, read, *key)))
    if hide:
        statements.append((PUT_HIDDEN, (left, stamp, *key)))
    if visible:
        statements.append((PUT_VISIBLE, (lifetime.stamp, stamp, stamp, stamp, stamp, *key)))
    return statements


def row_state(
    id_: bytes,
    revision: int | None,
    stamp: int | None,
    mark_stamp: int | None,
    acked: int | None,
    read: bool | None,
    hidden: bool | None,
    expire_us: int | None,
    *_: Any,
) -> RowState:
    """Returns the columns of `STATE` as a row; revision 0 for one that has no content."""
    return RowState(
        id_, revision or 0, stamp or 0, mark_stamp or 0, acked or 0, read is True, hidden is True, expire_us or 0
    )
