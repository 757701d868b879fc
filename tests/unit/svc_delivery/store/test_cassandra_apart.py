"""Which rows of a write are refused and when the store counts as down: partitions that fail as they are told to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from mesh.cassandra import Bound, Row, StatementRefused, StoreUnavailable, Value
from svc_delivery.ports import AckLevel, MarkWrite, RowsRefused, RowWrite
from svc_delivery.store.cassandra import CassandraInbox
from svc_delivery.store.sqlite import Limits
from tests.support.inbox import NOW_US, make_row

GONE = StoreUnavailable("the connection was lost", outcome_unknown=True)

# This far end has no counts.
NO_LOOKS = Limits(trim_every=1 << 40)


class Far:
    """The other end of a session: a store whose partitions fail as they are told to.

    Attributes:
        failing: recipient → what its next writes end with, one after the other; the last one stays.
        silent: nothing but writes is answered.
        unreadable: recipients whose inbox may not be read.
        down: nothing but writes works.
    """

    datacenter = "east"
    connected = True

    def __init__(self) -> None:
        self.failing: dict[str, list[StoreUnavailable | None]] = {}
        self.down: StoreUnavailable | None = None
        self.silent = False
        self.unreadable: set[str] = set()
        self.stored: list[str] = []
        self.batches: list[list[str]] = []

    async def prepare(self, statements: Sequence[str]) -> None:
        """Has nothing to prepare."""

    async def execute(self, statement: str, values: Sequence[Value] = ()) -> list[Row]:
        """Answers a probe or a read; stores what is written alone."""
        if not statement.startswith("select"):
            await self.batch([(statement, values)])
            return []
        if self.unreadable.intersection(str(value) for value in values):
            raise StatementRefused("denied")
        if self.silent:
            await asyncio.Event().wait()
        if self.down is not None:
            raise self.down
        return [(b"incarnation",)]

    async def batch(self, statements: Sequence[Bound]) -> None:
        """Stores a part, or fails."""
        recipients = sorted({str(value) for _, values in statements for value in values if str(value).startswith("r")})
        self.batches.append(recipients)
        for recipient in recipients:
            told = self.failing.get(recipient)
            if told and (error := told[0] if len(told) == 1 else told.pop(0)) is not None:
                raise error
        self.stored += recipients

    async def close(self) -> None:
        """Has nothing to close."""


def rows(*recipients: str) -> list[RowWrite]:
    """One row each."""
    return [make_row(number, recipient_key=f"acme/{name}") for number, name in enumerate(recipients)]


async def refusal_of(far: Far, *recipients: str) -> RowsRefused:
    """Writes a row each; what it says of the refused ones."""
    try:
        await CassandraInbox(far, limits=NO_LOOKS).write(rows(*recipients), stamp=NOW_US)
    except RowsRefused as refusal:
        return refusal
    return RowsRefused({})


async def write(far: Far, *recipients: str) -> dict[int, str]:
    """Writes a row each; the refused ones."""
    return dict((await refusal_of(far, *recipients)).reasons)


async def test_a_partition_that_stays_away_harms_no_other() -> None:
    """Those that shared a message with it are tried alone; then it alone is refused."""
    far = Far()
    far.failing["r2"] = [GONE]
    assert await write(far, "r1", "r2", "r3") == {1: "the connection was lost"}
    assert far.stored == ["r1", "r3"]
    assert far.batches == [["r1", "r2", "r3"], ["r1"], ["r2"], ["r3"]]


async def test_a_refused_partition_harms_none_that_shared_a_message_with_it() -> None:
    """It alone is refused, and nobody else's row waits for it."""
    far = Far()
    far.failing["r2"] = [StatementRefused("denied")]
    assert await write(far, "r1", "r2", "r3") == {1: "denied"}
    assert far.stored == ["r1", "r3"]


async def test_a_row_without_an_answer_may_be_stored_and_a_refused_one_is_not() -> None:
    """Whoever writes them again must know which devices may have seen."""
    far = Far()
    far.failing = {"r1": [GONE], "r3": [StatementRefused("denied")]}
    refusal = await refusal_of(far, "r1", "r2", "r3")
    assert sorted(refusal.reasons) == [0, 2]
    assert refusal.unknown == {0}


async def test_a_node_that_died_costs_no_row() -> None:
    """Another one takes what was on its way."""
    far = Far()
    far.failing = {"r1": [GONE, None]}
    assert await write(far, "r1", "r2", "r3") == {}
    assert sorted(far.stored) == ["r1", "r2", "r3"]


