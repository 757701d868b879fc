"""Judges the contract against the commit that `proto/BASELINE` names.

Against the main branch a clone of main could never fail, so the point of comparison is written down and moves with a
release. It must not need a network or a full checkout of the baseline: only its protos are taken out of git.
"""

from __future__ import annotations

import io
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class BaselineError(Exception):
    """The contract could not be compared; the text says what is missing and what to do."""


def baseline(root: Path = ROOT) -> str:
    """Reads the commit id, which must stand in BASELINE and be present in this clone.

    Raises:
        BaselineError: there is no such file, its content is no commit id, or the commit is not in this clone.
    """
    path = root / "proto" / "BASELINE"
    if not path.is_file():
        raise BaselineError("proto/BASELINE is missing: write the id of the last released commit into it")
    commit = path.read_text(encoding="ascii", errors="replace").strip()
    if len(commit) != 40 or not set(commit) <= set("0123456789abcdef"):
        raise BaselineError(f"proto/BASELINE holds {commit[:60]!r}: it must hold one full commit id")
    if _git(root, "cat-file", "-e", f"{commit}^{{commit}}").returncode != 0:
        raise BaselineError(f"commit {commit} of proto/BASELINE is not in this clone: fetch the whole history")
    return commit


def breaking(root: Path = ROOT) -> str:
    """Compares the contract with its baseline; returns what breaks callers, one finding a line, or nothing.

    Raises:
        BaselineError: the baseline is missing or either side does not compile.
    """
    commit = baseline(root)
    archive = _git(root, "archive", "--format=zip", commit, "--", "proto", "buf.yaml")
    if archive.returncode != 0:
        raise BaselineError(f"commit {commit} holds no contract: {archive.stderr.decode(errors='replace').strip()}")
    with tempfile.TemporaryDirectory(prefix="heliograph-baseline-") as scratch:
        with zipfile.ZipFile(io.BytesIO(archive.stdout)) as files:
            files.extractall(scratch)
        buf = Path(sysconfig.get_path("scripts")) / "buf"
        command = [str(buf), "breaking", "--against", scratch]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    # buf ends with 100 when it found something, and with another code when it could not look.
    if done.returncode not in (0, 100):
        raise BaselineError((done.stderr or done.stdout).strip())
    return done.stdout.strip()


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=False)


def main() -> int:
    """Runs the command; returns its exit code."""
    try:
        findings = breaking()
    except BaselineError as error:
        print(error, file=sys.stderr)
        return 1
    if findings:
        print("the contract breaks its callers:", findings, sep="\n", file=sys.stderr)
        return 1
    print(f"the contract keeps what {baseline()[:12]} promised")
    return 0


if __name__ == "__main__":
    sys.exit(main())
