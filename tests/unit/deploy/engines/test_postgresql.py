"""What a PostgreSQL server that was killed leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from deploy.engines.postgresql import unlock


def test_a_dead_servers_lock_is_removed(tmp_path: Path) -> None:
    """Also while the system has not collected it yet; the lock of one that runs, and what is no lock, stay."""
    unlock(tmp_path)
    lock = tmp_path / "postmaster.pid"
    for text in (f"{os.getpid()}\n/data\n", "nonsense", ""):
        lock.write_text(text, encoding="utf-8")
        unlock(tmp_path)
        assert lock.read_text(encoding="utf-8") == text
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as dead:
        assert dead.stdout is not None
        assert dead.stdout.read() == b""
        # Nobody has asked for its exit code: it is a zombie, or about to be one.
        os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
        lock.write_text(f"{dead.pid}\n/data\n", encoding="utf-8")
        unlock(tmp_path)
        assert not lock.exists()
