"""Opens the request log that a URL names. Must not be imported by anything but `main` and tests."""

from __future__ import annotations

from pathlib import Path

from mesh.errors import StartError
from svc_ingest.ports import RequestLog
from svc_ingest.store.sqlite import SqliteRequestLog

KNOWN = "sqlite:///FILE"


def open_store(url: str, data_dir: Path) -> RequestLog:
    """Returns the request log, not yet open.

    Args:
        url: `sqlite:///FILE`, below `data_dir` unless absolute.
        data_dir: folder of embedded stores.

    Raises:
        StartError: an unknown scheme; the text lists the known ones.
    """
    scheme = url.partition("://")[0]
    match scheme:
        case "sqlite":
            return SqliteRequestLog(url, data_dir)
        case _:
            raise StartError(f"request_log_url {url!r}: unknown store; known: {KNOWN}")
