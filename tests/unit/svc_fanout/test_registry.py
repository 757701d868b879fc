"""The registry of categories, as fan-out reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc_fanout.registry import Category, RegistryError, read_categories

ROOT = Path(__file__).parents[3]


def test_keys_of_others_are_left_alone() -> None:
    """Each service reads what it needs; what is absent has a default."""
    content = b'[categories.a]\ntitle = "A"\nessential = true\nchannels = ["inbox"]\n[categories.b]\nenabled = false\n'
    assert read_categories(content) == {
        "a": Category(channels=("inbox",), essential=True),
        "b": Category(enabled=False),
    }


def test_the_registry_of_the_repository_is_right() -> None:
    """Security and transactions are essential there, announcements are not."""
    categories = read_categories((ROOT / "deploy" / "categories.toml").read_bytes())
    assert categories["security"].essential
    assert categories["billing"].essential
    assert not categories["newsletter"].essential


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (b"[categories.a]\nessential = 'very'", "essential"),
        (b"[categories.a]\nchannels = ['pigeon']", "channels"),
        (b"[other]", "categories"),
        (b"[[", ""),
        (b"\xff", ""),
    ],
)
def test_what_is_wrong_is_one_line(content: bytes, key: str) -> None:
    """It names the key."""
    with pytest.raises(RegistryError) as caught:
        read_categories(content)
    assert key in str(caught.value)
    assert "\n" not in str(caught.value)
