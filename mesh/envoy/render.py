"""Renders one file for each Envoy of a mesh from its topology and the contract's descriptors.

Must not start anything, and must not name a service: both come from what it reads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from mesh.envoy.contract import check_contract, read_contract
from mesh.envoy.edge import edge_file
from mesh.envoy.layout import Layout
from mesh.envoy.pieces import Piece
from mesh.envoy.sidecar import Place, sidecar_file
from mesh.envoy.topology import EDGE, GATEWAY, GatewayNode, Topology
from mesh.errors import StartError


def places(topology: Topology, nodes: Sequence[GatewayNode]) -> tuple[Place, ...]:
    """Returns every process of the mesh that has a sidecar."""
    return (
        *(Place(name, name, topology.port_of(name)) for name in topology.services),
        *(Place(node.node_id, GATEWAY, node.port) for node in nodes),
    )


def render(topology: Topology, descriptors: bytes, layout: Layout, nodes: Sequence[GatewayNode]) -> Mapping[str, Piece]:
    """Returns the configuration of each Envoy by its name: that of the process beside it, or "edge".

    Args:
        topology: who listens where, and the limits.
        descriptors: the contract's descriptor set, imports included.
        layout: absolute folders.
        nodes: the gateway nodes, see `gateway_nodes`.

    Raises:
        StartError: topology and contract do not fit, or a socket's path is too long.
    """
    contract = read_contract(descriptors, topology.access_option)
    check_contract(contract, topology)
    files = {place.process: sidecar_file(topology, contract, layout, place) for place in places(topology, nodes)}
    return {**files, EDGE: edge_file(topology, contract, layout, nodes)}


def write(topology: Topology, descriptors: bytes, layout: Layout, nodes: Sequence[GatewayNode]) -> Mapping[str, Path]:
    """Renders all files into the layout's folder and returns them by the Envoy's name.

    Raises:
        StartError: as `render`, or a folder cannot be written.
    """
    rendered = render(topology, descriptors, layout, nodes)
    try:
        for folder in (layout.mesh_dir, layout.log_dir):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(layout.descriptors, descriptors)
        for process, document in rendered.items():
            _replace(layout.config(process), msgspec.json.format(msgspec.json.encode(document)) + b"\n")
    except OSError as error:
        raise StartError(f"{error.filename}: {error.strerror}; make the mesh folder writable") from None
    return {process: layout.config(process) for process in rendered}


def _replace(path: Path, content: bytes) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_bytes(content)
    os.replace(fresh, path)
