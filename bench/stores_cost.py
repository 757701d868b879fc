"""What one operation of a store costs: CPU of this process and of the engine, and how long a call takes.

It must not know any store: those are in `stores_loads`, and the engines' own tools in `stores_tools`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from bench.measures import cpu_seconds, spread

_WARM_UP = 0.5
_TICK_S = 0.000_001


class Cost(msgspec.Struct, frozen=True):
    """What an operation costs with one store.

    Attributes:
        what: the operation.
        store: the store, or the tool.
        rate: items a second.
        client_us: CPU of this process, or of the tool, for each item.
        engine_us: CPU of the engine's processes for each item.
        p50: milliseconds of a call.
        p99: milliseconds of a call.
    """

    what: str
    store: str
    rate: float
    client_us: float
    engine_us: float
    p50: float
    p99: float

    @property
    def all_us(self) -> float:
        """CPU of both."""
        return self.client_us + self.engine_us


class Load(msgspec.Struct, frozen=True):
    """An operation to repeat.

    Attributes:
        what: the operation.
        store: which store.
        call: does it; its number makes it another one each time.
        items: in each call.
        callers: at once.
    """

    what: str
    store: str
    call: Callable[[int], Awaitable[object]]
    items: int
    callers: int


async def measure(load: Load, engine: Mapping[str, int], seconds: float) -> Cost:
    """Repeats an operation by so many callers at once for so long.

    Args:
        load: the operation.
        engine: pids of the engine's processes by some name; empty for an embedded store.
        seconds: how long, after a warm-up.
    """
    number = 0
    micros: list[int] = []
    end = time.perf_counter() + _WARM_UP

    async def calls() -> None:
        nonlocal number
        while (began := time.perf_counter()) < end:
            number += 1
            await load.call(number)
            micros.append(round((time.perf_counter() - began) / _TICK_S))

    await asyncio.gather(*[calls() for _ in range(load.callers)])
    micros.clear()
    began, used, theirs = time.perf_counter(), time.process_time(), sum(cpu_seconds(engine).values())
    end = began + seconds
    await asyncio.gather(*[calls() for _ in range(load.callers)])
    lasted, used = time.perf_counter() - began, time.process_time() - used
    theirs = sum(cpu_seconds(engine).values()) - theirs
    return cost(load.what, load.store, len(micros) * load.items, lasted, used, theirs, micros)


def cost(what: str, store: str, items: int, lasted: float, client: float, engine: float, micros: Iterable[int]) -> Cost:
    """Returns a measured cost: so many items in so many seconds, seconds of CPU, µs of each call."""
    seen, items = spread(micros), max(1, items)
    return Cost(
        what,
        store,
        rate=round(items / lasted),
        client_us=round(client / items / _TICK_S, 1),
        engine_us=round(engine / items / _TICK_S, 1),
        p50=seen.p50,
        p99=seen.p99,
    )


def ended_seconds(engine: Mapping[str, int]) -> float:
    """Returns the CPU of children that have ended, of all processes of an engine: PostgreSQL has one a connection."""
    total = 0
    for pid in engine.values():
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
            total += int(fields[13]) + int(fields[14])
    return total / os.sysconf("SC_CLK_TCK")


def processes(ports: Iterable[int]) -> dict[str, int]:
    """Returns the processes that listen on ports of this machine, and their children; none for other machines."""
    sockets = {inode for port in ports for inode in _listening(port)}
    found: dict[str, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and sockets & _sockets_of(folder):
            for pid in _family(int(folder.name)):
                found[str(pid)] = pid
    return found


def _listening(port: int) -> set[str]:
    found: set[str] = set()
    for table in ("tcp", "tcp6"):
        path = Path("/proc/net") / table
        for line in path.read_text(encoding="ascii").splitlines()[1:] if path.exists() else ():
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(f"socket:[{fields[9]}]")
    return found


def _sockets_of(folder: Path) -> set[str]:
    found: set[str] = set()
    with suppress(OSError):  # it has ended, or is somebody else's
        for entry in (folder / "fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                found.add(os.readlink(entry))
    return found


def _family(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return [pid]
    return [pid, *(one for child in children for one in _family(int(child)))]
