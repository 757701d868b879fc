"""Opens the presence store that a URL names."""

from __future__ import annotations

from mesh.errors import StartError
from svc_presence.ports import PresenceStore
from svc_presence.store.memory import MemoryStore

KNOWN = ("memory://",)


def open_store(url: str, *, lease: float) -> PresenceStore:
    """Returns the store for a URL.

    Args:
        url: where leases and entries are kept.
        lease: lifetime of a node's lease in seconds; what was superseded is repeated for that long.

    Raises:
        StartError: the scheme is unknown; names the known ones.
    """
    if url.partition("://")[0] == "memory":
        return MemoryStore(repeat_for=lease)
    raise StartError(f"store_url {url}: unknown scheme; use one of {', '.join(KNOWN)}")
