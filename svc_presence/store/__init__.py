"""Opens the presence store that a URL names. Must not be imported by anything but `main` and tests."""

from __future__ import annotations

from collections.abc import Sequence

from mesh.clock import Clock
from mesh.errors import StartError
from mesh.stores import StoreAdmin
from svc_presence.ports import PresenceStore
from svc_presence.store.memory import MemoryStore

KNOWN = (
    "memory://",
    "redis://HOST:PORT/DATABASE",
    "rediss://…",
    "redis+cluster://HOST:PORT,HOST:PORT/",
    "redis+sentinel://…",
)
_REDIS = ("redis", "rediss", "redis+cluster", "redis+sentinel")


def open_store(url: str, *, lease: float, clock: Clock) -> PresenceStore:
    """Returns the store for a URL, not yet open.

    Args:
        url: where leases and entries are kept.
        lease: lifetime of a node's lease in seconds; what was superseded is repeated for that long.
        clock: whose monotonic time will be passed to the store.

    Raises:
        StartError: the scheme is unknown; names the known ones.
    """
    scheme = url.partition("://")[0]
    if scheme == "memory":
        return MemoryStore(repeat_for=lease)
    if scheme in _REDIS:
        # Only now: whoever runs the embedded store need not have the client.
        from mesh import redis
        from svc_presence.store.redis import RedisStore

        return RedisStore(redis.connect("store_url", url), clock=clock, repeat_for=lease)
    raise StartError(f"store_url {url}: unknown scheme; use one of {', '.join(KNOWN)}")


def admins(url: str) -> Sequence[StoreAdmin]:
    """Returns what looks after the store; nothing for the embedded one."""
    if url.partition("://")[0] not in _REDIS:
        return []
    from mesh import redis

    return [redis.RedisAdmin("presence", redis.connect("store_url", url))]
