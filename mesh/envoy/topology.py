"""The topology file: who listens where, and every limit, as one checked value.

Must not supply a default for anything: what Envoy does stands in the file. It knows names of services only as data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from mesh.access import OUTSIDE_ROLES
from mesh.errors import StartError

EDGE = "edge"
GATEWAY = "gateway"

_Offset = Annotated[int, Meta(ge=0, le=60000)]
_Count = Annotated[int, Meta(ge=1, le=100_000_000)]
_Bytes = Annotated[int, Meta(ge=1024, le=2**31 - 1)]
# The smallest windows and the largest that HTTP/2 knows.
_Window = Annotated[int, Meta(ge=65535, le=2**31 - 1)]
_Seconds = Annotated[float, Meta(ge=0.01, le=86400)]
_Percent = Annotated[int, Meta(ge=0, le=100)]
_Name = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
_Domain = Annotated[str, Meta(pattern=r"^[a-z0-9-]+(\.[a-z0-9-]+)*$")]
_Address = Annotated[str, Meta(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+$")]
_FullName = Annotated[str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z][A-Za-z0-9_]*)+$")]
_FACING = re.compile(r" - at (?:`key` in )?`\$\.?(.*)`$")


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the file: every key is needed, no other is known."""


class MetricsPorts(_Table, frozen=True):
    """Distance of the metrics ports from the listener's; 0 is off."""

    process_offset: _Offset
    envoy_offset: _Offset


class ServicePlace(_Table, frozen=True):
    """One service: its sidecar's port and the contract's services that it serves."""

    port: _Offset
    serves: tuple[_FullName, ...]


class GatewayPlace(_Table, frozen=True):
    """The service whose nodes are called by name."""

    port: _Offset
    nodes: Annotated[int, Meta(ge=1, le=1000)]
    serves: tuple[_FullName, ...]
    websocket_path: Annotated[str, Meta(pattern=r"^/[a-z0-9/_-]+$")]


class EdgeLimits(_Table, frozen=True):
    """Sizes and counts at the edge."""

    body_bytes: _Bytes
    header_kib: Annotated[int, Meta(ge=1, le=8192)]
    header_count: _Count
    connections: _Count
    streams_per_connection: _Count
    buffer_bytes: _Bytes
    send_buffer_bytes: _Bytes


class EdgeTimeouts(_Table, frozen=True):
    """Seconds that clients get at the edge."""

    handshake: _Seconds
    headers: _Seconds
    request: _Seconds
    idle: _Seconds
    stream_idle: _Seconds
    delayed_close: _Seconds


class Rate(_Table, frozen=True):
    """Requests per second, from one address and altogether."""

    address: _Count
    total: _Count


class EdgeRates(_Table, frozen=True):
    """Rates by what is called."""

    producer: Rate
    recipient: Rate
    websocket: Rate


class EdgePlace(_Table, frozen=True):
    """The edge: the one Envoy that others reach."""

    address: _Address
    port: _Offset
    producer_names: tuple[_Domain, ...]
    public_names: tuple[_Domain, ...]
    public_addresses: tuple[str, ...]
    limits: EdgeLimits
    timeouts: EdgeTimeouts
    rates: EdgeRates


class Timeouts(_Table, frozen=True):
    """Seconds between services."""

    connect: _Seconds
    unary: _Seconds
    outbound_offset: _Seconds
    inbound_offset: _Seconds
    connection_age: _Seconds


class Windows(_Table, frozen=True):
    """HTTP/2 flow-control windows."""

    stream_bytes: _Window
    connection_bytes: _Window
    websocket_stream_bytes: _Window
    websocket_connection_bytes: _Window
    edge_stream_bytes: _Window
    edge_connection_bytes: _Window


class Breakers(_Table, frozen=True):
    """Circuit breakers of every cluster."""

    connections: _Count
    pending_requests: _Count
    requests: _Count
    retries: _Count


