"""Ingest against the repository: its limits are what the contract promises, the shipped registries are right."""

from __future__ import annotations

from heliograph.type.v1 import notification_pb2
from svc_ingest import limits
from svc_ingest.registry import Grant, read_categories, read_producers
from tests.meta.tree import ROOT


def test_the_contract_says_the_same_numbers() -> None:
    """What the comments promise to callers is what core enforces."""
    text = " ".join(path.read_text(encoding="utf-8") for path in (ROOT / "proto" / "heliograph").glob("*/v1/*.proto"))
    for promise in (
        f"At most {limits.CONTENT_BYTES // 1024} KiB serialised",
        f"1 to {limits.TITLE_CHARACTERS} characters",
        f"at most {limits.BODY_CHARACTERS:,} characters",
        f"at most {limits.LINK_CHARACTERS:,} characters",
        f"at most {limits.DATA_BYTES // 1024} KiB and {limits.DATA_LEVELS} levels deep",
        f"Up to {limits.RECIPIENTS:,} ids of 1 to {limits.RECIPIENT_CHARACTERS} characters",
        f"Up to {limits.TOPICS} topics of 1 to {limits.TOPIC_CHARACTERS} characters",
        f"Up to {limits.EXCLUDED:,} ids of recipients",
        f"1 to {limits.CATEGORY_CHARACTERS} of a-z 0-9 _ - .",
        f"at most {limits.ORDERING_KEY_CHARACTERS} characters",
        f"up to {limits.BATCH_ITEMS} events",
        f"at most {limits.USEFUL_DAYS} days",
        f"[now - {limits.PAST_S // 3600} h, now + {limits.FUTURE_S // 60} min]",
        f"kept for {limits.REQUEST_LOG_S // 3600} h",
    ):
        assert promise in text, promise


def test_the_shipped_registries_are_right() -> None:
    """Development categories with their priorities, and two producers that may do everything."""
    categories = read_categories((ROOT / "deploy" / "categories.toml").read_bytes())
    names = {name: notification_pb2.Priority.Name(priority) for name, priority in categories.items()}
    assert names == {
        "general": "PRIORITY_NORMAL",
        "security": "PRIORITY_HIGH",
        "billing": "PRIORITY_NORMAL",
        "mention": "PRIORITY_NORMAL",
        "deploy": "PRIORITY_NORMAL",
        "newsletter": "PRIORITY_BULK",
    }
    grants = read_producers((ROOT / "deploy" / "producers.example.toml").read_bytes(), categories)
    everything = Grant(frozenset(categories), frozenset(categories.values()))
    assert grants == {("acme", "demo"): everything, ("acme", "billing"): everything}
