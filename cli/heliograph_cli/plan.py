"""What to start: every process with its arguments, in the order in which they are stopped. Pure: it touches nothing.

Everything is started at once, as services bear absent peers. Stopping goes by `Process.stop_rank`: gateways first, so
that clients hear "go away" while the way to them still stands, then the edge, ingest, fanout, delivery, the rest; a
service before its sidecar.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from heliograph_cli.folders import Folders
from heliograph_cli.record import Kind

GATEWAY: Final = "gateway"
EDGE: Final = "edge"
# The services that run as one process each, in the order in which their lines are shown.
SINGLE: Final = ("presence", "prefs", "delivery", "fanout", "ingest")

_RANKS: Final = {GATEWAY: 10, EDGE: 20, "ingest": 30, "fanout": 40, "delivery": 50, "prefs": 60, "presence": 60}
_SIDECAR: Final = 1
_DIRECT_LIVE_PORT: Final = 20
_DIRECT_METRICS_PORT: Final = 40
_DRAIN_LIMIT_S: Final = 5
_LONGEST_HOST = 20


class Choices(msgspec.Struct, frozen=True):
    """What was asked for on the command line.

    Attributes:
        direct: without sidecars and edge.
        gateways: number of gateway nodes.
        host: this machine's name in node ids.
        base_port: first of the loopback ports.
        trust_domain: of all identities.
        trace: log every step of every event.
        categories: registry of categories.
        producers: registry of producers.
        stores: flags of services that name stores outside; none: embedded.
    """

    direct: bool
    gateways: int
    host: str
    base_port: int
    trust_domain: str
    trace: bool
    categories: Path
    producers: Path
    stores: Mapping[str, tuple[str, ...]] = {}


class Process(msgspec.Struct, frozen=True):
    """One process to run.

    Attributes:
        name: its name in sockets, logs and `up.json`.
        kind: a service, its sidecar, or the edge.
        service: the service it runs or stands beside.
        argv: program and arguments, without those that name the parent.
        log: its log file.
        stop_rank: lower ones are stopped first.
        admin: an Envoy's admin socket.
        socket: a service's own gRPC socket.
        ports: the loopback ports it listens on.
    """

    name: str
    kind: Kind
    service: str
    argv: tuple[str, ...]
    log: Path
    stop_rank: int
    admin: Path | None = None
    socket: Path | None = None
    ports: tuple[int, ...] = ()


class Node(msgspec.Struct, frozen=True):
    """A gateway node: its id, and with a mesh the "ip:port" of its sidecar."""

    node_id: str
    address: str = ""


class Plan(msgspec.Struct, frozen=True):
    """Everything to run, and where it will be found.

    Attributes:
        processes: in the order of their start.
        edge: "host:port" of the edge; empty in direct mode.
        live_urls: WebSocket addresses by gateway node; one entry "edge" with a mesh.
        inbound: "host:port" of each process's sidecar; empty in direct mode.
        producer_host: the name by which producers with a certificate call the edge; empty in direct mode.
    """

    processes: tuple[Process, ...]
    edge: str
    live_urls: dict[str, str]
    inbound: dict[str, str]
    producer_host: str = ""


class Envoy(msgspec.Struct, frozen=True):
    """One Envoy to run: its name, what it stands beside, and how it is started."""

    name: str
    service: str
    argv: tuple[str, ...]
    admin: Path
    ports: tuple[int, ...]


def node_ids(host: str, count: int) -> list[str]:
    """Returns the ids of this machine's gateway nodes, `gw-<host>-<index>`."""
    short = re.sub(r"[^a-z0-9]+", "-", host.partition(".")[0].lower()).strip("-")[:_LONGEST_HOST].strip("-")
    return [f"gw-{short or 'local'}-{index}" for index in range(count)]


def plan_direct(choices: Choices, folders: Folders) -> Plan:
    """Plans the services alone: they call each other at their own sockets, gateways listen on loopback ports."""
    ids = node_ids(choices.host, choices.gateways)
    ports = {node_id: choices.base_port + _DIRECT_LIVE_PORT + index for index, node_id in enumerate(ids)}
    metrics = {name: choices.base_port + _DIRECT_METRICS_PORT + index for index, name in enumerate((*SINGLE, *ids))}
    singles = [_single(service, choices, folders, metrics[service]) for service in SINGLE]
    nodes = [
        _node(
            Node(node_id),
            choices,
            folders,
            metrics[node_id],
            ("--websocket-listen", f"127.0.0.1:{ports[node_id]}"),
            (ports[node_id],),
        )
        for node_id in ids
    ]
    return Plan(
        processes=(*singles, *nodes),
        edge="",
        live_urls={node_id: f"ws://127.0.0.1:{port}/v1/ws" for node_id, port in ports.items()},
        inbound={},
    )


