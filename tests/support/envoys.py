"""Rendered Envoy files for tests that only read them; nothing is started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from mesh.envoy.layout import Layout
from mesh.envoy.render import render
from mesh.envoy.topology import GatewayNode, Topology, gateway_nodes, load_topology
from tests.support.contract import descriptors

TOPOLOGY = Path(__file__).resolve().parents[2] / "deploy" / "topology.toml"
LAYOUT = Layout(Path("/run/hg"), Path("/state/certs"), Path("/state/mesh"), Path("/state/log"))


@lru_cache(maxsize=1)
def topology() -> Topology:
    """Returns the project's own topology."""
    return load_topology(TOPOLOGY)


def nodes() -> tuple[GatewayNode, ...]:
    """Returns two gateway nodes of a machine called "test"."""
    return gateway_nodes(topology(), "test", 2)


@lru_cache(maxsize=1)
def rendered() -> Mapping[str, Any]:
    """Returns every Envoy's file as Envoy will see it."""
    # Any: JSON is looked into by key.
    return render(topology(), descriptors(), LAYOUT, nodes())


def listener(process: str, name: str) -> Any:
    """Returns a listener of an Envoy."""
    return next(one for one in rendered()[process]["static_resources"]["listeners"] if one["name"] == name)


def http(process: str, name: str, chain: int = 0) -> Any:
    """Returns how a listener takes HTTP."""
    return listener(process, name)["filter_chains"][chain]["filters"][-1]["typed_config"]


def routes(process: str, name: str, host: str | None = None) -> list[Any]:
    """Returns the routes of a listener, of one of its virtual hosts."""
    hosts = http(process, name)["route_config"]["virtual_hosts"]
    return next(list(one["routes"]) for one in hosts if host in (None, one["name"]))


def clusters(process: str) -> dict[str, Any]:
    """Returns the clusters of an Envoy by name."""
    return {one["name"]: one for one in rendered()[process]["static_resources"]["clusters"]}


def walk(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yields every value of a file with its path."""
    yield path, value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from walk(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from walk(inner, f"{path}[]")
