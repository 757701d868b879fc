"""What processes hold: descriptors and memory, before a run and after it. What grows with each event is a leak.

Linux only: it reads /proc. It must not judge a process that was started anew in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from tests.support.cluster import Cluster

# What comes and goes anyway: connections between services, files of stores, a scrape.
_FILES: Final = 16
# An interpreter takes memory in arenas, and stores fill their caches; a run of the quick set has some hundred events.
_MEMORY_MIB: Final = 32.0
# More devices make wider batches, and rows, windows and follow-ups of them that are in memory for a while.
_MEMORY_OF_A_DEVICE_MIB: Final = 0.5
_MIB: Final = 1024.0


class Holding(msgspec.Struct, frozen=True):
    """What one process holds."""

    pid: int
    files: int
    memory_mib: float


def holdings(cluster: Cluster) -> Mapping[str, Holding]:
    """Returns what each service's processes hold."""
    services = {name: one.pid for name, one in cluster.running.processes.items() if one.kind == "service"}
    return {name: _holding(pid) for name, pid in services.items() if Path(f"/proc/{pid}").exists()}


def grown(before: Mapping[str, Holding], after: Mapping[str, Holding], devices: int) -> Iterator[str]:
    """Yields what a process holds more than it may, in words.

    Args:
        before: under load, when every device was there.
        after: when all is quiet.
        devices: how many there are; whichever node is left may have all of them.
    """
    for name, now in after.items():
        then = before.get(name)
        if then is None or then.pid != now.pid:
            continue
        files = then.files + _FILES + (devices if name.startswith("gw-") else 0)
        if now.files > files:
            yield f"{name} has {now.files} descriptors, {then.files} before"
        if now.memory_mib > then.memory_mib + _MEMORY_MIB + devices * _MEMORY_OF_A_DEVICE_MIB:
            yield f"{name} has {now.memory_mib:.0f} MiB, {then.memory_mib:.0f} before"


def _holding(pid: int) -> Holding:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    memory = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return Holding(pid, len(list(Path(f"/proc/{pid}/fd").iterdir())), float(memory.split()[1]) / _MIB)
