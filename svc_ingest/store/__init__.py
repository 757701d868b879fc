"""Opens the request log that a URL names. Must not be imported by anything but `main` and tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mesh.errors import StartError
from mesh.stores import StoreAdmin
from svc_ingest.ports import RequestLog
from svc_ingest.store.sqlite import SqliteRequestLog

KNOWN = (
    "sqlite:///FILE, redis://HOST:PORT/DATABASE, rediss://…, redis+cluster://HOST:PORT,HOST:PORT/, redis+sentinel://…"
)


def open_store(url: str, data_dir: Path) -> RequestLog:
    """Returns the request log, not yet open.

    Args:
        url: `sqlite:///FILE`, below `data_dir` unless absolute, or where Redis is.
        data_dir: folder of embedded stores.

    Raises:
        StartError: an unknown scheme; the text lists the known ones.
    """
    scheme = url.partition("://")[0]
    match scheme:
        case "sqlite":
            return SqliteRequestLog(url, data_dir)
        case "redis" | "rediss" | "redis+cluster" | "redis+sentinel":
            # Only now: whoever runs embedded stores need not have the client.
            from mesh import redis
            from svc_ingest.store.redis import RedisRequestLog

            return RedisRequestLog(redis.connect("request_log_url", url))
        case _:
            raise StartError(f"request_log_url {url!r}: unknown store; known: {KNOWN}")


def admins(url: str) -> Sequence[StoreAdmin]:
    """Returns what looks after the request log; nothing for an embedded one."""
    if url.partition("://")[0] not in ("redis", "rediss", "redis+cluster", "redis+sentinel"):
        return []
    from mesh import redis

    return [redis.RedisAdmin("request log", redis.connect("request_log_url", url))]
