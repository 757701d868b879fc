"""Programs of ours that are run to their end: how they ended, and what they said. It must not judge either."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
# Generous: two cores may be busy with other things.
_LIMIT_S = 25.0


class Ended(msgspec.Struct, frozen=True):
    """How a program ended.

    Attributes:
        code: its exit code.
        out: what it said.
        complaints: the lines on standard error that are for people; log lines are not.
    """

    code: int
    out: str
    complaints: tuple[str, ...]


async def run_to_end(module: str, *words: str, environ: Mapping[str, str] | None = None) -> Ended:
    """Runs a module as a program; whatever is not over within a limit is killed and is a failure.

    Args:
        module: what `python -m` starts.
        words: its arguments.
        environ: variables to add; none of our own are inherited.

    Raises:
        TimeoutError: it went on.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HELIOGRAPH_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", module),
        *words,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        env={**inherited, **(environ or {})},
    )
    try:
        async with asyncio.timeout(_LIMIT_S):
            out, errors = await process.communicate()
    except TimeoutError:
        # `up` stops what it started when it is asked to; killed, its children go by themselves.
        process.kill()
        await process.communicate()
        raise
    assert process.returncode is not None
    lines = errors.decode().splitlines()
    return Ended(process.returncode, out.decode(), tuple(line for line in lines if not line.startswith("{")))


def service_words(service: str, folder: Path, *more: str) -> Sequence[str]:
    """Returns the arguments of a service with everything in one folder; later words replace earlier ones."""
    words = ["--run-dir", str(folder), "--data-dir", str(folder), "--direct"]
    if service in ("ingest", "prefs"):
        words += ["--categories-file", str(DEPLOY / "categories.toml")]
    if service == "ingest":
        words += ["--producers-file", str(DEPLOY / "producers.example.toml")]
    if service == "gateway":
        words += ["--process", "gw-test-0", "--node-id", "gw-test-0"]
    return [*words, *more]
