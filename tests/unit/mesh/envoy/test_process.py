"""Readiness and orders over the admin socket, against a small admin interface; and the command line."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mesh.envoy.process import ask, envoy_binary, envoy_command, is_ready, leave_service, wait_ready
from tests.support.envoy_admin import envoy_admin

STATS = "/stats?filter=^server.days_until_first_cert_expiring$"


def _days(value: int) -> tuple[int, str]:
    return 200, f"server.days_until_first_cert_expiring: {value}\n"


@pytest.mark.parametrize(
    ("ready", "days", "expected"), [(200, 6, True), (200, 0, True), (200, 4294967295, False), (503, 6, False)]
)
async def test_ready_means_that_certificates_are_there(run_dir: Path, ready: int, days: int, expected: bool) -> None:
    """An Envoy without certificates says it is ready and refuses every handshake; it is not taken at its word."""
    socket = run_dir / "a.admin"
    async with envoy_admin(socket, {"/ready": (ready, "LIVE"), STATS: _days(days)}):
        assert await is_ready(str(socket)) is expected


async def test_nobody_there_is_not_ready(run_dir: Path) -> None:
    """A socket that does not exist, and a limit that passes, are told apart from readiness."""
    assert not await is_ready(str(run_dir / "nothing.admin"))
    with pytest.raises(TimeoutError):
        await wait_ready(str(run_dir / "nothing.admin"), 0.05)


async def test_what_is_not_http_is_an_error(run_dir: Path) -> None:
    """An answer that cannot be read is never taken for a good one."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"hello")
        writer.close()

    async with await asyncio.start_unix_server(serve, run_dir / "a.admin"):
        with pytest.raises(ValueError, match="no HTTP"):
            await ask(str(run_dir / "a.admin"), "GET", "/ready")
        assert not await is_ready(str(run_dir / "a.admin"))


async def test_leaving_service_is_one_order(run_dir: Path) -> None:
    """Health checks are made to fail; a refusal is told."""
    socket = run_dir / "a.admin"
    async with envoy_admin(socket, {"/healthcheck/fail": (200, "OK")}) as asked:
        await leave_service(str(socket))
    assert asked == ["POST /healthcheck/fail"]
    refusing = run_dir / "b.admin"
    async with envoy_admin(refusing, {"/healthcheck/fail": (405, "no")}):
        with pytest.raises(OSError, match="405 no"):
            await leave_service(str(refusing))


def test_the_command_names_the_file_and_one_thread() -> None:
    """One worker a process, no hot restart: processes are replaced whole."""
    command = envoy_command(Path("/x/prefs.json"))
    assert command[:3] == [str(envoy_binary()), "-c", "/x/prefs.json"]
    assert command[command.index("--concurrency") + 1] == "1"
    assert "--disable-hot-restart" in command
