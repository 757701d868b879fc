"""A stand-in for the admin interface of an Envoy: it gives what it was told to give."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path


@asynccontextmanager
async def envoy_admin(socket: Path, answers: Mapping[str, tuple[int, str]]) -> AsyncIterator[list[str]]:
    """Serves answers by path; yields what was asked, as "GET /ready".

    Args:
        socket: the Unix socket it listens on.
        answers: status and body by path with query.
    """
    asked: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, path, _ = (await reader.readline()).decode().split()
        asked.append(f"{method} {path}")
        code, body = answers[path]
        writer.write(f"HTTP/1.1 {code} X\r\nconnection: close\r\n\r\n{body}".encode())
        writer.close()

    server = await asyncio.start_unix_server(serve, socket)
    async with server:
        yield asked
