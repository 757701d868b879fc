"""The contract's baseline as code: generated once a commit, and run in a process of its own.

In one process two contracts cannot live: both claim the names of their messages. Must not know what is compared.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from proto import generate
from proto.breaking import ROOT, baseline
from tests.support import old_peer

_LIMIT_S = 30.0


def generated() -> Path:
    """Returns the folder of the baseline's generated code; makes it when this commit has none yet."""
    commit = baseline()
    folder = ROOT / ".cache" / "baseline" / commit
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
        try:
            _generate(commit, scratch)
            # As a whole, so that a run that was stopped leaves nothing that looks finished.
            scratch.rename(folder)
        except OSError:
            # Another run was faster.
            shutil.rmtree(scratch, ignore_errors=True)
            if not folder.is_dir():
                raise
    return folder / "gen"


def _generate(commit: str, folder: Path) -> None:
    archive = ["git", "-C", str(ROOT), "archive", "--format=zip", commit, "--", "proto"]
    with zipfile.ZipFile(BytesIO(subprocess.run(archive, capture_output=True, check=True).stdout)) as files:
        files.extractall(folder)
    (folder / "gen").mkdir()
    generate.generate(folder / "gen", folder / "proto")


class OldPeer:
    """A running `old_peer`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def answer(self, what: str = "") -> Any:
        """Returns its next answer, of this kind.

        Raises:
            AssertionError: it ended or was silent; the text has what it said.
        """
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(_LIMIT_S):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise AssertionError(f"the old peer said nothing for {_LIMIT_S:g} s; wanted: {what}") from None
        if not line:
            assert self._process.stderr is not None
            raise AssertionError(f"the old peer ended:\n{(await self._process.stderr.read()).decode()}")
        found = json.loads(line)
        assert not what or found["what"] == what, found
        return found

    async def answers(self) -> list[Any]:
        """Returns everything that it says until its end."""
        output, errors = await asyncio.wait_for(self._process.communicate(), _LIMIT_S)
        assert self._process.returncode == 0, errors.decode()
        return [json.loads(line) for line in output.splitlines()]


@asynccontextmanager
async def running(command: str, told: Mapping[str, Any]) -> AsyncIterator[OldPeer]:
    """Runs `old_peer` with the baseline's code while the context is open.

    Args:
        command: what it does.
        told: what it needs.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", old_peer.__file__, command),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # Before what is installed, where today's code is.
        env={**os.environ, "PYTHONPATH": str(generated())},
        limit=1 << 24,
    )
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(told).encode() + b"\n")
        await process.stdin.drain()
        yield OldPeer(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
