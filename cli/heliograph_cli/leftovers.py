"""Ends what an `up` left behind that was killed: its children, which are on their way out by themselves.

Must not signal a process that only happens to have the same id: each is known by the folders in its arguments.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from heliograph_cli.record import ProcessRecord, alive

_GRACE_S = 12.0
_POLL_S = 0.05


async def end(records: Iterable[ProcessRecord], marks: Sequence[str], say: Callable[[str, str, bool], None]) -> None:
    """Waits for processes of an earlier run, and kills those that stay.

    Args:
        records: what was written down about them.
        marks: texts of which one stands in the arguments of each of them, such as its run folder.
        say: shows a line.
    """
    loop = asyncio.get_running_loop()
    left = [record for record in records if _is_same(record.pid, marks)]
    for record in left:
        say(record.name, f"left behind by an earlier run (pid {record.pid}); waiting for its end", True)
        _send(record.pid, signal.SIGTERM)
    limit = loop.time() + _GRACE_S
    while left and loop.time() < limit:
        await asyncio.sleep(_POLL_S)
        left = [record for record in left if _is_same(record.pid, marks)]
    for record in left:
        say(record.name, f"does not end (pid {record.pid}); killed", True)
        _send(record.pid, signal.SIGKILL)


def _is_same(pid: int, marks: Sequence[str]) -> bool:
    if not alive(pid):
        return False
    command = _command(pid)
    return any(mark in command for mark in marks)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        pass
    try:
        # Where there is no /proc.
        found = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return found.stdout


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
