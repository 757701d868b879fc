"""What processes hold: descriptors and memory, before a run and after it. What grows with each event is a leak.

What a process keeps of its store's files is bounded, and grows until then: it is none. Linux only: it reads /proc. It
must not judge a process that was started anew in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from tests.support.cluster import Cluster

# What comes and goes anyway: connections between services, files of stores, a scrape.
_FILES: Final = 16
# An interpreter takes memory in arenas.
_MEMORY_MIB: Final = 36.0
# Of each file the connection that writes it keeps so much at most; those that read it let go of it with each write.
_CACHE_MIB: Final = 64.0
_LANES: Final = ("lanes/high.db", "lanes/normal.db", "lanes/bulk.db")
_STORES: Final[Mapping[str, tuple[str, ...]]] = {
    "ingest": (*_LANES, "requests.db"),
    "fanout": (*_LANES, "positions.db"),
    "prefs": ("prefs.db",),
    "delivery": ("inbox.db",),
}
# More devices make wider batches, and sessions and windows of them that are in memory for a while.
_MEMORY_OF_A_DEVICE_MIB: Final = 0.1
_MIB: Final = 1024.0


class Holding(msgspec.Struct, frozen=True):
    """What one process holds.

    Attributes:
        pid: who it is.
        files: descriptors.
        memory_mib: what is resident.
        stored_mib: how much of it may be of the store's files.
    """

    pid: int
    files: int
    memory_mib: float
    stored_mib: float = 0.0


def holdings(cluster: Cluster) -> Mapping[str, Holding]:
    """Returns what each service's processes hold."""
    services = {name: one for name, one in cluster.running.processes.items() if one.kind == "service"}
    return {
        name: _holding(one.pid, _stored(cluster, one.service))
        for name, one in services.items()
        if Path(f"/proc/{one.pid}").exists()
    }


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
        memory = then.memory_mib + now.stored_mib - then.stored_mib + _MEMORY_MIB + devices * _MEMORY_OF_A_DEVICE_MIB
        if now.memory_mib > memory:
            yield f"{name} has {now.memory_mib:.0f} MiB, {then.memory_mib:.0f} before"


def _stored(cluster: Cluster, service: str) -> float:
    names = () if cluster.on_engines else _STORES.get(service, ())
    return sum(min(_size(cluster.place.data / name), _CACHE_MIB) for name in names)


def _size(path: Path) -> float:
    """What a file has, and what is in its log still."""
    parts = (path, path.with_name(f"{path.name}-wal"))
    return sum(part.stat().st_size for part in parts if part.exists()) / _MIB**2


def _holding(pid: int, stored_mib: float) -> Holding:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    memory = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return Holding(pid, len(list(Path(f"/proc/{pid}/fd").iterdir())), float(memory.split()[1]) / _MIB, stored_mib)
