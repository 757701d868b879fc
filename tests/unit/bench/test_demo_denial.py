"""What the demo tells Cassandra to refuse."""

from __future__ import annotations

from bench.demo_denial import partition_key


def test_a_partition_is_named_as_cassandra_names_it() -> None:
    """Each text with its length before it and a zero behind it, so that no two keys have the same bytes."""
    assert partition_key("acme", "a") == bytes.fromhex("000461636d650000016100")
    assert partition_key("a", "b/c") != partition_key("a/b", "c")