@pytest.mark.parametrize("lost", [("r1", "r2"), ("r2",)])
async def test_a_store_that_is_down_refuses_no_row(lost: Sequence[str]) -> None:
    """Also when some rows were stored before: nothing else than their partitions answers any more."""
    far = Far()
    far.failing = {name: [GONE] for name in lost}
    far.down = StoreUnavailable("nobody is there", outcome_unknown=False)
    with pytest.raises(StoreUnavailable, match="nobody is there"):
        await CassandraInbox(far, limits=NO_LOOKS).write(rows("r1", "r2"), stamp=NOW_US)


async def test_a_store_that_is_silent_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not waited for: the time of a write is short."""
    monkeypatch.setattr("svc_delivery.store.cassandra_batches._PROBE_TIME", 0.01)
    far = Far()
    far.failing["r1"] = [GONE]
    far.silent = True
    with pytest.raises(StoreUnavailable, match="connection was lost"):
        await CassandraInbox(far, limits=NO_LOOKS).write(rows("r1"), stamp=NOW_US)


async def test_rows_that_a_store_refuses_are_no_outage() -> None:
    """One alone and all of them: the store answers something else."""
    far = Far()
    far.failing["r1"] = [StatementRefused("too large")]
    assert await write(far, "r1") == {0: "too large"}
    assert await write(far, "r1", "r1") == {0: "too large", 1: "too large"}


async def test_a_store_with_another_schema_refuses_no_row() -> None:
    """Nothing at all is taken there, and that is not the rows' fault."""
    far = Far()
    far.failing["r1"] = [StatementRefused("no such table")]
    far.down = StatementRefused("no such table")
    with pytest.raises(StoreUnavailable, match="no such table"):
        await CassandraInbox(far, limits=NO_LOOKS).write(rows("r1"), stamp=NOW_US)


async def test_many_rows_of_one_inbox_are_several_batches() -> None:
    """Each of a bounded count and size, whatever the caller sends."""
    far = Far()
    assert await write(far, *(["r1"] * 90)) == {}
    assert len(far.batches) == 2
    assert far.stored == ["r1"] * 2
    big = [make_row(number, recipient_key="acme/r1") for number in range(3)]
    far.batches.clear()
    heavy = [RowWrite(row.recipient_key, row.notification_id, 1, "general", bytes(700_000)) for row in big]
    await CassandraInbox(far, limits=NO_LOOKS).write(heavy, stamp=NOW_US)
    assert len(far.batches) == 3


async def test_small_inboxes_share_messages_within_what_a_node_takes_unasked() -> None:
    """At most ten partitions and less than 5 KiB, as cassandra.yaml is shipped; a larger row goes alone."""
    far = Far()
    assert await write(far, *[f"r{number}" for number in range(25)]) == {}
    assert [len(batch) for batch in far.batches] == [10, 10, 5]
    far.batches.clear()
    sizes = [2_000, 2_000, 2_000, 9_000, 100, 100]
    mixed = [
        RowWrite(f"acme/r{number}", row.notification_id, 1, "general", bytes(size))
        for number, (row, size) in enumerate(zip(rows(*["r"] * len(sizes)), sizes, strict=True))
    ]
    await CassandraInbox(far, limits=NO_LOOKS).write(mixed, stamp=NOW_US)
    assert far.batches == [["r0"], ["r1"], ["r2"], ["r3"], ["r4", "r5"]]


def acks(*recipients: str) -> list[MarkWrite]:
    """An ack of one row each that its gateway vouches for."""
    return [
        MarkWrite(row.recipient_key, (row.notification_id,), ack=AckLevel.RECEIVED, vouched=True)
        for row in rows(*recipients)
    ]


async def test_a_refused_partition_keeps_nobody_elses_marks() -> None:
    """Its own are told as refused; the others are stored."""
    far = Far()
    far.failing["r2"] = [StatementRefused("denied")]
    outcomes = await CassandraInbox(far, limits=NO_LOOKS).mark(acks("r1", "r2", "r3"), stamp=NOW_US)
    assert [outcome.refused for outcome in outcomes] == ["", "denied", ""]
    assert far.stored == ["r1", "r3"]


async def test_an_inbox_that_may_not_be_read_keeps_nobody_elses_marks() -> None:
    """A mark that depends on the cells there is refused alone."""
    far = Far()
    far.unreadable = {"r1"}
    marks = [MarkWrite("acme/r1", (rows("r1")[0].notification_id,), read=True), *acks("r2")]
    outcomes = await CassandraInbox(far, limits=NO_LOOKS).mark(marks, stamp=NOW_US)
    assert [outcome.refused for outcome in outcomes] == ["denied", ""]
    assert far.stored == ["r2"]


async def test_marks_that_got_no_answer_are_not_called_stored() -> None:
    """Repeating them is harmless, so all of them come again."""
    far = Far()
    far.failing["r2"] = [GONE]
    with pytest.raises(StoreUnavailable, match="connection was lost"):
        await CassandraInbox(far, limits=NO_LOOKS).mark(acks("r1", "r2"), stamp=NOW_US)
