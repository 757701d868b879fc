"""The engines that a benchmark runs on, as `engines.json` names them, and their processes on this machine.

Must not start or stop them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from bench.stores_cost import processes
from mesh.stores import EngineUrl, parse_url

PORTS: Final = {"kafka": 9092, "redis": 6379, "redis_cluster": 6379, "cassandra": 9042, "postgresql": 5432}
_SCHEMES: Final = ("kafka", "redis", "redis+cluster", "cassandra", "cassandra+acsylla", "postgresql")


def read(file: Path) -> dict[str, str]:
    """Returns the URL of each engine in a file of `make engines`."""
    found = msgspec.json.decode(file.read_bytes(), type=dict[str, str | int])
    return {key: str(value) for key, value in found.items()}


def parsed(engines: Mapping[str, str], engine: str) -> EngineUrl:
    """Returns the URL of an engine."""
    return parse_url("engines", engines[engine], schemes=_SCHEMES, default_port=PORTS[engine], known="engines.json")


def pids(engines: Mapping[str, str], engine: str) -> dict[str, int]:
    """Returns the processes of an engine on this machine; "" for none."""
    return processes(host.port for host in parsed(engines, engine).hosts) if engine else {}
