"""Redis or Valkey: one server alone, and three that are a Cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deploy.engines import probes
from deploy.engines.choices import BUS_OFFSET, CLUSTER_NODES, Choices
from deploy.engines.server import Server

_MEMORY_MIB: Final = 30
_SLOTS: Final = 16_384

# What the request log and presence rest on: nothing is evicted, and a restart brings back all but the last second.
PROMISES: Final[Mapping[str, str]] = {
    "maxmemory-policy": "noeviction",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": "",
}
_CLUSTER: Final[Mapping[str, str]] = {
    "cluster-enabled": "yes",
    "cluster-node-timeout": "2000",
    # The other two serve their slots when one is away.
    "cluster-require-full-coverage": "no",
}


def settings(port: int, data: Path, *, cluster: bool) -> dict[str, str]:
    """Returns a server's settings."""
    return {
        "port": str(port),
        "bind": "127.0.0.1",
        "dir": str(data),
        "daemonize": "no",
        # Else it writes over its command line, by which it is recognised.
        "set-proc-title": "no",
        **PROMISES,
        **({**_CLUSTER, "cluster-port": str(port + BUS_OFFSET)} if cluster else {}),
    }


def servers(choices: Choices, program: str) -> list[Server]:
    """Returns the server alone and those of the Cluster."""
    alone = _server(choices.folder / "redis", choices.port("redis"), program, cluster=False)
    port = choices.port("redis-cluster")
    names = choices.names("redis-cluster")
    return [
        alone,
        *(
            _server(choices.folder / name, port + index, program, cluster=True)
            for index, name in enumerate(names[:CLUSTER_NODES])
        ),
    ]


def _server(folder: Path, port: int, program: str, *, cluster: bool) -> Server:
    data = folder / "data"
    return Server(
        name=folder.name,
        engine="redis-cluster" if cluster else "redis",
        host="127.0.0.1",
        port=port,
        inner_port=port + BUS_OFFSET if cluster else 0,
        folder=folder,
        marker=str(data),
        memory_mib=_MEMORY_MIB,
        prepare=lambda: data.mkdir(exist_ok=True),
        command=lambda: [
            program,
            *(word for name, value in settings(port, data, cluster=cluster).items() for word in (f"--{name}", value)),
        ],
        answers=lambda: probes.redis_answers("127.0.0.1", port),
    )


def slots(index: int, count: int) -> tuple[int, int]:
    """Returns the first and the last slot of one of several nodes."""
    return index * _SLOTS // count, (index + 1) * _SLOTS // count - 1


def join(nodes: list[Server]) -> None:
    """Makes the servers one Cluster; what is done already is left alone."""
    for index, node in enumerate(nodes):
        if probes.redis_cluster_state(node.host, node.port).get("cluster_known_nodes") == str(len(nodes)):
            continue
        first, last = slots(index, len(nodes))
        if f" {first}-{last}" not in probes.redis_command(node.host, node.port, "CLUSTER", "NODES"):
            probes.redis_command(node.host, node.port, "CLUSTER", "ADDSLOTSRANGE", str(first), str(last))
        for other in nodes[:index]:
            bus = str(other.inner_port)
            probes.redis_command(node.host, node.port, "CLUSTER", "MEET", other.host, str(other.port), bus)


def is_joined(nodes: list[Server]) -> bool:
    """Tells whether every server sees all of them and serves."""
    found = [probes.redis_cluster_state(node.host, node.port) for node in nodes]
    return all(one.get("cluster_state") == "ok" and one.get("cluster_known_nodes") == str(len(nodes)) for one in found)
