"""What was asked for, and where everything lies: folders, ports, names. Pure but for the folders it makes."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

from deploy.engines.failures import EnginesFailed

EngineName = Literal["kafka", "redis", "redis-cluster", "cassandra", "postgresql"]
ENGINES: Final[tuple[EngineName, ...]] = ("kafka", "redis", "redis-cluster", "cassandra", "postgresql")
# The names by which engines.json gives their addresses.
KEYS: Final[Mapping[EngineName, str]] = {name: name.replace("-", "_") for name in ENGINES}

# Above all ports of `heliograph up`.
DEFAULT_BASE_PORT: Final = 7900
LAST_BASE_PORT: Final = 65_000
# Each engine's first port above the base; a Redis Cluster takes one for each node, and as many for its bus.
OFFSETS: Final[Mapping[EngineName, int]] = {
    "kafka": 0,
    "redis": 10,
    "redis-cluster": 20,
    "cassandra": 40,
    "postgresql": 50,
}
# From a Kafka broker's port to its controller's, from a Cassandra node's to its storage port, to a node's bus port.
INNER_OFFSET: Final = 1
BUS_OFFSET: Final = 10
CLUSTER_NODES: Final = 3


class Choices(msgspec.Struct, frozen=True):
    """What was asked for.

    Attributes:
        folder: where data and logs lie, absolute.
        base_port: the first port.
        nodes: Kafka brokers and Cassandra nodes: 1 or 3.
        quick: compile less: quicker to start, slower under load.
    """

    folder: Path
    base_port: int = DEFAULT_BASE_PORT
    nodes: int = 1
    quick: bool = False

    def port(self, engine: EngineName) -> int:
        """Returns the first port of an engine."""
        return self.base_port + OFFSETS[engine]

    def hosts(self, engine: EngineName) -> tuple[str, ...]:
        """Returns the loopback addresses of an engine's nodes; those of a Redis Cluster share one."""
        if engine in ("kafka", "cassandra"):
            return tuple(f"127.0.0.{number}" for number in range(1, self.nodes + 1))
        return ("127.0.0.1",)

    def names(self, engine: EngineName) -> tuple[str, ...]:
        """Returns the names of an engine's servers: "kafka", or "kafka-1" and so on."""
        count = CLUSTER_NODES if engine == "redis-cluster" else len(self.hosts(engine))
        return (engine,) if count == 1 else tuple(f"{engine}-{number}" for number in range(1, count + 1))


def url(choices: Choices, engine: EngineName) -> str:
    """Returns an engine's address, without the name of a keyspace or the like."""
    port = choices.port(engine)
    if engine == "redis-cluster":
        return "redis+cluster://" + ",".join(f"127.0.0.1:{port + index}" for index in range(CLUSTER_NODES))
    hosts = ",".join(f"{host}:{port}" for host in choices.hosts(engine))
    return f"{engine}://{hosts}" + ("/postgres" if engine == "postgresql" else "")


def default_folder() -> Path:
    """Returns this account's folder: below the system's one for temporary files, which every account reaches."""
    return Path(tempfile.gettempdir()) / f"heliograph-engines-{os.geteuid()}"


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Returns where what was fetched stays, for every checkout on this machine."""
    named = environ.get("XDG_CACHE_HOME", "")
    base = Path(named) if named.startswith("/") else Path.home() / ".cache"
    return base / "heliograph" / "engines"


def own_folder(folder: Path) -> None:
    """Makes the folder, or sees that it is ours: somebody else's in a shared place may be a trap.

    Raises:
        EnginesFailed: it is not.
    """
    # Others may pass through: a database server that was started by root runs under an account of its own.
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & stat.S_IWOTH:
        raise EnginesFailed(f"{folder}: is not a folder of this account alone; name another with --folder")