class Health(_Table, frozen=True):
    """Active checks, ejection and keepalive."""

    interval: _Seconds
    timeout: _Seconds
    websocket_interval: _Seconds
    panic_percent: _Percent
    ejection_failures: _Count
    ejection_interval: _Seconds
    ejection_time: _Seconds
    ejection_percent: _Percent
    keepalive_interval: _Seconds
    keepalive_timeout: _Seconds
    unhealthy_interval: _Seconds


class SidecarLimits(_Table, frozen=True):
    """What every Envoy may take, and what a sidecar's listeners may."""

    streams_per_connection: _Count
    outbound_streams: _Count
    connections: _Count
    buffer_bytes: _Bytes
    heap_bytes: Annotated[int, Meta(ge=64 * 1024 * 1024, le=2**40)]
    access_log: Literal["failures", "all", "off"]


class Topology(_Table, frozen=True):
    """The whole file."""

    trust_domain: _Domain
    access_option: _FullName
    base_port: Annotated[int, Meta(ge=1, le=65535)]
    address: _Address
    metrics: MetricsPorts
    services: Mapping[_Name, ServicePlace]
    gateway: GatewayPlace
    edge: EdgePlace
    timeouts: Timeouts
    windows: Windows
    breakers: Breakers
    health: Health
    sidecar: SidecarLimits

    def identity(self, path: str) -> str:
        """Returns the SPIFFE URI of a path such as "svc/ingest"."""
        return f"spiffe://{self.trust_domain}/{path}"

    def host(self, service: str) -> str:
        """Returns the name by which a sidecar's outbound listener knows a service."""
        return f"{service}.{self.trust_domain}"

    def port_of(self, service: str) -> int:
        """Returns the port where a service's sidecar takes calls, or the edge its clients."""
        place = self.edge if service == EDGE else self.services[service]
        return self.base_port + place.port

    def process_metrics_port(self, listener_port: int) -> int:
        """Returns the port of the /metrics of a process whose sidecar listens at this port; 0 is off."""
        return listener_port + self.metrics.process_offset if self.metrics.process_offset else 0

    def envoy_metrics_port(self, listener_port: int) -> int:
        """Returns the port of the /metrics of the Envoy that listens at this port; 0 is off."""
        return listener_port + self.metrics.envoy_offset if self.metrics.envoy_offset else 0

    def serving(self) -> dict[str, tuple[str, ...]]:
        """Returns which of the contract's services each service of the mesh serves, the gateway included."""
        return {**{name: place.serves for name, place in self.services.items()}, GATEWAY: self.gateway.serves}

    def service_names(self) -> tuple[str, ...]:
        """Returns the services of the mesh, the gateway and the edge included."""
        return (*self.services, GATEWAY, EDGE)


class GatewayNode(msgspec.Struct, frozen=True):
    """One node of the gateway: the name of its process and where its sidecar listens."""

    node_id: str
    index: int
    port: int
    address: str


def load_topology(path: Path, *, base_port: int | None = None) -> Topology:
    """Reads and checks a topology file.

    Args:
        path: the TOML file.
        base_port: used instead of the file's, for a second mesh on the same machine.

    Raises:
        StartError: one line: the file, the key, what is wrong and what to do.
    """
    where = f"topology file {path}"
    try:
        topology = msgspec.toml.decode(path.read_bytes(), type=Topology)
    except OSError as error:
        raise StartError(f"{where}: {error.strerror}; name a readable TOML file") from None
    except msgspec.ValidationError as error:
        raise StartError(_explain(where, str(error))) from None
    except (msgspec.DecodeError, ValueError) as error:
        raise StartError(f"{where}: is not TOML: {' '.join(str(error).split())}; correct it") from None
    if base_port is not None:
        topology = msgspec.structs.replace(topology, base_port=base_port)
    _check(where, topology)
    return topology


