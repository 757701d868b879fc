"""Publish → receipt → stored ack at a paced rate, as real processes: `python -m bench.e2e` (or `make bench`).

Publishers and listeners are processes of their own; sends are scheduled by intended time (open loop) and the intended
time travels in the content, so a stall is seen. Beside each figure stand an fsync probe of the same seconds and the
CPU time of every process.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from bench import listeners, publishers
from bench.engines import pids as pids_of
from bench.engines import read
from bench.installation import Installation, is_envoy
from bench.measures import FsyncProbe, Spread, cpu_seconds, machine, spread, table

_RESULTS_LIMIT = 120.0
_SETTLE_LIMIT = 20.0
# Of each load on engines, and of the one beside it, before its figure is taken.
_WARM_UP = 5.0


class Load(msgspec.Struct, frozen=True):
    """One load.

    Attributes:
        name: as the table calls it.
        rate: notifications a second.
        audience: recipients of one event.
        batch: events of one call.
        frozen_node: stop the first gateway node (SIGSTOP); only the sessions of the others are counted.
    """

    name: str
    rate: float
    audience: int = 1
    batch: int = 1
    frozen_node: bool = False


class Figures(msgspec.Struct, frozen=True):
    """What one load gave."""

    load: Load
    direct: bool
    seconds: float
    sessions: int
    offered_rate: float
    achieved_rate: float
    due: int
    received: int
    duplicates: int
    refused: int
    call: Spread
    receipt: Spread
    ack: Spread
    fsync: Spread
    cpu_micros: dict[str, float]
    errors: list[str]
    stores: str = "embedded"
    engine_micros: dict[str, float] = {}

    @property
    def sum_micros(self) -> float:
        """CPU of all of the installation's processes, µs a notification."""
        return sum(self.cpu_micros.values())


LOADS: Mapping[str, Load] = {
    load.name: load
    for load in (
        Load("single 100/s", 100.0),
        Load("one recipient 2,500/s", 2_500.0, batch=100),
        Load("ten recipients 4,000/s", 4_000.0, audience=10, batch=10),
        Load("one recipient 5,000/s", 5_000.0, batch=100),
        Load("ten recipients 8,000/s", 8_000.0, audience=10, batch=20),
        Load("half of 1,000/s", 1_000.0, batch=10),
        Load("half of 1,000/s, a node frozen", 1_000.0, batch=10, frozen_node=True),
    )
}
# What the engines must carry, they themselves on the same cores.
ON_ENGINES: Mapping[str, Load] = {
    load.name: load
    for load in (
        Load("single 100/s", 100.0),
        Load("one recipient 1,000/s", 1_000.0, batch=10),
        Load("ten recipients 3,000/s", 3_000.0, audience=10, batch=10),
    )
}
_WARMING = (Load("before 1,000/s", 1_000.0, batch=10), Load("ahead 3,000/s", 3_000.0, audience=10, batch=10))
FLOORS = ("single 100/s", "one recipient 2,500/s", "ten recipients 4,000/s")
# Compared with each other: the sessions of the second node alone, with and without the first one frozen.
HALVES = ("half of 1,000/s", "half of 1,000/s, a node frozen")


def measure(
    installation: Installation,
    load: Load,
    *,
    seconds: float,
    sessions: int,
    beside: Mapping[str, Mapping[str, int]] | None = None,
) -> Figures:
    """Runs one load against a running installation and returns what it gave.

    Args:
        installation: it serves.
        load: what is sent.
        seconds: for how long.
        sessions: so many recipients listen.
        beside: processes of what does not belong to the installation, by what it is called; their CPU is told apart.
    """
    # Recipients of their own: nothing of an earlier load is replayed into this one.
    recipients = [f"{load.name.partition(' ')[0]}-{index:05d}" for index in range(sessions)]
    targets = installation.live_targets()
    if load.name in HALVES:
        # Recipients alternate between the nodes, as the publishers go through them in turn.
        counted = listen(installation, recipients[1::2], targets[1:])
        others = [listen(installation, recipients[0::2], targets[:1])]
    else:
        counted, others = listen(installation, recipients, targets), []
    probe = FsyncProbe(installation.folder / "data")
    pids = installation.pids()
    frozen = [pid for name, pid in pids.items() if name.endswith("-0") and load.frozen_node]
    before = cpu_seconds(pids)
    engines_before = _cpu_of(beside or {})
    began = time.monotonic()
    probe.start()
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        publishing = start("bench.publishers", publisher_order(installation, recipients, load, seconds))
        sent = msgspec.json.decode(output(publishing, seconds), type=publishers.Result)
        settle(pids)
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    took = time.monotonic() - began
    fsync = probe.stop()
    after = cpu_seconds(pids)
    engines_after = _cpu_of(beside or {})
    heard = msgspec.json.decode(output(counted), type=listeners.Result)
    for other in others:
        output(other)
    count = max(sent.due, 1)
    return Figures(
        load=load,
        direct=installation.direct,
        seconds=round(took, 1),
        sessions=sessions,
        offered_rate=load.rate,
        achieved_rate=round(sent.due / seconds, 1),
        due=sent.due // (1 + len(others)),
        received=heard.received,
        duplicates=heard.duplicates,
        refused=sent.refused,
        call=spread(sent.calls),
        receipt=spread(heard.receipts),
        ack=spread(heard.acks),
        fsync=fsync,
        cpu_micros={name: round((after[name] - before.get(name, 0.0)) * 1_000_000 / count, 1) for name in after},
        errors=sent.errors,
        stores=installation.stores,
        engine_micros={
            name: round((engines_after[name] - engines_before[name]) * 1_000_000 / count, 1) for name in engines_after
        },
    )


