"""The same engines as containers: writes `deploy/compose.yaml` out of the settings that the runner uses.

Ports are those of the runner's defaults, so `deploy/engines.json` says where both are. It must not run anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from deploy.engines import cassandra, kafka, postgresql, redis
from deploy.engines.choices import CLUSTER_NODES, DEFAULT_BASE_PORT, ENGINES, INNER_OFFSET, KEYS, Choices, url

Node = str | int | bool | Sequence["Node"] | Mapping[str, "Node"]

COMPOSE_FILE: Final = "compose.yaml"
ADDRESSES_FILE: Final = "engines.json"
_HEAD: Final = """\
# Kafka, Redis, Cassandra and PostgreSQL as containers on loopback, for development; Compose from 2.23.1.
# Written by `python -m deploy.engines compose` out of the settings of `make engines`: change those.
#   docker compose -f deploy/compose.yaml up --detach --wait
#   heliograph up --engines deploy/engines.json --create
"""
_CHOICES: Final = Choices(Path("/"), DEFAULT_BASE_PORT)
_KAFKA_DATA: Final = "/var/lib/kafka/data"
_CASSANDRA_DATA: Final = "/var/lib/cassandra"
_CASSANDRA_FILE: Final = "/etc/heliograph/cassandra.yaml"
_REDIS_IMAGE: Final = "valkey/valkey:9.1"
_FIRST: Final = "redis-cluster-1"


def files() -> dict[str, str]:
    """Returns the content of each file by its name below `deploy/`."""
    found = {KEYS[engine]: url(_CHOICES, engine) for engine in ENGINES}
    addresses = json.dumps({**found, "replicas": 1}, indent=2)
    return {COMPOSE_FILE: _HEAD + as_yaml(compose()), ADDRESSES_FILE: addresses + "\n"}


def compose() -> dict[str, Node]:
    """Returns what the file says."""
    services: dict[str, Node] = {
        "kafka": _kafka(),
        "redis": _redis(_CHOICES.port("redis"), "redis", {"ports": [_published(_CHOICES.port("redis"))]}),
        **_redis_cluster(),
        "cassandra": _cassandra(),
        "postgresql": _postgresql(),
    }
    names = ("kafka", "redis", *_CHOICES.names("redis-cluster"), "cassandra", "postgresql")
    return {
        "name": "heliograph-engines",
        "services": services,
        "configs": {"cassandra": {"content": cassandra.as_yaml(cassandra_settings())}},
        "volumes": {name: {} for name in names},
    }


def as_yaml(node: Mapping[str, Node], indent: str = "") -> str:
    """Returns nested mappings in the usual form of YAML, each other value in that of JSON, which YAML contains."""
    text = ""
    for name, value in node.items():
        if isinstance(value, Mapping) and value:
            text += f"{indent}{name}:\n{as_yaml(value, indent + '  ')}"
        elif isinstance(value, str) and value.endswith("\n"):
            text += f"{indent}{name}: |\n" + "".join(f"{indent}  {line}\n" for line in value.splitlines())
        else:
            text += f"{indent}{name}: {json.dumps(value)}\n"
    return text


def _published(port: int) -> str:
    return f"127.0.0.1:{port}:{port}"


def _health(test: Node) -> Node:
    return {"test": test, "interval": "5s", "timeout": "10s", "retries": 24}


# ---------------------------------------------------------------- engines


def kafka_settings() -> dict[str, str]:
    """Returns the broker's settings; clients come from outside the container."""
    port = _CHOICES.port("kafka")
    return {
        **kafka.settings(_CHOICES, 1, Path("/")),
        "listeners": f"PLAINTEXT://0.0.0.0:{port},CONTROLLER://127.0.0.1:{port + INNER_OFFSET}",
        "log.dirs": _KAFKA_DATA,
    }


def kafka_variable(name: str) -> str:
    """Returns the variable from which the image takes a setting."""
    return "KAFKA_" + name.replace("-", "___").replace("_", "__").replace(".", "_").upper()


def _kafka() -> Node:
    port = _CHOICES.port("kafka")
    variables = {kafka_variable(name): value for name, value in kafka_settings().items()}
    tool = ["CMD", "/opt/kafka/bin/kafka-broker-api-versions.sh", "--bootstrap-server", f"127.0.0.1:{port}"]
    return {
        "image": f"apache/kafka:{kafka.VERSION}",
        "environment": {"CLUSTER_ID": kafka.CLUSTER_ID, "KAFKA_HEAP_OPTS": "-Xms64m -Xmx512m", **variables},
        "ports": [_published(port)],
        "volumes": [f"kafka:{_KAFKA_DATA}"],
        "healthcheck": _health(tool),
    }


