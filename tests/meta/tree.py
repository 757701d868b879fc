"""The tree as the meta tests read it: files, modules and their imports. It must not judge anything."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ("svc_delivery", "svc_fanout", "svc_gateway", "svc_ingest", "svc_prefs", "svc_presence")

# Folders that hold Python of ours.
_OURS = (*SERVICES, "mesh", "cli", "clients", ".ci", "proto", "docs", "bench", "deploy", "tests")
_NOT_OURS = {".git", ".venv", ".cache", ".heliograph", "__pycache__", "gen", "vendor", "node_modules", "dist", "build"}


class Import(NamedTuple):
    """One imported name: the module it comes from and, for `from x import y`, the name."""

    module: str
    name: str
    line: int


class Source(NamedTuple):
    """One Python file of ours."""

    path: Path
    module: str
    tree: ast.Module

    @property
    def label(self) -> str:
        """The path as a reader of a failure wants it."""
        return self.path.relative_to(ROOT).as_posix()


def files() -> list[Path]:
    """Lists every file of the project, generated and vendored ones excepted, in git or about to be."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
    except (OSError, subprocess.CalledProcessError):
        # A source archive has no git: walk.
        return sorted(_walk())
    paths = (ROOT / name for name in listed if name)
    return sorted(path for path in paths if path.is_file() and not _NOT_OURS & set(path.relative_to(ROOT).parts))


def _walk() -> Iterator[Path]:
    for folder, names, found in os.walk(ROOT):
        names[:] = [name for name in names if name not in _NOT_OURS]
        yield from (Path(folder) / name for name in found)


@cache
def sources() -> tuple[Source, ...]:
    """Parses every Python file of ours once."""
    found = []
    for path in files():
        relative = path.relative_to(ROOT)
        if path.suffix == ".py" and relative.parts[0] in _OURS:
            tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(relative))
            found.append(Source(path, module_name(relative.as_posix()), tree))
    return tuple(found)


def module_name(relative: str) -> str:
    """Turns a path in the tree into the name it is imported by."""
    for root in ("cli/", "clients/python/"):
        relative = relative.removeprefix(root)
    return re.sub(r"(/__init__)?\.py$", "", relative).replace("/", ".")


def imports(tree: ast.Module, module: str = "") -> list[Import]:
    """Lists what a module imports, wherever in it the import stands; relative imports are made whole."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [Import(alias.name, "", node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(module.split(".")[: -node.level]) if node.level else ""
            origin = ".".join(part for part in (base, node.module or "") if part)
            found += [Import(origin, alias.name, node.lineno) for alias in node.names]
    return found
