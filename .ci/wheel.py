"""Builds the wheel, installs it from the lock into an empty environment and runs the unit tests on what was installed.

It catches what a source tree hides: a file that was not packed, an import that only works beside the repository. The
tests run from a scratch copy, so no source root is on the path.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UV = str(Path(sysconfig.get_path("scripts")) / "uv")


def build(out: Path) -> Path:
    """Builds the wheel into the folder and returns its path."""
    command = [UV, "build", "--quiet", "--wheel", "--no-build-isolation", "--python", sys.executable]
    subprocess.run([*command, "--out-dir", str(out), str(ROOT)], check=True)
    return next(out.glob("*.whl"))


def install(wheel: Path, environment: Path) -> Path:
    """Makes an environment with the lock's packages and the wheel; returns its interpreter."""
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, str(environment)], check=True)
    python = environment / "bin" / "python"
    pip = [UV, "pip", "install", "--quiet", "--python", str(python)]
    subprocess.run([*pip, "--require-hashes", "--requirements", str(ROOT / "requirements.lock")], check=True)
    subprocess.run([*pip, "--no-deps", str(wheel)], check=True)
    return python


def copy_tests(scratch: Path) -> None:
    """Copies the tests that need no repository, and the rules they run under."""
    # bench is not packed, and the rig of faults is the tests' own.
    skip = shutil.ignore_patterns("__pycache__", "bench", "faults")
    tests = scratch / "tests"
    tests.mkdir()
    for name in ("__init__.py", "conftest.py"):
        shutil.copy(ROOT / "tests" / name, tests / name)
    for name in ("support", "unit"):
        shutil.copytree(ROOT / "tests" / name, tests / name, ignore=skip)
    # Data that the tests read and the wheel has in another place.
    shutil.copytree(ROOT / "deploy", scratch / "deploy")
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    (scratch / "pyproject.toml").write_text(_as_toml(rules), encoding="utf-8")


def _as_toml(rules: dict[str, object]) -> str:
    # The values are texts, numbers, truths and lists of texts: JSON writes them as TOML reads them.
    return "[tool.pytest.ini_options]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in rules.items())


def main(arguments: Sequence[str]) -> int:
    """Runs all of it; further arguments go to pytest. Returns pytest's exit code."""
    with tempfile.TemporaryDirectory(prefix="heliograph-wheel-") as folder:
        scratch = Path(folder)
        wheel = build(scratch / "dist")
        python = install(wheel, scratch / "venv")
        work = scratch / "work"
        work.mkdir()
        copy_tests(work)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        unmarked = "not mesh and not processes and not engines"
        command = [str(python), "-m", "pytest", "-q", "-m", unmarked, *arguments, "tests/unit"]
        print(f"testing {wheel.name} as installed", flush=True)
        return subprocess.run(command, cwd=work, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
