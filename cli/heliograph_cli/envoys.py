"""What a mesh needs before it starts: certificates, Envoy's files, and the plan with sidecars and edge.

Everything is checked here, before anything runs: topology, certificates, and each file by Envoy itself.
"""

from __future__ import annotations

import re
import time
import tomllib
from pathlib import Path

import heliograph
from heliograph_cli.connection import OPERATOR
from heliograph_cli.folders import Folders
from heliograph_cli.plan import EDGE, Choices, Envoy, Node, Plan, plan_mesh
from mesh.envoy import certs, process, render
from mesh.envoy.contract import check_contract, read_contract
from mesh.envoy.layout import Layout
from mesh.envoy.topology import GatewayNode, Topology, gateway_nodes, load_topology
from mesh.envoy.validate import validate
from mesh.errors import StartError

_PRODUCER = re.compile(r"[a-z0-9-]{1,64}/[a-z0-9-]{1,64}")
_MEMBERS = re.compile(r"^cluster\.(.+)\.membership_(healthy|total): (\d+)$", re.MULTILINE)


def load(file: Path, base_port: int | None) -> Topology:
    """Returns the topology, moved to other ports if asked.

    Raises:
        StartError: it is broken, or the contract speaks of other services.
    """
    topology = load_topology(file, base_port=base_port)
    contract = read_contract(descriptors(), topology.access_option)
    try:
        check_contract(contract, topology)
    except StartError as error:
        raise StartError(f"topology file {file}: {str(error).removeprefix('topology: ')}") from None
    return topology


async def prepare(topology: Topology, choices: Choices, place: Folders) -> Plan:
    """Makes and checks all files of a mesh, and plans it.

    Raises:
        StartError: a certificate or a file cannot be used; one line with what and where.
    """
    nodes = gateway_nodes(topology, choices.host, choices.gateways)
    wanted, now = identities(topology, choices.producers), time.time()
    certs.ensure(place.certs, wanted, now)
    certs.check(place.certs, wanted, now)
    layout = Layout(run_dir=place.run, certs_dir=place.certs, mesh_dir=place.mesh, log_dir=place.log)
    files = render.write(topology, descriptors(), layout, nodes)
    await validate(files.values())
    envoys = [
        Envoy(
            name=name if name == EDGE else f"{name}-envoy",
            service=service,
            argv=tuple(process.envoy_command(files[name])),
            admin=Path(layout.admin(name)),
            ports=tuple(found for found in (port, topology.envoy_metrics_port(port)) if found),
        )
        for name, service, port in _listeners(topology, nodes)
    ]
    edge = f"{topology.edge.address}:{topology.port_of(EDGE)}"
    return plan_mesh(
        choices,
        place,
        nodes=[Node(node.node_id, node.address) for node in nodes],
        envoys=envoys,
        metrics={name: topology.process_metrics_port(port) for name, _, port in _listeners(topology, nodes)},
        edge=edge,
        live_url=f"wss://{edge}{topology.gateway.websocket_path}",
        inbound={name: f"{topology.address}:{topology.port_of(name)}" for name in topology.services}
        | {node.node_id: node.address for node in nodes},
        producer_host=topology.edge.producer_names[0],
    )


def identities(topology: Topology, producers_file: Path) -> tuple[certs.Identity, ...]:
    """Returns everybody who gets a development certificate: services, registered producers, one operator."""
    return certs.identities(topology, producers=producers_of(producers_file), operators=[OPERATOR])


def producers_of(file: Path) -> list[str]:
    """Returns the producers that a registry names. One that is broken names nobody: ingest says what is wrong."""
    try:
        registry = tomllib.loads(file.read_text(encoding="utf-8")).get("producers", {})
    except (OSError, ValueError):
        return []
    return [name for name in registry if _PRODUCER.fullmatch(name)] if isinstance(registry, dict) else []


def descriptors() -> bytes:
    """Returns the contract's descriptor set, which comes with the generated code."""
    return (Path(heliograph.__path__[0]) / "descriptors.binpb").read_bytes()


async def is_ready(admin: str) -> bool:
    """Says whether an Envoy takes calls, has certificates, and found every peer healthy that it checks.

    A peer that was not there at the first check is looked at again after seconds only: without waiting for that, the
    first calls through a fresh mesh would be refused.
    """
    return await process.is_ready(admin) and await unhealthy_peers(admin) == []


async def unhealthy_peers(admin: str) -> list[str] | None:
    """Returns the peers of an Envoy of which it finds some not healthy, as "fanout (0 of 1)"; None when it is silent.

    A peer that came back counts as healthy after the next check only, which may be seconds away.
    """
    try:
        _, text = await process.ask(admin, "GET", "/stats?filter=membership_(healthy|total)$")
    except (OSError, TimeoutError, ValueError):
        return None
    counts: dict[str, dict[str, int]] = {}
    for cluster, what, number in _MEMBERS.findall(text):
        counts.setdefault(cluster, {})[what] = int(number)
    return [
        f"{cluster} ({count.get('healthy')} of {count.get('total')})"
        for cluster, count in sorted(counts.items())
        if count.get("healthy") != count.get("total")
    ]


async def stop_listening(admin: str) -> None:
    """Makes an Envoy take no new connections; those that are open live on. Nobody there is no failure."""
    try:
        await process.ask(admin, "POST", "/drain_listeners")
    except (OSError, TimeoutError, ValueError):
        return


async def leave_service(admin: str) -> None:
    """Tells an Envoy's callers to turn to others. Nobody there is no failure."""
    try:
        await process.leave_service(admin)
    except (OSError, TimeoutError, ValueError):
        return


def _listeners(topology: Topology, nodes: tuple[GatewayNode, ...]) -> list[tuple[str, str, int]]:
    places = [(place.process, place.service, place.port) for place in render.places(topology, nodes)]
    return [*places, (EDGE, EDGE, topology.port_of(EDGE))]
