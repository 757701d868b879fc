"""The request log and presence in a Redis of a test's own: their URLs, what is asked of them, and starts.

Must not judge what a store answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mesh.clock import ManualClock
from mesh.errors import StartError
from mesh.stores import require
from svc_ingest.ports import Answer, Claim, RequestLog
from svc_ingest.store import admins, open_store
from svc_presence.ports import NodeLease, PresenceStore
from svc_presence.store import open_store as open_presence
from tests.support.redis_servers import RedisServer

LEASE = 15.0


def url_of(server: RedisServer, path: str = "0", **options: str) -> str:
    """The URL of one server."""
    query = "&".join(f"{name}={value}" for name, value in {"prefix": "own", **options}.items())
    return f"redis://127.0.0.1:{server.port}/{path}?{query}"


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[RequestLog]:
    """The request log that a URL names."""
    log = open_store(url, Path())
    await log.open()
    try:
        yield log
    finally:
        await log.close()


@asynccontextmanager
async def present(url: str, clock: ManualClock | None = None) -> AsyncIterator[PresenceStore]:
    """The presence store that a URL names."""
    store = open_presence(url, lease=LEASE, clock=clock or ManualClock())
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def claim(number: int, holder: str = "first") -> Claim:
    """A claim on one request."""
    return Claim("acme", "demo", number.to_bytes(16, "big"), b"d" * 32, 1_000, holder.encode())


def answer(number: int) -> Answer:
    """The answer to it."""
    return Answer(claim(number), b"e" * 16, 7)


def lease(node_id: str = "gw-0", epoch: int = 1, now: float = 0.0) -> NodeLease:
    """A lease taken now."""
    return NodeLease(node_id, epoch, False, 0, "", now + LEASE)


async def refused(url: str) -> str:
    """The one line that a start with this URL, and its check, end with."""
    with pytest.raises(StartError) as stopped:
        async with opened(url):
            pass
    (admin,) = admins(url)
    with pytest.raises(StartError) as checked:
        await require(admin)
    said = str(stopped.value)
    for line in (said, str(checked.value)):
        assert "\n" not in line
        assert "secret" not in line
    assert said.startswith("request_log_url: redis")
    return said
