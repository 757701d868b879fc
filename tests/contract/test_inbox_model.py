"""Writes and marks of one inbox, in any order and at once: every store ends where the plainest model of it does."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from svc_delivery.ports import AckLevel, Body, Inbox, MarkWrite, RowKey
from tests.support.backends import inbox_backends
from tests.support.inbox import NOW_US, make_id, make_row

_NUMBERS = 6
_recipients = itertools.count()


class Write(msgspec.Struct, frozen=True):
    """A row is written."""

    number: int
    revision: int


class Mark(msgspec.Struct, frozen=True):
    """A row is marked by somebody who vouches for it."""

    number: int
    ack: AckLevel
    read: bool | None
    hide: bool


class Row(msgspec.Struct):
    """What the model knows of a row."""

    revision: int = 0
    ack: int = 0
    read: bool = False
    read_stamp: int = 0
    hidden: bool = False
    write_stamp: int = 0


def end_of(stamped: Sequence[tuple[int, Write | Mark]]) -> dict[int, Row]:
    """Where rows end, whatever the order: the highest revision and ack, the latest read, hidden for good."""
    rows: dict[int, Row] = {}
    for stamp, one in stamped:
        row = rows.setdefault(one.number, Row())
        if isinstance(one, Write):
            row.revision = max(row.revision, one.revision)
            row.write_stamp = max(row.write_stamp, stamp)
            continue
        row.ack = max(row.ack, one.ack)
        row.hidden = row.hidden or one.hide
        if one.read is not None and stamp > row.read_stamp:
            row.read, row.read_stamp = one.read, stamp
    return {number: row for number, row in rows.items() if row.revision > 0}


def id_of(number: int) -> bytes:
    """Both classes."""
    return make_id(number, high=number % 3 == 0)


async def do(inbox: Inbox, recipient_key: str, stamp: int, one: Write | Mark) -> None:
    """Does one of them."""
    if isinstance(one, Write):
        high = one.number % 3 == 0
        row = make_row(one.number, recipient_key=recipient_key, high=high, revision=one.revision)
        await inbox.write([row], stamp=stamp)
    else:
        mark = MarkWrite(recipient_key, [id_of(one.number)], one.ack, one.read, one.hide, vouched=True)
        await inbox.mark([mark], stamp=stamp)


@pytest.fixture(params=inbox_backends())
async def inbox(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Inbox]:
    """An inbox of each kind; each example has a recipient of its own."""
    async with request.param(tmp_path)() as store:
        yield store.inbox


numbers = st.integers(0, _NUMBERS - 1)
writes = st.builds(Write, numbers, st.integers(1, 3))
marks = st.builds(Mark, numbers, st.sampled_from(AckLevel), st.sampled_from([None, True, False]), st.booleans())


@given(
    done=st.lists(st.one_of(writes, writes, marks), min_size=1, max_size=25),
    late=st.randoms(use_true_random=False),
    at_once=st.booleans(),
)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_every_order_ends_alike(inbox: Inbox, done: list[Write | Mark], late: object, at_once: bool) -> None:
    """Stamps come in any order, one by one or at once; cells, bodies, window and head are those of the model."""
    stamped = [(NOW_US + 1000 * number, one) for number, one in enumerate(done)]
    expected = end_of(stamped)
    late.shuffle(stamped)  # type: ignore[attr-defined]  # a random.Random, which hypothesis does not say
    recipient_key = f"acme/model-{next(_recipients)}"
    if at_once:
        await asyncio.gather(*[do(inbox, recipient_key, *one) for one in stamped])
    else:
        for one in stamped:
            await do(inbox, recipient_key, *one)
    keys = {number: RowKey(recipient_key, id_of(number)) for number in range(_NUMBERS)}
    states = dict(zip(keys, await inbox.states(list(keys.values())), strict=True))
    found = {
        number: (state.revision, state.ack, state.read, state.hidden)
        for number, state in states.items()
        if state is not None
    }
    assert found == {number: (row.revision, row.ack, row.read, row.hidden) for number, row in expected.items()}
    (head,) = await inbox.heads([recipient_key])
    for number, row in expected.items():
        state = states[number]
        assert state is not None
        assert row.write_stamp <= state.stamp <= head <= NOW_US + 1000 * len(done)
    bodies = await inbox.bodies(list(keys.values()))
    assert bodies == {
        keys[number]: Body(row.revision, b"content %d of %d" % (row.revision, number))
        for number, row in expected.items()
    }
    window = await inbox.window(recipient_key, NOW_US)
    newest_first = sorted(expected, key=id_of, reverse=True)
    assert [row.notification_id for row in window.rows] == [id_of(n) for n in newest_first if not expected[n].hidden]
    assert [row.notification_id for row in window.gone] == [id_of(n) for n in newest_first if expected[n].hidden]
    assert window.head == head
