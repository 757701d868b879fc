"""Examples of the pages, run as they stand: from a folder in which their relative paths lead to a test's own mesh.

Must not judge what they print.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import sysconfig
from pathlib import Path

from tests.meta.tree import ROOT
from tests.support.cluster import Cluster
from tests.support.tools import TOOLS, installed

_LIMIT_S = 30.0
_BASE_PORT = 7400


def examples(page: str, language: str = "") -> list[str]:
    """Returns the code blocks of one language of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


async def run_python(cluster: Cluster, folder: Path, example: str) -> str:
    """Runs a program and returns its output; arguments as for `run_shell`."""
    return await _run(cluster, folder, example, sys.executable, "-")


async def run_shell(cluster: Cluster, folder: Path, example: str) -> str:
    """Runs shell commands and returns their output.

    Args:
        cluster: what `.heliograph` and the ports of the page stand for.
        folder: an empty one.
        example: as it stands on the page.

    Raises:
        AssertionError: it fails; the text has what it said.
    """
    return await _run(cluster, folder, example, "bash", "-euo", "pipefail")


async def _run(cluster: Cluster, folder: Path, example: str, *command: str) -> str:
    for name in ("gen", "proto"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".heliograph").symlink_to(cluster.place.state)
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    heliograph = programs / "heliograph"
    heliograph.write_text(f'#!/bin/sh\nexec {sys.executable} -m heliograph_cli "$@"\n')
    heliograph.chmod(0o755)
    for tool in TOOLS:
        (programs / tool.name).symlink_to(installed(tool))
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env={**os.environ, "PATH": f"{programs}:{sysconfig.get_path('scripts')}:{os.environ['PATH']}"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )

    def here(match: re.Match[str]) -> str:
        return f"localhost:{int(match[1]) - _BASE_PORT + cluster.base_port}"

    async with asyncio.timeout(_LIMIT_S):
        output, errors = await process.communicate(re.sub(r"localhost:(74\d\d)\b", here, example).encode())
    assert process.returncode == 0, f"{output.decode()}\n{errors.decode()}"
    return output.decode()
