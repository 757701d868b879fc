"""What a Redis server is judged by."""

from __future__ import annotations

import pytest

from mesh.redis_checks import facts_of, judge
from mesh.redis_connections import Refusal, Reply


def test_facts_are_the_fields_of_all_sections() -> None:
    """Headings and empty lines say nothing, and a section that is refused tells nothing."""
    sections: list[Reply] = [b"# Server\r\nredis_version:7.0.15\r\n\r\n", Refusal("NOPERM", "no"), b"role:master\r\n"]
    assert facts_of(sections) == {"redis_version": "7.0.15", "role": "master"}


@pytest.mark.parametrize(
    ("facts", "written", "wrong"),
    [
        ({"redis_version": "7.0.15", "role": "master", "maxmemory_policy": "noeviction"}, b"OK", []),
        ({"redis_version": "8.2.1", "role": "master"}, b"OK", []),
        ({"redis_version": "6.2.14", "role": "master"}, b"OK", ["version 6.2.14 is not supported: use 7.0 or newer"]),
        (
            {"redis_version": "7.2.4", "role": "slave"},
            Refusal("READONLY", "You can't write against a read only replica."),
            ["is a read-only replica: name the primary"],
        ),
        (
            {"redis_version": "7.2.4", "role": "master", "maxmemory_policy": "allkeys-lru"},
            b"OK",
            ["is allkeys-lru, must be noeviction: what is evicted is silently forgotten"],
        ),
        ({}, b"OK", []),
        ({}, Refusal("NOPERM", "no access"), ["are refused: NOPERM no access"]),
    ],
)
def test_a_server_is_judged(facts: dict[str, str], written: object, wrong: list[str]) -> None:
    """Version, role, policy and a write; what a server does not tell is not held against it."""
    assert isinstance(written, bytes | Refusal)
    findings = judge("h:1", facts, written)
    assert [finding.detail for finding in findings if finding.state == "wrong"] == wrong
    assert all("h:1" in finding.what for finding in findings)
