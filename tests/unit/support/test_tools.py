"""Tools are built once into a cache, and what stands in the way is said in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tools import TOOLS, Tool, ToolMissing, installed, tools_dir

_TOOL = Tool("example.org/lamp/cmd/lamp", "v1.2.3")


def _go(folder: Path, script: str) -> dict[str, str]:
    """Puts a stand-in for Go on a path of its own."""
    folder.mkdir()
    program = folder / "go"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin", "XDG_CACHE_HOME": str(folder / "cache")}


def test_without_go_one_line_says_so(tmp_path: Path) -> None:
    """Nothing is skipped in silence where a tool cannot be built."""
    with pytest.raises(ToolMissing, match=r"lamp v1\.2\.3 is built with Go, which is not here: .+") as raised:
        installed(_TOOL, {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)})
    assert "\n" not in str(raised.value)


def test_a_tool_is_built_once(tmp_path: Path) -> None:
    """The version is in the folder's name, so another one is built beside it; the second use builds nothing."""
    environ = _go(tmp_path / "go", 'echo "$@" >> "$XDG_CACHE_HOME/calls" && echo built > "$GOBIN/lamp"')
    program = installed(_TOOL, environ)
    assert program == tools_dir(environ) / "lamp-1.2.3" / "lamp"
    assert program.read_text() == "built\n"
    assert installed(_TOOL, environ) == program
    assert (tmp_path / "go" / "cache" / "calls").read_text() == "install example.org/lamp/cmd/lamp@v1.2.3\n"
    assert [path.name for path in program.parent.iterdir()] == ["lamp"], "scratch was left behind"


def test_a_build_that_fails_leaves_nothing_and_says_why(tmp_path: Path) -> None:
    """The next run tries again."""
    environ = _go(tmp_path / "go", "echo 'no such module' >&2; exit 1")
    with pytest.raises(ToolMissing, match=r"go install example\.org/lamp/cmd/lamp@v1\.2\.3` failed: no such module"):
        installed(_TOOL, environ)
    assert list((tools_dir(environ) / "lamp-1.2.3").iterdir()) == []


def test_versions_are_pinned() -> None:
    """No tool floats: what a test says of a version is about that version."""
    assert {tool.name: tool.version for tool in TOOLS} == {"grpcurl": "v1.9.4", "grpc-health-probe": "v0.4.62"}
