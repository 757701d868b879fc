"""Topics that are there before a benchmark begins."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench import topics
from bench.installation import Installation
from svc_prefs.store import open_store


async def test_who_was_written_is_found_by_the_store(tmp_path: Path) -> None:
    """While the store is open, in the order of keys, and the second time nothing changes."""
    stores = open_store("sqlite:///prefs.db", data_dir=tmp_path / "data")
    await stores.open()
    try:
        installation = Installation(direct=True, folder=tmp_path)
        for _ in range(2):
            wanted = {"t1": [f"r{number:05d}" for number in range(6_000)], "t2": ["r00001", "r00000"]}
            await asyncio.to_thread(topics.subscribe, installation, wanted)
        found = await stores.topics.list_subscribers("acme", "t1", after="r05997", limit=10)
        assert found == ["r05998", "r05999"]
        assert await stores.topics.list_subscribers("acme", "t2", after="", limit=10) == ["r00000", "r00001"]
    finally:
        await stores.close()


def test_those_who_listen_are_spread_over_the_others() -> None:
    """By bytes, as the pages of a topic are read."""
    listening = ["a-00000", "a-00001", "a-00002"]
    found = topics.interleaved(listening, 12)
    assert found == sorted(found)
    assert len(set(found)) == 12
    assert [found.index(one) for one in listening] == [0, 4, 8]
