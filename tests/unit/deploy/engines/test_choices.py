"""Where the engines of one machine lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.engines.choices import ENGINES, Choices, cache_folder, own_folder, url
from deploy.engines.failures import EnginesFailed


def test_one_node_has_the_engines_name_and_three_have_numbers() -> None:
    """A name can be given to kill and restart; a Redis Cluster always has three."""
    one, three = Choices(Path("/e")), Choices(Path("/e"), nodes=3)
    assert [one.names(engine) for engine in ("kafka", "cassandra", "postgresql")] == [
        ("kafka",),
        ("cassandra",),
        ("postgresql",),
    ]
    assert three.names("kafka") == ("kafka-1", "kafka-2", "kafka-3")
    assert three.names("redis") == ("redis",)
    assert one.names("redis-cluster") == three.names("redis-cluster")


def test_addresses_follow_the_base_port() -> None:
    """Each address names every node, and none names a keyspace or the like."""
    assert [url(Choices(Path("/e"), base_port=9000), engine) for engine in ENGINES] == [
        "kafka://127.0.0.1:9000",
        "redis://127.0.0.1:9010",
        "redis+cluster://127.0.0.1:9020,127.0.0.1:9021,127.0.0.1:9022",
        "cassandra://127.0.0.1:9040",
        "postgresql://127.0.0.1:9050/postgres",
    ]
    three = Choices(Path("/e"), base_port=9000, nodes=3)
    assert url(three, "kafka") == "kafka://127.0.0.1:9000,127.0.0.2:9000,127.0.0.3:9000"
    assert url(three, "redis") == "redis://127.0.0.1:9010"


def test_the_cache_is_where_the_system_keeps_caches() -> None:
    """A relative folder in the variable is none, as its specification says."""
    assert cache_folder({"XDG_CACHE_HOME": "/var/cache/ann"}) == Path("/var/cache/ann/heliograph/engines")
    home = Path.home() / ".cache" / "heliograph" / "engines"
    assert cache_folder({}) == cache_folder({"XDG_CACHE_HOME": "here"}) == home


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    """In a shared place somebody may have made the folder first, or a link."""
    folder = tmp_path / "engines"
    own_folder(folder)
    own_folder(folder)
    folder.chmod(0o777)
    with pytest.raises(EnginesFailed, match="--folder"):
        own_folder(folder)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(EnginesFailed, match="--folder"):
        own_folder(link)
