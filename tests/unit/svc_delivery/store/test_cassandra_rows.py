"""Timestamps and times to live of the inbox's cells in Cassandra."""

from __future__ import annotations

import pytest

from svc_delivery.store.cassandra_rows import (
    DAY_US,
    PUT_ACK,
    PUT_CONTENT,
    PUT_HIDDEN,
    PUT_READ,
    PUT_STAMP,
    PUT_VISIBLE,
    Lifetime,
    id_us,
    partition_of,
    put_cells,
    put_row,
    row_state,
)
from tests.support.inbox import NOW_US, make_id, make_row

LIFETIME = Lifetime(90)
ALICE = ("acme", "alice")


@pytest.mark.parametrize(
    ("age_us", "left"),
    [
        (0, 90 * 86_400),
        (1, 90 * 86_400),
        (DAY_US, 89 * 86_400),
        (90 * DAY_US - 1, 1),
        (90 * DAY_US, 1),
        (400 * DAY_US, 1),
        (-60_000_000, 90 * 86_400 + 60),
    ],
)
def test_a_cell_lives_for_what_is_left_of_its_time(age_us: int, left: int) -> None:
    """Never for no time: that would mean for ever."""
    assert LIFETIME.left(make_id(1), id_us(make_id(1)) + age_us) == left


def test_a_stamp_outlives_every_content_that_it_covers() -> None:
    """Else a head would go while a row that it covers is still shown."""
    ahead = id_us(make_id(1)) - 60_000_000
    assert LIFETIME.stamp > LIFETIME.left(make_id(1), ahead)


def test_content_is_written_at_its_id_and_revision() -> None:
    """So the higher revision stays, and an erasure hides what is older whenever it is written."""
    row = make_row(5, revision=3, expire_us=NOW_US)
    (content, values), (stamped, stamps) = put_row(row, ALICE, stamp=NOW_US, lifetime=LIFETIME)
    assert (content, stamped) == (PUT_CONTENT, PUT_STAMP)
    assert values[1] == id_us(row.notification_id) + 3
    assert list(values[2:]) == ["general", 3, row.content, NOW_US, "acme", "alice", False, row.notification_id]
    assert list(stamps[:4]) == [LIFETIME.stamp, NOW_US, NOW_US, NOW_US]


def test_a_row_is_over_with_its_inbox() -> None:
    """A later expiry does not outlast the ninety days."""
    row = make_row(5, expire_us=NOW_US + 1000 * DAY_US)
    (_, values), _ = put_row(row, ALICE, stamp=NOW_US, lifetime=LIFETIME)
    assert values[5] == id_us(row.notification_id) + 90 * DAY_US


def test_marks_are_cells_of_their_own() -> None:
    """An ack at the time in the id plus its level, so it only rises; the others at the stamp."""
    id_ = make_id(1, high=True)
    statements = dict(
        put_cells(ALICE, id_, stamp=NOW_US, lifetime=LIFETIME, ack=2, read=False, hide=True, visible=True)
    )
    assert statements.keys() == {PUT_ACK, PUT_READ, PUT_HIDDEN, PUT_VISIBLE}
    timestamps = {statement: values[1] for statement, values in statements.items()}
    assert timestamps.pop(PUT_ACK) == id_us(id_) + 2
    assert set(timestamps.values()) == {NOW_US}
    assert all(list(values[-4:]) == ["acme", "alice", True, id_] for values in statements.values())
    assert put_cells(ALICE, id_, stamp=NOW_US, lifetime=LIFETIME) == []


def test_cells_that_were_never_written_are_nothing() -> None:
    """A row of marks alone has revision 0."""
    state = row_state(make_id(1), None, None, None, None, None, None, None, "more")
    assert state == (type(state))(make_id(1), 0, 0, 0, 0, False, False, 0)


def test_a_key_is_two_parts() -> None:
    """Escaped ones come back as they were; anything else is no key of an inbox."""
    assert partition_of("ac%2Fme/al%25ice") == ("ac/me", "al%ice")
    for key, said in (("acme", "unpack"), ("acme/alice/home", "unpack"), ("acme/%zz", "not a joined key")):
        with pytest.raises(ValueError, match=said):
            partition_of(key)
