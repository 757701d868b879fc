"""What stands in the registry of categories."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh.errors import StartError
from svc_prefs.registry import Category, parse_registry

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[categories", "test: "),
        ("[categories]", "has no category"),
        ("[categories.a]\nchannels = ['live']", "categories.a.channels must start with inbox"),
        ("[categories.a]\nchannels = ['inbox', 'inbox']", "categories.a.channels"),
        ("[categories.a]\nchannels = ['pigeon']", "pigeon"),
        ("[categories.a]\nenabled = 'yes'", "enabled"),
        ("[categories.a]\nessential = 1", "essential"),
        ("[categories.a]\nmandatory = true\nenabled = false", "categories.a.enabled must be true"),
        ("[categories.a]\nfixed_channels = ['live']", "categories.a.fixed_channels needs mandatory"),
        (
            "[categories.a]\nmandatory = true\nchannels = ['inbox']\nfixed_channels = ['live']",
            "categories.a.fixed_channels must be among channels",
        ),
        ("", "categories"),
    ],
)
def test_a_broken_registry_stops_the_start_with_one_line(text: str, part: str) -> None:
    """The line names the file, and the key or what is wrong."""
    with pytest.raises(StartError, match="categories file test") as caught:
        parse_registry(text, "test")
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_left_out_has_a_default() -> None:
    """A category is delivered everywhere, by choice, and is not essential."""
    assert parse_registry("[categories.a]\ntitle = 'A'", "test") == {"a": Category()}
    assert Category() == Category(("inbox", "live"), True, False, (), False)


def test_the_development_categories() -> None:
    """Security cannot be refused; security and billing go out even without wishes."""
    path = ROOT / "deploy" / "categories.toml"
    found = parse_registry(path.read_text(encoding="utf-8"), "test")
    assert [name for name, category in found.items() if category.mandatory] == ["security"]
    assert [name for name, category in found.items() if category.essential] == ["security", "billing"]