def _cpu_of(groups: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    return {name: sum(cpu_seconds(pids).values()) for name, pids in groups.items()}


def show(figures: Sequence[Figures]) -> str:
    """Returns the table of results."""
    rows = [
        (
            one.load.name,
            "direct" if one.direct else "mesh",
            one.stores,
            f"{one.achieved_rate:,.0f}",
            f"{one.due:,}",
            f"{one.due - one.received:,}",
            one.duplicates,
            f"{one.receipt.p50:.1f} / {one.receipt.p99:.1f}",
            f"{one.ack.p50:.1f} / {one.ack.p99:.1f}",
            f"{one.receipt.p999:.0f}",
            f"{one.sum_micros:.0f}",
            f"{one.fsync.p50:.2f} / {one.fsync.p99:.2f}",
        )
        for one in figures
    ]
    columns: tuple[str, ...] = ("load", "shape", "stores", "due/s", "due", "missing", "twice")
    columns += ("receipt p50/p99 ms", "ack p50/p99 ms", "p99.9", "CPU µs each", "fsync p50/p99 ms")
    return table(columns, rows)


def show_cpu(figures: Sequence[Figures]) -> str:
    """Returns the table of CPU per process, µs a notification."""
    names = sorted({_group(name) for one in figures for name in one.cpu_micros})
    names += sorted({name for one in figures for name in one.engine_micros})
    rows = []
    for one in figures:
        sums = dict.fromkeys(names, 0.0) | one.engine_micros
        for name, micros in one.cpu_micros.items():
            sums[_group(name)] += micros
        shown = (f"{sums[name]:.0f}" for name in names)
        rows.append((one.load.name, "direct" if one.direct else "mesh", one.stores, *shown))
    return table(("CPU µs a notification", "shape", "stores", *names), rows)


def _group(name: str) -> str:
    if is_envoy(name):
        return "envoys"
    return "gateways" if name.startswith("gw-") else name


def settle(pids: Mapping[str, int]) -> None:
    """Waits until the last frames have gone: the gateways' CPU time stands still."""
    gateways = {name: pid for name, pid in pids.items() if name.startswith("gw-")}
    end = time.monotonic() + _SETTLE_LIMIT
    last = -1.0
    while time.monotonic() < end:
        used = sum(cpu_seconds(gateways).values())
        if used - last < 0.011:
            return
        last = used
        time.sleep(0.25)


def listen(
    installation: Installation,
    recipients: Sequence[str],
    targets: list[str],
    *,
    by_category: bool = False,
    returns: bool = False,
) -> subprocess.Popen[bytes]:
    """Starts listeners and returns once all are connected.

    Args:
        installation: it serves.
        recipients: a session each.
        targets: where they connect.
        by_category: keep each receipt with its category.
        returns: sessions that the node closes come back.
    """
    order = listeners.Order(
        targets=targets,
        server_name=installation.live_name,
        ca_file=installation.ca_file,
        sessions=[("bench", installation.token(recipient)) for recipient in recipients],
        by_category=by_category,
        returns=returns,
    )
    process = start("bench.listeners", order)
    assert process.stdout is not None
    first = process.stdout.readline()
    if first.strip() != b'"ready"':
        raise RuntimeError(f"listeners did not connect: {first!r}")
    return process


def publisher_order(
    installation: Installation, recipients: Sequence[str], load: Load, seconds: float
) -> publishers.Order:
    """Returns what a publishing process is told for a load."""
    up = installation.up
    producer = installation.folder / "certs" / "producer" / "acme" / "demo" / "current"
    return publishers.Order(
        target=f"unix:{up.run_dir}/ingest.sock" if installation.direct else up.edge,
        metadata=[("x-heliograph-caller", "producer/acme/demo")] if installation.direct else [],
        ca_file=installation.ca_file,
        cert_file="" if installation.direct else str(producer / "cert.pem"),
        key_file="" if installation.direct else str(producer / "key.pem"),
        server_name="" if installation.direct else "producers.localhost",
        recipients=list(recipients),
        rate=load.rate,
        audience=load.audience,
        batch=load.batch,
        seconds=seconds,
    )


def start(module: str, order: msgspec.Struct) -> subprocess.Popen[bytes]:
    """Starts one half of a load in a process of its own."""
    process = subprocess.Popen([sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(order) + b"\n")
    process.stdin.flush()
    return process


def output(process: subprocess.Popen[bytes], seconds: float = 0.0) -> bytes:
    """Waits for a process to end and returns its last line.

    Args:
        process: one half of a load.
        seconds: for which it is busy before it comes to an end.
    """
    output, _ = process.communicate(timeout=seconds + _RESULTS_LIMIT)
    return output.splitlines()[-1]


def beside_engines(
    engines: Path, shapes: str, *, seconds: float, sessions: int, warm: float, gateways: int
) -> list[Figures]:
    """Runs each load on embedded stores and right after on engines, with names of its own there.

    Args:
        engines: where they are.
        shapes: "direct", "mesh" or "both".
        seconds: of each load.
        sessions: so many recipients listen.
        warm: seconds of load before the first one: a JVM that has just started compiles what it runs.
        gateways: number of gateway nodes.
    """
    named = read(engines)
    beside = {name: pids_of(named, name) for name in ("kafka", "cassandra", "redis", "postgresql")}
    if warm:
        warming = f"bench{os.getpid()}warm"
        with Installation(direct=True, gateways=gateways, engines=engines, name=warming) as installation:
            for load in _WARMING:
                measure(installation, load, seconds=warm / len(_WARMING), sessions=sessions)
    figures: list[Figures] = []
    for shape in ("direct", "mesh") if shapes == "both" else (shapes,):
        for load in ON_ENGINES.values():
            for file in (None, engines):
                name = f"bench{os.getpid()}n{len(figures)}"
                direct = shape == "direct"
                with Installation(direct=direct, gateways=gateways, engines=file, name=name) as installation:
                    # How it runs is asked, not how it starts: connections, keyspace and code are in use by then.
                    warm_up = Load("warm-up", load.rate, audience=load.audience, batch=load.batch)
                    measure(installation, warm_up, seconds=_WARM_UP, sessions=sessions)
                    figures.append(
                        measure(
                            installation,
                            load,
                            seconds=seconds,
                            sessions=sessions,
                            beside=beside if file else None,
                        )
                    )
                print(show(figures[-1:]), flush=True)
    return figures


def show_ratios(figures: Sequence[Figures]) -> str:
    """Returns how many times as long, and as dear, each load is on engines."""
    rows = [
        (
            one.load.name,
            "direct" if one.direct else "mesh",
            f"{other.ack.p50 / max(one.ack.p50, 0.01):.1f}",
            f"{other.ack.p99 / max(one.ack.p99, 0.01):.1f}",
            f"{other.sum_micros / max(one.sum_micros, 0.01):.1f}",
        )
        for one, other in zip(figures[0::2], figures[1::2], strict=True)
    ]
    return table(("engines / embedded", "shape", "ack p50", "ack p99", "CPU of our processes"), rows)


def main() -> None:
    """Runs the loads that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=("direct", "mesh", "both"), default="both")
    parser.add_argument(
        "--load", action="append", choices=LOADS, help="which load; default: those with a floor, and the halves"
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--sessions", type=int, default=1_000)
    parser.add_argument("--gateways", type=int, default=2, help="number of gateway nodes")
    parser.add_argument(
        "--engines",
        type=Path,
        metavar="FILE",
        help="the loads of engines, on those that engines.json names and on embedded stores beside them",
    )
    parser.add_argument(
        "--warm", type=float, default=60.0, metavar="SECONDS", help="of load on engines before the first figure"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    chosen = parser.parse_args()
    figures: list[Figures] = []
    if chosen.engines is not None:
        figures = beside_engines(
            chosen.engines,
            chosen.shape,
            seconds=chosen.seconds,
            sessions=chosen.sessions,
            warm=chosen.warm,
            gateways=chosen.gateways,
        )
        print("\n" + show(figures) + "\n\n" + show_cpu(figures) + "\n\n" + show_ratios(figures))
        return
    for shape in ("direct", "mesh") if chosen.shape == "both" else (chosen.shape,):
        for name in chosen.load or (*FLOORS, *(HALVES if shape == "direct" else ())):
            # A fresh installation each: no load inherits another one's follow-ups or full disks.
            with Installation(direct=shape == "direct", gateways=chosen.gateways) as installation:
                measure(installation, Load("warm-up", 200.0, batch=10), seconds=2.0, sessions=100)
                figures.append(measure(installation, LOADS[name], seconds=chosen.seconds, sessions=chosen.sessions))
            print(show(figures[-1:]), flush=True)
    print("\n" + show(figures) + "\n\n" + show_cpu(figures))
    print("\n" + "  ".join(f"{key} {value}" for key, value in machine().items()))
    for one in figures:
        for error in one.errors:
            print(f"{one.load.name}: {error}")
    if chosen.json:
        chosen.json.write_bytes(msgspec.json.format(msgspec.json.encode({"machine": machine(), "figures": figures})))


if __name__ == "__main__":
    main()
