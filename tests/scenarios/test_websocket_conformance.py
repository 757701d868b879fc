"""The gateway's WebSocket passes the published conformance cases."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.ws_conformance import run_cases

ROOT = Path(__file__).resolve().parents[2]
SDIST = "autobahntestsuite-25.10.1"
SHA256 = "b083d6e15330fc16f3e5f0975cce2b15f21bfa0c6db09547316b1852c6dbd6df"
DOWNLOAD_LIMIT_S = 120
# Fewer would mean that cases were not found.
CASES = 301
INFORMATIONAL = "INFORMATIONAL"


def cache_dir() -> Path:
    """Returns where downloads are kept between runs, outside the repository."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heliograph"


async def fetched(scratch: Path) -> Path:
    """Returns the sdist in the cache; it is downloaded on first use and always the one that was pinned."""
    folder = cache_dir()
    archive = folder / f"{SDIST}.tar.gz"
    if not archive.exists():
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        name, _, version = SDIST.rpartition("-")
        # With its hash, so that pip checks the file before it runs anything of it.
        wanted = scratch / "wanted.txt"
        wanted.write_text(f"{name}=={version} --hash=sha256:{SHA256}\n")
        pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps")
        what = ("--no-binary", ":all:", "--dest", str(folder), "--requirement", str(wanted))
        process = await asyncio.create_subprocess_exec(*pip, *what, stderr=asyncio.subprocess.PIPE)
        async with asyncio.timeout(DOWNLOAD_LIMIT_S):
            _, said = await process.communicate()
        assert process.returncode == 0, f"the conformance cases could not be downloaded: {said.decode()[-500:]}"
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == SHA256, f"{archive} is not the pinned file; delete it"
    return archive


@asynccontextmanager
async def echo_server() -> AsyncIterator[int]:
    """Runs the echo server as a process and gives its port; it ends with its input."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.websocket_echo"),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(10):
            port = int(await process.stdout.readline())
        yield port
    finally:
        process.stdin.close()
        async with asyncio.timeout(10):
            await process.wait()


@pytest.mark.processes
# About ten seconds of the cases are timers of their own; the first run also downloads them.
@pytest.mark.timeout(240)
async def test_every_case_passes(tmp_path: Path) -> None:
    """All cases but those about compression: right answers, failures at the first wrong byte, right closing codes."""
    with tarfile.open(await fetched(tmp_path)) as archive:
        archive.extractall(tmp_path, filter="data")
    async with echo_server() as port:
        verdicts = await run_cases(tmp_path, port)
    assert len(verdicts) == CASES
    passed = {"OK", INFORMATIONAL}
    failed = {number: it for number, it in verdicts.items() if not {it.behavior, it.close} <= passed}
    assert not failed
    assert sum(it.behavior == INFORMATIONAL for it in verdicts.values()) == 3
