"""The Redis client without a server: what a URL may say, where keys go, what a server is judged by."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh.errors import StartError, Unavailable
from mesh.redis import Call, Script, connect, parts_of_slots, slot_of


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("redis://h:1,i:2/0", "names several hosts"),
        ("redis://h/zero", "the database must be a number, not 'zero'"),
        ("redis://h/0?prefix=a{b", "prefix 'a{b' must be 1 to 64 of"),
        ("redis://h/0?eviction=x", "unknown option 'eviction'"),
        ("rediss://h/0", "name the file of trusted roots, ca=FILE"),
        ("redis+cluster://h:1/3", "a cluster has no databases: leave out /3"),
        ("redis+sentinel://h:1", "names no service: redis+sentinel://HOST:PORT/SERVICE"),
        ("redis://me:secret@h:1", "credentials=FILE"),
        ("valkey://h:1", "'valkey://h:1' is no known store; known: redis://HOST:PORT/DATABASE"),
    ],
)
def test_a_wrong_url_is_one_line(text: str, said: str) -> None:
    """The line begins with the setting and says what is wrong; no secret is in it."""
    with pytest.raises(StartError) as refused:
        connect("store_url", text)
    line = str(refused.value)
    assert line.startswith("store_url: ")
    assert said in line
    assert "secret" not in line
    assert "\n" not in line


def test_a_credentials_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """The start stops before anything is connected."""
    with pytest.raises(StartError, match=r"credentials=.*/nothing: No such file"):
        connect("store_url", f"redis://h/0?credentials={tmp_path}/nothing")


def test_only_a_cluster_sets_keys_apart() -> None:
    """On one server all keys go together; in a Cluster by their slot, which braces decide."""
    keys = [b"{a}1", b"{a}2", b"b"]
    assert connect("x", "redis://h/").slots_of(keys) == [0, 0, 0]
    slots = connect("x", "redis+cluster://h/").slots_of(keys)
    assert slots == [slot_of(b"a"), slot_of(b"a"), slot_of(b"b")]
    assert slots[0] != slots[2]


def test_parts_cover_all_slots_and_have_tags() -> None:
    """Every slot is in exactly one part, and each part has a tag with a slot of its own."""
    parts = parts_of_slots(16)
    assert [slot for part in parts for slot in part] == list(range(16_384))
    redis = connect("x", "redis+cluster://h/?prefix=p")
    tags = [redis.tag_within(part) for part in parts]
    assert tags == [redis.tag_within(part) for part in parts]
    for part, tag in zip(parts, tags, strict=True):
        assert slot_of(f"{{{tag}}}:anything".encode()) in part


async def test_nobody_there_is_unavailable() -> None:
    """A refused connection is said at once, with the setting and the address."""
    redis = connect("store_url", "redis+cluster://127.0.0.1:1,127.0.0.1:2")
    for attempt in (redis.ping(), redis.run(Script("return 1"), [Call([b"k"], [])]), redis.read([[b"k"]])):
        with pytest.raises(Unavailable, match=r"store_url: redis\+cluster.*127\.0\.0\.1:1: Connection refused") as gone:
            await attempt
        assert gone.value.reason == "STORE_UNAVAILABLE"
