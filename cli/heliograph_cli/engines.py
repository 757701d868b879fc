"""Which URL each service gets when everything runs on real engines, from one file that says where these are.

The file is what `make engines` writes: JSON with a URL for each of `kafka`, `redis`, `cassandra` and `postgresql`, and
`replicas` where there are not three nodes of each. An engine that is not in it leaves its stores embedded. Pure but for
the reading of the file; it must not know an engine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from heliograph_cli.failures import USAGE, CommandFailed

DEFAULT_NAME: Final = "heliograph"

# What is a prefix of topics, a keyspace and a schema at once.
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


class Engines(msgspec.Struct, frozen=True):
    """Where the engines are; an empty URL: there is none.

    Attributes:
        kafka: the event and retry lanes.
        redis: the request log and presence.
        cassandra: inboxes.
        postgresql: preferences and subscriptions.
        replicas: copies of what Kafka and Cassandra keep; 0: what their stores take by default.
    """

    kafka: str = ""
    redis: str = ""
    cassandra: str = ""
    postgresql: str = ""
    replicas: int = 0


def read_engines(path: Path) -> Engines:
    """Reads the file.

    Raises:
        CommandFailed: it cannot be read, has another form, or names no engine.
    """
    try:
        engines = msgspec.json.decode(path.read_bytes(), type=Engines)
    except OSError as error:
        raise CommandFailed(f"{path}: {error.strerror}; name the engines.json of `make engines`", USAGE) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{path}: {error}; it must be JSON with a URL an engine", USAGE) from None
    if not any((engines.kafka, engines.redis, engines.cassandra, engines.postgresql)):
        raise CommandFailed(f"{path}: names none of kafka, redis, cassandra, postgresql", USAGE)
    return engines


def service_urls(engines: Engines, name: str) -> Mapping[str, Mapping[str, str]]:
    """Returns the settings of each service that its stores are chosen by.

    Args:
        engines: where they are.
        name: of this installation: prefix of topics and keys, keyspace, schema.

    Raises:
        CommandFailed: the name cannot be used everywhere.
    """
    if not _NAME.fullmatch(name):
        raise CommandFailed(
            f"--name {name}: must begin with a small letter and have at most 32 small letters, digits and _", USAGE
        )
    copies = {"replicas": str(engines.replicas)} if engines.replicas else {}
    lanes = _extended(engines.kafka, name, copies)
    # Only a single server has databases.
    keys = _extended(engines.redis, "" if engines.redis.startswith("redis+cluster") else "0", {"prefix": name})
    found = {
        "ingest": {"lanes_url": lanes, "request_log_url": keys},
        "fanout": {"lanes_url": lanes},
        "presence": {"store_url": keys},
        "prefs": {"store_url": _extended(engines.postgresql, "postgres", {"schema": name})},
        "delivery": {"store_url": _extended(engines.cassandra, name, copies), "follow_ups_url": lanes},
    }
    return {service: {key: url for key, url in urls.items() if url} for service, urls in found.items()}


def service_flags(engines: Engines, name: str) -> Mapping[str, tuple[str, ...]]:
    """Returns the same as flags of the services' command lines."""
    return {
        service: tuple(word for key, url in urls.items() for word in (f"--{key.replace('_', '-')}", url))
        for service, urls in service_urls(engines, name).items()
    }


def _extended(url: str, name: str, options: Mapping[str, str]) -> str:
    """Adds a path and options to a URL that lacks them."""
    if not url:
        return ""
    place, _, query = url.partition("?")
    scheme, _, rest = place.partition("://")
    hosts, _, path = rest.partition("/")
    given = {part.partition("=")[0] for part in query.split("&")}
    added = [f"{key}={value}" for key, value in options.items() if key not in given]
    return (
        f"{scheme}://{hosts}/{path or name}" + ("?" if query or added else "") + "&".join(filter(None, [query, *added]))
    )
