"""Registries: what the files may say, and the one line for what they may not."""

from __future__ import annotations

import pytest

from heliograph.type.v1 import notification_pb2
from svc_ingest.quota import Quota
from svc_ingest.registry import Grant, RegistryError, read_categories, read_producers, read_quotas

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


def test_quotas_are_those_of_the_file() -> None:
    """Of producers and of tenants; who has none may publish as much as it likes, and zero is a quota."""
    content = b"""
        [producers."acme/demo"]
        categories = ["*"]
        priorities = ["high"]
        quota = { events_per_second = 0.5, burst = 20, recipients_per_second = 1_000 }
        [producers."acme/billing"]
        categories = ["*"]
        priorities = ["high"]
        [tenants.acme]
        quota = { events_per_second = 0 }
    """
    assert set(read_producers(content, CATEGORIES)) == {("acme", "demo"), ("acme", "billing")}
    quotas = read_quotas(content)
    named = {field: getattr(quotas.producers["acme", "demo"], field) for field in Quota.__struct_fields__}
    assert named == {
        "events_per_second": 0.5,
        "burst": 20,
        "recipients_per_second": 1_000,
        "recipients_burst": None,
    }
    assert quotas.producers["acme", "billing"].events_per_second is None
    assert quotas.tenants["acme"].events_per_second == 0


@pytest.mark.parametrize(
    ("quota", "names"),
    [
        ("quota = { events_per_second = -1 }", r'producers."acme/demo".quota.events_per_second: must be 0 or more'),
        ("quota = { events_per_second = nan }", "finite"),
        ("quota = { recipients_per_second = inf }", "finite"),
        ("quota = { burst = 5 }", r"quota.burst: needs events_per_second"),
        ("quota = { events_per_second = 5, burst = 0.5 }", r"burst: must be at least 1"),
        ("quota = { recipients_per_second = 5, recipients_burst = 0 }", r"recipients_burst: must be at least 1"),
        ("quota = { events_per_minute = 5 }", "events_per_minute"),
        ("quota = 5", "quota"),
        ("[tenants.acmee]\nquota = { events_per_second = 5 }", r"tenants.acmee: no producer belongs"),
        ("[tenants.acme]\nquota = { events_per_second = -5 }", r"tenants.acme.quota.events_per_second"),
        ("[tenants.acme]", "quota"),
    ],
)
def test_broken_quotas_are_one_line(quota: str, names: str) -> None:
    """It names the key and what is wrong with it."""
    content = f"[producers.'acme/demo']\ncategories = ['*']\npriorities = ['high']\n{quota}".encode()
    with pytest.raises(RegistryError, match=names) as error:
        read_quotas(content)
    assert "\n" not in str(error.value)
