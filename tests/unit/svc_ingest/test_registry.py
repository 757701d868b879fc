"""Registries: what the files may say, and the one line for what they may not."""

from __future__ import annotations

import pytest

from heliograph.type.v1 import notification_pb2
from svc_ingest.registry import Grant, RegistryError, read_categories, read_producers

CATEGORIES = {"general": notification_pb2.PRIORITY_NORMAL, "security": notification_pb2.PRIORITY_HIGH}


def test_grants_are_as_narrow_as_written() -> None:
    """Only the named categories and priorities."""
    content = b'[producers."acme/demo"]\ncategories = ["general"]\npriorities = ["bulk"]'
    grant = Grant(frozenset({"general"}), frozenset({notification_pb2.PRIORITY_BULK}))
    assert read_producers(content, CATEGORIES) == {("acme", "demo"): grant}


def test_keys_of_other_services_are_left_to_them() -> None:
    """Prefs reads the rest of a category."""
    content = b'[categories.general]\npriority = "normal"\nchannels = ["inbox"]\nlater = 1'
    assert read_categories(content) == {"general": notification_pb2.PRIORITY_NORMAL}


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (b"categories = [", "Invalid value"),
        (b"\xff", "utf-8"),
        (b"", "categories"),
        (b"other = 1", "other"),
        (b"[categories.general]\ntitle = 'x'", "priority"),
        (b"[categories.general]\npriority = 'urgent'", "urgent"),
        (b"[categories.General]\npriority = 'high'", "categories.General"),
        (b"[categories]\ngeneral = 1", "categories"),
    ],
)
def test_broken_categories_are_one_line(content: bytes, names: str) -> None:
    """It names the key."""
    with pytest.raises(RegistryError, match=names) as error:
        read_categories(content)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (b"producers = 3", "producers"),
        (b"[producers.demo]\ncategories = ['*']\npriorities = ['high']", 'producers."demo"'),
        (b"[producers.'Acme/demo']\ncategories = ['*']\npriorities = ['high']", "Acme/demo"),
        (b"[producers.'acme/demo']\ncategories = ['gossip']\npriorities = ['high']", "gossip"),
        (b"[producers.'acme/demo']\ncategories = ['*']\npriorities = ['urgent']", "urgent"),
        (b"[producers.'acme/demo']\ncategories = ['*']", "priorities"),
        (b"[producers.'acme/demo']\ncategories = ['*']\npriorities = ['high']\nqouta = 3", "qouta"),
    ],
)
def test_broken_producers_are_one_line(content: bytes, names: str) -> None:
    """It names the producer or the key; a key that nobody reads is a mistake."""
    with pytest.raises(RegistryError, match=names) as error:
        read_producers(content, CATEGORIES)
    assert "\n" not in str(error.value)