def _redis(port: int, name: str, more: Mapping[str, Node], *, cluster: bool = False) -> Node:
    found = {
        **redis.settings(port, Path("/data"), cluster=cluster),
        # Clients come from outside the container, which its port's address on loopback keeps among ourselves.
        "bind": "0.0.0.0",
        "protected-mode": "no",
        **({"cluster-announce-ip": "127.0.0.1"} if cluster else {}),
    }
    words = [word for key, value in found.items() for word in (f"--{key}", value)]
    return {
        "image": _REDIS_IMAGE,
        "command": ["valkey-server", *words],
        **more,
        "volumes": [f"{name}:/data"],
        "healthcheck": _health(["CMD", "valkey-cli", "-p", str(port), "ping"]),
    }


def _redis_cluster() -> dict[str, Node]:
    """Three servers in one network, so that each is at the same address for the others and for clients."""
    first = _CHOICES.port("redis-cluster")
    ports = [first + index for index in range(CLUSTER_NODES)]
    found: dict[str, Node] = {}
    for name, port in zip(_CHOICES.names("redis-cluster"), ports, strict=True):
        shared: dict[str, Node] = {"network_mode": f"service:{_FIRST}", "depends_on": [_FIRST]}
        more = {"ports": [_published(one) for one in ports]} if name == _FIRST else shared
        found[name] = _redis(port, name, more, cluster=True)
    nodes = " ".join(f"127.0.0.1:{port}" for port in ports)
    ask, make = f"valkey-cli -p {first} cluster info", f"valkey-cli --cluster create {nodes} --cluster-yes"
    found["redis-cluster-join"] = {
        "image": _REDIS_IMAGE,
        "command": ["sh", "-c", f"{ask} | grep -q cluster_state:ok || {make}"],
        "network_mode": f"service:{_FIRST}",
        "depends_on": {name: {"condition": "service_healthy"} for name in _CHOICES.names("redis-cluster")},
    }
    return found


def cassandra_settings() -> dict[str, cassandra.Yaml]:
    """Returns the node's settings; clients come from outside the container."""
    found = cassandra.settings(_CHOICES, 1, Path(_CASSANDRA_DATA))
    return {**found, "rpc_address": "0.0.0.0", "broadcast_rpc_address": "127.0.0.1"}


def _cassandra() -> Node:
    port = _CHOICES.port("cassandra")
    flags = [f"-Dcassandra.config=file://{_CASSANDRA_FILE}", *cassandra.pace(_CHOICES.nodes)]
    # Compose reads a single dollar as a variable of its own.
    unhurried = [word.replace("$", "$$") for word in cassandra.UNHURRIED]
    return {
        "image": f"cassandra:{cassandra.VERSION}",
        "entrypoint": [*unhurried, "docker-entrypoint.sh"],
        "command": ["cassandra", "-f"],
        "environment": {"MAX_HEAP_SIZE": "768M", "HEAP_NEWSIZE": "128M", "JVM_EXTRA_OPTS": " ".join(flags)},
        "configs": [{"source": "cassandra", "target": _CASSANDRA_FILE}],
        "ports": [_published(port)],
        "volumes": [f"cassandra:{_CASSANDRA_DATA}"],
        "healthcheck": _health(["CMD", "cqlsh", "127.0.0.1", str(port), "-e", "select key from system.local"]),
    }


def _postgresql() -> Node:
    port = _CHOICES.port("postgresql")
    found = {**postgresql.settings(_CHOICES), "listen_addresses": "*"}
    del found["unix_socket_directories"]
    words = [word for name, value in found.items() for word in ("-c", f"{name}={value}")]
    initdb = [word for word in postgresql.INITDB if word.startswith(("--encoding", "--locale"))]
    return {
        "image": postgresql.IMAGE,
        "command": ["postgres", *words],
        "environment": {"POSTGRES_HOST_AUTH_METHOD": "trust", "POSTGRES_INITDB_ARGS": " ".join(initdb)},
        "ports": [_published(port)],
        "volumes": ["postgresql:/var/lib/postgresql/data"],
        "healthcheck": _health(["CMD", "psql", "-U", "postgres", "-p", str(port), "-c", "select 1"]),
    }
