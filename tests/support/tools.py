"""The operators' own tools, as they get them: built from the module that is pinned here, once, into a cache.

    python -m tests.support.tools    build what is missing, and print where each lies

The cache lies outside the repository, so clones and runs share it. Must not fall back on what happens to be on PATH: a
test that says a version works has run that version.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_BUILD_LIMIT_S = 300


class Tool(NamedTuple):
    """One program: the package that `go install` builds it from, and its version."""

    package: str
    version: str

    @property
    def name(self) -> str:
        """What the program is called."""
        return self.package.rpartition("/")[2]


GRPCURL = Tool("github.com/fullstorydev/grpcurl/cmd/grpcurl", "v1.9.4")
HEALTH_PROBE = Tool("github.com/grpc-ecosystem/grpc-health-probe", "v0.4.62")
TOOLS = (GRPCURL, HEALTH_PROBE)


class ToolMissing(Exception):
    """A tool is not there and cannot be built; one line says why and what to do."""


def tools_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Returns the folder of all tools."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heliograph" / "tools"


def installed(tool: Tool, environ: Mapping[str, str] = os.environ) -> Path:
    """Returns the program's path; builds it when this version is not in the cache.

    Raises:
        ToolMissing: Go is missing, or the build fails.
    """
    program = tools_dir(environ) / f"{tool.name}-{tool.version.removeprefix('v')}" / tool.name
    if not program.exists():
        _build(tool, program, environ)
    return program


def _build(tool: Tool, program: Path, environ: Mapping[str, str]) -> None:
    go = shutil.which("go", path=environ.get("PATH"))
    if go is None:
        raise ToolMissing(
            f"{tool.name} {tool.version} is built with Go, which is not here: put Go 1.26 or newer on PATH"
        )
    program.parent.mkdir(parents=True, exist_ok=True)
    # Beside its place, so that two runs at once each build their own and the last rename wins.
    with tempfile.TemporaryDirectory(prefix=".build-", dir=program.parent) as folder:
        command = [go, "install", f"{tool.package}@{tool.version}"]
        said = f"go install {tool.package}@{tool.version}"
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env={**environ, "GOBIN": folder, "GOFLAGS": "", "CGO_ENABLED": "0"},
                capture_output=True,
                text=True,
                timeout=_BUILD_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ToolMissing(f"`{said}` did not end within {_BUILD_LIMIT_S} s") from None
        if done.returncode != 0:
            raise ToolMissing(f"`{said}` failed: {' '.join(done.stderr.split())[-400:]}")
        (Path(folder) / tool.name).rename(program)


def main() -> int:
    """Runs the command; returns its exit code."""
    try:
        for tool in TOOLS:
            print(f"{tool.name} {tool.version}: {installed(tool)}", flush=True)
    except ToolMissing as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
