"""Where the engines of this run are: Kafka, Redis, Redis Cluster, Cassandra, PostgreSQL.

They are started once for a whole run, by whoever starts the run (`make engines`, or the gate). It must not start one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import pytest

VARIABLE: Final = "HELIOGRAPH_ENGINES"
KEYS: Final = ("kafka", "redis", "redis_cluster", "cassandra", "postgresql")


def urls() -> dict[str, str]:
    """Returns each engine's URL without a name: "kafka", "redis", "redis_cluster", "cassandra", "postgresql".

    A test that needs an engine and finds none fails: a test that is passed over proves nothing.
    """
    return read(os.environ)


def read(environ: Mapping[str, str]) -> dict[str, str]:
    """Reads the file that the variable names."""
    named = environ.get(VARIABLE, "")
    if not named:
        pytest.fail(f"{VARIABLE} is not set: run `make engines`, then set it to the engines.json that it names")
    try:
        found = msgspec.json.decode(Path(named).read_bytes(), type=dict[str, str | int])
    except (OSError, msgspec.DecodeError) as error:
        pytest.fail(f"{VARIABLE}={named}: {error}")
    lacking = [key for key in KEYS if not isinstance(found.get(key), str)]
    if lacking:
        pytest.fail(f"{VARIABLE}={named}: names no {', '.join(lacking)}")
    return {key: str(found[key]) for key in KEYS}
