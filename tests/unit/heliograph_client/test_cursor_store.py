"""Where resume state is kept."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from heliograph_client.cursor_store import CursorStore, FileCursorStore, MemoryCursorStore
from mesh.errors import FailedPrecondition


@pytest.mark.parametrize("kind", ["memory", "file"])
async def test_the_last_state_comes_back(kind: str, tmp_path: Path) -> None:
    """Nothing before the first save; then what was saved last."""
    store: CursorStore = MemoryCursorStore() if kind == "memory" else FileCursorStore(tmp_path / "state")
    assert await store.load() is None
    await store.save(b"one")
    await store.save(b"two")
    assert await store.load() == b"two"


def test_the_file_is_for_its_owner_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    """It names a person's notifications; another process sees the old or the new one, never a part."""
    store = FileCursorStore(tmp_path / "state")
    asyncio.run(store.save(b"x" * 100_000))
    asyncio.run(store.save(b"short"))
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o600
    assert asyncio.run(FileCursorStore(tmp_path / "state").load()) == b"short"


async def test_saves_at_once_leave_the_last_one(tmp_path: Path) -> None:
    """Each save is a thread of its own; whichever is slowest, what was asked for last stays."""
    store = FileCursorStore(tmp_path / "state")
    for _ in range(20):
        await asyncio.gather(*(store.save(b"%d" % number) for number in range(8)))
        assert await store.load() == b"7"


async def test_a_place_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """The failure has the path."""
    with pytest.raises(FailedPrecondition, match="absent/state cannot be written"):
        await FileCursorStore(tmp_path / "absent" / "state").save(b"x")
    with pytest.raises(FailedPrecondition, match="cannot be read"):
        await FileCursorStore(tmp_path).load()
