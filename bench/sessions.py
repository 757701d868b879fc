"""What sessions cost: `python -m bench.sessions`. Memory, idle CPU, handshakes, 20,000 of them, and a storm.

All sessions are complete: opened through the real handshake with tokens of their own, registered at presence, replayed,
live. The same client connects to the server of the `websockets` library and to a bare asyncio protocol. In the storm
a gateway node is killed with all its sessions; they come back as the client library does, by both nodes once the killed
one runs again, and find what was published meanwhile. Through the mesh the edge shares the sessions out.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from bench.crowd import PACE, Crowd, live_order
from bench.e2e import Load, output, publisher_order, start
from bench.installation import Installation
from bench.listeners import Command, Order, Report
from bench.measures import cpu_seconds, machine, memory_bytes, quiet, table
from bench.peers import KINDS

# What idle CPU is quoted for; the runs are shorter, with everything periodic as much faster.
_HEARTBEAT, _ROUND = 120.0, 600.0
_LARGEST_EVENT = 10_000
_PAUSE = "heliograph_gateway_collection_pause_max_seconds"
_STORM_LIMIT = 120.0
_CALM = 6.0
# Files of a process that are no sessions.
_OTHER_FILES = 300


class Cost(msgspec.Struct, frozen=True):
    """What one kind of server needs for its sessions.

    Attributes:
        kind: "gateway", or one of the peers.
        sessions: the larger number, all nodes together.
        bytes_each: growth of the process's own memory from the smaller to the larger number.
        handshake_micros: CPU of the server for each new session, everything up to the end of its replay included.
        others_micros: CPU of the other processes for it: presence and delivery, and the Envoys where there are some.
        idle_micros: CPU per session and second, with a heartbeat every 2 minutes.
        base_micros: CPU per second of a server without sessions.
        pause_ms: longest garbage collection.
        envoy_bytes: growth of the Envoys' memory for each new session, edge and sidecars together.
    """

    kind: str
    sessions: int
    bytes_each: float
    handshake_micros: float
    others_micros: float
    idle_micros: float
    base_micros: float
    pause_ms: float = 0.0
    envoy_bytes: float = 0.0


class Storm(msgspec.Struct, frozen=True):
    """A node was killed.

    Attributes:
        lost: sessions that it had.
        p50: seconds until half of them were back and caught up.
        p90: until 90 % were.
        p99: until 99 % were.
        last: until the last one was.
        peak: most that came back in one second.
        tries: connections tried.
        turned_away: of these, those that were told to come later.
        lost_again: sessions that were lost once more.
        missed: of the notifications published in between, those that never arrived.
        cpu_micros: CPU of all our processes for each session, until 99 % were back.
    """

    lost: int
    p50: float
    p90: float
    p99: float
    last: float
    peak: int
    tries: int
    turned_away: int
    lost_again: int
    missed: int
    cpu_micros: float


class Figures(msgspec.Struct, frozen=True):
    """Everything that was measured."""

    costs: list[Cost]
    storm: Storm | None


class Plan(msgspec.Struct, frozen=True):
    """How much is measured.

    Attributes:
        nodes: gateway nodes.
        small: sessions of a node at the first measurement.
        large: sessions of a node at the second one.
        heartbeat: seconds between two pings.
        idle: seconds that idle CPU is watched for.
        direct: without sidecars and edge.
    """

    nodes: int
    small: int
    large: int
    heartbeat: float
    idle: float
    direct: bool = True

    @property
    def faster(self) -> float:
        """How much faster than in service everything periodic is."""
        return _HEARTBEAT / self.heartbeat


# ---------------------------------------------------------------- the gateway


def measure_gateway(plan: Plan, *, storm: bool) -> tuple[Cost, Storm | None]:
    """Measures gateway nodes, and what happens when the first one is killed."""
    environ = {
        "HELIOGRAPH_GATEWAY_HEARTBEAT_INTERVAL": str(plan.heartbeat),
        "HELIOGRAPH_GATEWAY_ROUND_INTERVAL": str(_ROUND / plan.faster),
    }
    with contextlib.ExitStack() as stack:
        installation = stack.enter_context(Installation(direct=plan.direct, gateways=plan.nodes, environ=environ))
        nodes = installation.gateways()
        quiet(installation.pids())
        base = _watch(nodes, _CALM)
        crowds = [stack.enter_context(crowd) for crowd in _crowds(installation, plan)]
        for crowd in crowds:
            crowd.wait()
        cost = _grow(installation, plan, crowds, base)
        return cost, _storm(installation, plan, crowds) if storm else None


def _crowds(installation: Installation, plan: Plan) -> Iterator[Crowd]:
    """Yields one process of sessions for each node; all of them know every node, their own first."""
    for index in range(plan.nodes):
        order = live_order(installation, _recipients(index, plan), node=index, processes=plan.nodes)
        yield Crowd(
            msgspec.structs.replace(order, first=plan.small, returns=True, elsewhere=installation.live_targets())
        )


def _recipients(index: int, plan: Plan) -> list[str]:
    return [f"r{index}-{number:05d}" for number in range(plan.large)]


def _grow(installation: Installation, plan: Plan, crowds: Sequence[Crowd], base: float) -> Cost:
    nodes, pids = installation.gateways(), installation.pids()
    others = {name: pid for name, pid in pids.items() if name not in nodes}
    envoys = list(installation.envoys().values())
    quiet(pids)
    time.sleep(_CALM)
    memory, envoy_memory = sum(map(memory_bytes, nodes.values())), sum(map(memory_bytes, envoys))
    before, others_before = sum(cpu_seconds(nodes).values()), sum(cpu_seconds(others).values())
    for crowd in crowds:
        crowd.begin(Command(more=plan.large - plan.small))
    for crowd in crowds:
        crowd.wait()
    quiet(pids)
    more = (plan.large - plan.small) * plan.nodes
    handshake = (sum(cpu_seconds(nodes).values()) - before) / more
    others_each = (sum(cpu_seconds(others).values()) - others_before) / more
    time.sleep(_CALM)
    grown = sum(map(memory_bytes, nodes.values())) - memory
    envoy_grown = sum(map(memory_bytes, envoys)) - envoy_memory
    idle = _watch(nodes, plan.idle)
    count = plan.large * plan.nodes
    return Cost(
        kind="gateway",
        sessions=count,
        bytes_each=round(grown / more),
        handshake_micros=round(handshake * 1e6, 1),
        others_micros=round(others_each * 1e6, 1),
        idle_micros=round(((idle - base) / plan.faster + base) / count * 1e6, 2),
        base_micros=round(base * 1e6),
        pause_ms=round(max(installation.metrics(name)[_PAUSE] for name in nodes) * 1e3, 1),
        envoy_bytes=round(envoy_grown / more),
    )


def _watch(pids: Mapping[str, int], seconds: float) -> float:
    """Returns the CPU seconds that processes use in a second."""
    before = sum(cpu_seconds(pids).values())
    time.sleep(seconds)
    return (sum(cpu_seconds(pids).values()) - before) / seconds


# ---------------------------------------------------------------- the storm


def _storm(installation: Installation, plan: Plan, crowds: Sequence[Crowd]) -> Storm:
    name, pid = next(iter(installation.gateways().items()))
    # Behind an edge nobody knows whose sessions the node has.
    hit = crowds[:1] if plan.direct else crowds
    recipients = [one for index in range(len(hit)) for one in _recipients(index, plan)]
    seen = _seen(hit).received
    # The killed process's own time is gone with it.
    others = {one: its for one, its in installation.pids().items() if one != name}
    before = sum(cpu_seconds(others).values())
    began = time.monotonic_ns() // 1_000
    os.kill(pid, signal.SIGKILL)
    _publish(installation, recipients)
    report, end, used = _seen(hit), time.monotonic() + _STORM_LIMIT, 0.0
    while time.monotonic() < end and (report.open < len(recipients) or report.received < seen + len(recipients)):
        time.sleep(0.5)
        report = _seen(hit)
        if not used and len(report.returns) >= report.lost * 0.99 > 0:
            used = sum(cpu_seconds(installation.pids()).values()) - before
    lost = report.lost
    returns = sorted((at - began) / 1e6 for at in report.returns)
    seconds = [int(at) for at in returns]
    return Storm(
        lost=lost,
        p50=_after(returns, lost, 0.5),
        p90=_after(returns, lost, 0.9),
        p99=_after(returns, lost, 0.99),
        last=_after(returns, lost, 1.0),
        peak=max((seconds.count(second) for second in set(seconds)), default=0),
        tries=report.tries,
        turned_away=report.turned_away,
        lost_again=report.lost_again,
        missed=len(recipients) - (report.received - seen),
        cpu_micros=round(used / max(1, lost) * 1e6),
    )


def _seen(crowds: Sequence[Crowd]) -> Report:
    return together([crowd.report() for crowd in crowds])


def together(reports: Sequence[Report]) -> Report:
    """Returns what several processes see, as if they were one."""
    counts = {
        name: sum(getattr(one, name) for one in reports) for name in Report.__struct_fields__ if name != "returns"
    }
    return Report(**counts, returns=[at for one in reports for at in one.returns])


def _publish(installation: Installation, recipients: Sequence[str]) -> None:
    """Publishes something to all of them, in as few events as it takes."""
    events = -(-len(recipients) // _LARGEST_EVENT)
    audience = -(-len(recipients) // events)
    load = Load("to those who are away", rate=float(events * audience), audience=audience)
    publishing = start("bench.publishers", publisher_order(installation, recipients, load, 1.0))
    output(publishing)


def _after(returns: Sequence[float], count: int, share: float) -> float:
    """Returns when a share of them was back; infinity when it never was."""
    needed = max(1, round(count * share))
    return round(returns[needed - 1], 2) if len(returns) >= needed else float("inf")


# ---------------------------------------------------------------- the peers


def measure_peer(kind: str, plan: Plan) -> Cost:
    """Measures one of the servers that the gateway is compared with."""
    command = [sys.executable, "-m", "bench.peers", kind, "--heartbeat", str(plan.heartbeat)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        target = f"127.0.0.1:{int(process.stdout.readline())}"
        pids = {kind: process.pid}
        base = _watch(pids, _CALM / 3)
        sessions = [("bench", "unread")] * plan.large
        order = Order(targets=[target], server_name="", ca_file="", sessions=sessions, pace=PACE, first=plan.small)
        try:
            with Crowd(order) as crowd:
                crowd.wait()
                quiet(pids)
                memory, before = memory_bytes(process.pid), cpu_seconds(pids)[kind]
                crowd.begin(Command(more=plan.large - plan.small))
                crowd.wait()
                quiet(pids)
                handshake = cpu_seconds(pids)[kind] - before
                grown = memory_bytes(process.pid) - memory
                idle = _watch(pids, plan.idle)
        finally:
            process.kill()
    more = plan.large - plan.small
    return Cost(
        kind=kind,
        sessions=plan.large,
        bytes_each=round(grown / more),
        handshake_micros=round(handshake / more * 1e6, 1),
        others_micros=0.0,
        idle_micros=round(((idle - base) / plan.faster + base) / plan.large * 1e6, 2),
        base_micros=round(base * 1e6),
    )


# ---------------------------------------------------------------- the command


def show(figures: Figures) -> str:
    """Returns the tables."""
    rows = [
        (
            one.kind,
            f"{one.sessions:,}",
            f"{one.bytes_each:,.0f}",
            f"{one.envoy_bytes:,.0f}",
            f"{one.handshake_micros:.0f}",
            f"{one.others_micros:.0f}",
            f"{one.idle_micros:.2f}",
            f"{one.base_micros:.0f}",
            f"{one.pause_ms:.0f}",
        )
        for one in figures.costs
    ]
    columns: tuple[str, ...] = ("server", "sessions", "bytes each", "of Envoys", "handshake CPU µs", "others µs")
    columns += ("idle CPU µs/s each", "empty CPU µs/s", "longest GC ms")
    text = table(columns, rows)
    if figures.storm is not None:
        storm = figures.storm
        columns = ("node killed with", "50 % back s", "90 %", "99 %", "last", "peak/s", "tries", "told later")
        columns += ("lost again", "missed", "CPU µs each")
        row = (f"{storm.lost:,}", storm.p50, storm.p90, storm.p99, storm.last, f"{storm.peak:,}", f"{storm.tries:,}")
        text += "\n\n" + table(
            columns, [(*row, f"{storm.turned_away:,}", storm.lost_again, storm.missed, storm.cpu_micros)]
        )
    return text


def measure(plan: Plan, *, peers: Sequence[str], storm: bool, rounds: int) -> Figures:
    """Measures everything, the servers in turn."""
    costs: list[Cost] = []
    found: Storm | None = None
    for number in range(rounds):
        cost, one = measure_gateway(plan, storm=storm and number == rounds - 1)
        costs.append(cost)
        found = one or found
        costs += [measure_peer(kind, plan) for kind in peers]
    return Figures(costs=costs, storm=found)


def main() -> None:
    """Runs the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=("direct", "mesh"), default="direct")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--sessions", type=int, default=10_000, help="of each node")
    parser.add_argument("--small", type=int, default=2_500, help="of each node, for the slope")
    parser.add_argument("--heartbeat", type=float, default=30.0, help="seconds; 120 takes as long as service does")
    parser.add_argument("--idle", type=float, default=30.0, help="seconds that idle CPU is watched for")
    parser.add_argument("--peer", action="append", choices=(*KINDS, "none"), help="default: all")
    parser.add_argument("--no-storm", action="store_true")
    parser.add_argument("--rounds", type=int, default=1, help="all servers in turn, so many times")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    chosen = parser.parse_args()
    room = resource.getrlimit(resource.RLIMIT_NOFILE)[1] - _OTHER_FILES
    if chosen.shape == "mesh":
        # One edge holds them all.
        room //= chosen.nodes
    if chosen.sessions > room:
        print(f"this machine allows {room:,} sessions a process; more need more --nodes", file=sys.stderr)
    plan = Plan(
        nodes=chosen.nodes,
        small=min(chosen.small, chosen.sessions, room),
        large=min(chosen.sessions, room),
        heartbeat=chosen.heartbeat,
        idle=chosen.idle,
        direct=chosen.shape == "direct",
    )
    peers = [kind for kind in chosen.peer or KINDS if kind != "none"]
    figures = measure(plan, peers=peers, storm=not chosen.no_storm, rounds=chosen.rounds)
    print(show(figures))
    print("\n" + "  ".join(f"{key} {value}" for key, value in machine().items()))
    if chosen.json:
        chosen.json.write_bytes(msgspec.json.format(msgspec.json.encode({"machine": machine(), "figures": figures})))


if __name__ == "__main__":
    main()
