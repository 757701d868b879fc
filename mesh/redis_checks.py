"""What a Redis server must be like. Must not ask one: `mesh.redis` does."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from mesh.redis_connections import Refusal, Reply
from mesh.stores import Finding

_OLDEST = (7, 0)


def facts_of(replies: Sequence[Reply]) -> Mapping[str, str]:
    """Returns the fields of INFO; none when a server does not tell them."""
    lines = [line for reply in replies if isinstance(reply, bytes) for line in reply.decode().splitlines()]
    return dict(line.split(":", 1) for line in lines if ":" in line)


def judge(where: str, facts: Mapping[str, str], written: Reply) -> list[Finding]:
    """Says of one server what is right and wrong; without facts only whether it takes writes."""
    findings = []
    version = facts.get("redis_version", "")
    if version:
        numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
        old = f"version {version} is not supported: use 7.0 or newer" if numbers < _OLDEST else ""
        findings.append(Finding(f"version of {where}", "wrong" if old else "ok", old))
    replica = facts.get("role") == "slave" or (isinstance(written, Refusal) and written.code == "READONLY")
    text = "is a read-only replica: name the primary" if replica else ""
    findings.append(Finding(f"role of {where}", "wrong" if replica else "ok", text))
    policy = facts.get("maxmemory_policy", "noeviction")
    text = "" if policy == "noeviction" else f"is {policy}, must be noeviction: what is evicted is silently forgotten"
    findings.append(Finding(f"maxmemory-policy of {where}", "wrong" if text else "ok", text))
    if isinstance(written, Refusal) and not replica:
        findings.append(Finding(f"writes at {where}", "wrong", f"are refused: {written}"))
    return findings
