"""The store that refuses one row, and which dead letter is whose."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from bench.demo_letters import CATEGORY, RefusingStore, pick, reason_of
from heliograph.delivery.v1 import dead_letter_service_pb2 as pb
from tests.support.retrying import envelope_of, id_of, retrying

KEY = "acme/alice"


async def test_a_real_store_refuses_that_row_alone_and_only_as_long(tmp_path: Path) -> None:
    """The neighbour and other categories are stored; afterwards the retry brings the row as well."""
    async with retrying(tmp_path) as delivery:
        with RefusingStore(tmp_path, KEY).refusing():
            await delivery.dispatch(envelope_of(1, category=CATEGORY), envelope_of(2), to=["alice", "bob"])
            assert await delivery.row(1) is None
            assert await delivery.row(1, "bob") is not None
            assert await delivery.row(2) is not None
        RefusingStore(tmp_path, KEY).hasten(id_of(1))
        await delivery.after(0.0)
        assert await delivery.row(1) is not None


async def test_hastened_tries_end_in_a_dead_letter(tmp_path: Path) -> None:
    """Without any time going by four tries are over, and the letter says why."""
    store = RefusingStore(tmp_path, KEY)
    async with retrying(tmp_path) as delivery:
        with store.refusing():
            await delivery.dispatch(envelope_of(1, category=CATEGORY), to=["alice"])
            for _ in range(3):
                assert await delivery.buried() == []
                store.hasten(id_of(1))
                await delivery.after(0.0)
        listed = await delivery.letters.ListDeadLetters(pb.ListDeadLettersRequest(), None)  # type: ignore[arg-type]  # not used
    letter = pick(listed.dead_letters, KEY, id_of(1))
    assert letter is not None
    assert reason_of(letter) == "store_refused"
    assert pick(listed.dead_letters, "acme/bob", id_of(1)) is None
    assert pick(listed.dead_letters, KEY, id_of(2)) is None


def test_the_trigger_goes_even_after_an_error(tmp_path: Path) -> None:
    """A demo that breaks off leaves nothing behind."""
    with contextlib.closing(sqlite3.connect(tmp_path / "inbox.db", isolation_level=None)) as connection:
        connection.execute("create table inbox (recipient text, category text)")
        with pytest.raises(sqlite3.IntegrityError, match="refused"), RefusingStore(tmp_path, "acme/o'hara").refusing():
            connection.execute("insert into inbox values (?, ?)", ("acme/o'hara", CATEGORY))
        assert connection.execute("select count(*) from sqlite_master where type = 'trigger'").fetchone() == (0,)
        connection.execute("insert into inbox values (?, ?)", ("acme/o'hara", CATEGORY))