def plan_mesh(
    choices: Choices,
    folders: Folders,
    *,
    nodes: Sequence[Node],
    envoys: Sequence[Envoy],
    metrics: Mapping[str, int],
    edge: str,
    live_url: str,
    inbound: dict[str, str],
    producer_host: str,
) -> Plan:
    """Plans the services behind their sidecars, and the edge.

    Args:
        choices: what was asked for.
        folders: where everything lies.
        nodes: gateway nodes with the addresses of their sidecars.
        envoys: sidecars and the edge.
        metrics: port of /metrics by process; absent or 0 is off.
        edge: "host:port" of the edge.
        live_url: WebSocket address at the edge.
        inbound: "host:port" of the sidecar by process.
        producer_host: the name by which producers with a certificate call the edge.
    """
    singles = [_single(service, choices, folders, metrics.get(service, 0)) for service in SINGLE]
    gateways = [
        _node(node, choices, folders, metrics.get(node.node_id, 0), ("--address", node.address), ()) for node in nodes
    ]
    return Plan(
        processes=(*(_envoy(envoy, folders) for envoy in envoys), *singles, *gateways),
        edge=edge,
        live_urls={EDGE: live_url},
        inbound=inbound,
        producer_host=producer_host,
    )


def stop_order(processes: Sequence[Process]) -> list[list[Process]]:
    """Returns groups of processes; those of a group stop at the same time, group after group."""
    ranks = sorted({process.stop_rank for process in processes})
    return [[process for process in processes if process.stop_rank == rank] for rank in ranks]


def _single(service: str, choices: Choices, folders: Folders, metrics_port: int) -> Process:
    files: tuple[str, ...] = ()
    if service in ("ingest", "fanout", "prefs"):
        files = ("--categories-file", str(choices.categories))
    if service == "ingest":
        files = (*files, "--producers-file", str(choices.producers))
    return _service(service, service, choices, folders, metrics_port, files, ())


def _node(
    node: Node,
    choices: Choices,
    folders: Folders,
    metrics_port: int,
    more: tuple[str, ...],
    ports: tuple[int, ...],
) -> Process:
    arguments = ("--process", node.node_id, "--node-id", node.node_id, *more)
    return _service(node.node_id, GATEWAY, choices, folders, metrics_port, arguments, ports)


def _service(
    name: str,
    service: str,
    choices: Choices,
    folders: Folders,
    metrics_port: int,
    more: tuple[str, ...],
    ports: tuple[int, ...],
) -> Process:
    # -P: a folder of the same name where the command happens to be started is not meant.
    argv = [
        sys.executable,
        "-P",
        "-m",
        f"svc_{service}",
        "--run-dir",
        str(folders.run),
        "--data-dir",
        str(folders.data),
    ]
    argv += ["--tokens-file", str(folders.token_keys), "--trust-domain", choices.trust_domain]
    argv += ["--drain-limit", str(_DRAIN_LIMIT_S), "--metrics-port", str(metrics_port)]
    argv += ["--direct"] if choices.direct else []
    argv += ["--trace-log"] if choices.trace else []
    argv += choices.stores.get(service, ())
    return Process(
        name=name,
        kind="service",
        service=service,
        argv=(*argv, *more),
        log=folders.log / f"{name}.log",
        stop_rank=_RANKS[service],
        socket=folders.run / f"{name}.sock",
        ports=(*ports, metrics_port) if metrics_port else ports,
    )


def _envoy(envoy: Envoy, folders: Folders) -> Process:
    is_edge = envoy.service == EDGE
    return Process(
        name=envoy.name,
        kind="edge" if is_edge else "sidecar",
        service=envoy.service,
        argv=envoy.argv,
        log=folders.log / f"{envoy.name}.log",
        stop_rank=_RANKS[envoy.service] + (0 if is_edge else _SIDECAR),
        admin=envoy.admin,
        ports=envoy.ports,
    )