def gateway_nodes(topology: Topology, host: str, count: int) -> tuple[GatewayNode, ...]:
    """Returns the gateway nodes of one machine.

    Args:
        topology: where they listen.
        host: the machine's name; what cannot be part of a node id becomes a hyphen.
        count: how many.

    Raises:
        StartError: more nodes than the topology has ports for.
    """
    if not 1 <= count <= topology.gateway.nodes:
        raise StartError(
            f"{count} gateway nodes: the topology has ports for 1 to {topology.gateway.nodes}; ask for fewer"
        )
    label = re.sub(r"[^a-z0-9]+", "-", host.lower().partition(".")[0]).strip("-")[:24] or "local"
    first = topology.base_port + topology.gateway.port
    return tuple(
        GatewayNode(f"gw-{label}-{index}", index, first + index, f"{topology.address}:{first + index}")
        for index in range(count)
    )


def _explain(where: str, text: str) -> str:
    found = _FACING.search(text)
    key = found[1].replace("[...]", ".<name>") if found else ""
    what = _FACING.sub("", text)
    if " - at `key` in " in text:
        key = _join(key, "<name>")
    unknown = re.search(r"unknown field `(.*)`", what)
    missing = re.search(r"missing required field `(.*)`", what)
    if unknown:
        return f"{where}, key {_join(key, unknown[1])}: is unknown; remove it or correct its name"
    if missing:
        return f"{where}, key {_join(key, missing[1])}: is not set; set it, as in deploy/topology.toml"
    return f"{where}, key {key or '(top)'}: {what.replace('`', '')}; correct it"


def _join(table: str, key: str) -> str:
    return f"{table}.{key}" if table else key


def _check(where: str, topology: Topology) -> None:
    for name in topology.services:
        if name in OUTSIDE_ROLES or name in (EDGE, GATEWAY, "public"):
            raise StartError(f"{where}, key services.{name}: this name has a meaning of its own; choose another")
    served: dict[str, str] = {}
    for name, serves in topology.serving().items():
        key = "gateway" if name == GATEWAY else f"services.{name}"
        if not serves:
            raise StartError(f"{where}, key {key}.serves: is empty; name what {name} serves")
        for full_name in serves:
            if full_name in served:
                raise StartError(
                    f"{where}, key {key}.serves: {full_name} is already served by {served[full_name]}; remove one"
                )
            served[full_name] = name
    _check_ports(where, topology)
    limits, timeouts = topology.edge.limits, topology.timeouts
    if timeouts.inbound_offset <= timeouts.outbound_offset:
        raise StartError(
            f"{where}, key timeouts.inbound_offset: must exceed timeouts.outbound_offset, "
            "so that the far sidecar gives up first; raise it"
        )
    if limits.connections > topology.sidecar.connections:
        raise StartError(f"{where}, key edge.limits.connections: exceeds sidecar.connections; lower it")


def _check_ports(where: str, topology: Topology) -> None:
    taken: dict[int, str] = {}
    for key, port in _ports(topology):
        if port > 65535:
            raise StartError(f"{where}, key {key}: port {port} does not exist; lower it or base_port")
        if port in taken:
            raise StartError(f"{where}, key {key}: port {port} is already that of {taken[port]}; choose another")
        taken[port] = key


def _ports(topology: Topology) -> Iterator[tuple[str, int]]:
    base = topology.base_port
    listeners = [("edge.port", base + topology.edge.port)]
    listeners += [(f"services.{name}.port", base + place.port) for name, place in topology.services.items()]
    listeners += [
        (f"gateway.port (node {index})", base + topology.gateway.port + index)
        for index in range(topology.gateway.nodes)
    ]
    yield from listeners
    for key, port in listeners:
        if topology.metrics.process_offset and key != "edge.port":
            yield f"metrics.process_offset for {key}", topology.process_metrics_port(port)
        if topology.metrics.envoy_offset:
            yield f"metrics.envoy_offset for {key}", topology.envoy_metrics_port(port)
