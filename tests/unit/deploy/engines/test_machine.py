"""What is missing on a machine is said in a line for each thing."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from deploy.engines import machine
from deploy.engines.choices import EngineName
from deploy.engines.machine import Java, Machine
from deploy.engines.server import Server

_WHOLE = Machine(
    javas=(Java("/jvm/25/java", 25, ""), Java("/jvm/21/java", 21, ""), Java("/jvm/17/java", 17, "")),
    maven="/bin/mvn",
    redis="/bin/valkey-server",
    postgresql=Path("/usr/lib/postgresql/15/bin"),
    account="",
    memory_mib=1000,
    faults={},
)


def _server(engine: EngineName, port: int = 0, memory_mib: int = 1) -> Server:
    return Server(
        name=engine,
        engine=engine,
        host="127.0.0.1",
        port=port,
        inner_port=0,
        folder=Path("/e") / engine,
        marker=engine,
        memory_mib=memory_mib,
        prepare=lambda: None,
        command=lambda: [engine],
        answers=lambda: False,
    )


_ALL = [_server(engine) for engine in ("kafka", "redis", "cassandra", "postgresql")]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("Unable to locate a Java Runtime.", None),
    ],
)
def test_the_version_of_java_is_its_major_one(text: str, version: int | None) -> None:
    """Old ones begin with "1."."""
    assert machine.java_version(text) == version


def test_java_17_is_chosen_wherever_it_stands() -> None:
    """Cassandra is made for it; without it the first that still can run Cassandra is taken."""
    assert _WHOLE.java == Java("/jvm/17/java", 17, "")
    assert msgspec.structs.replace(_WHOLE, javas=_WHOLE.javas[:2]).java == Java("/jvm/21/java", 21, "")
    assert msgspec.structs.replace(_WHOLE, javas=_WHOLE.javas[:1]).java is None


def test_nothing_is_missing_on_a_whole_machine() -> None:
    """Maven is needed only where something has to be fetched."""
    assert machine.missing(_WHOLE, _ALL, fetched=False) == []
    assert machine.missing(msgspec.structs.replace(_WHOLE, maven=""), _ALL, fetched=True) == []


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda: msgspec.structs.replace(_WHOLE, javas=()), "no Java: Kafka and Cassandra need Java 17"),
        (lambda: msgspec.structs.replace(_WHOLE, javas=(Java("/bin/java", 11, ""),)), "no Java from 17 to 23"),
        (lambda: msgspec.structs.replace(_WHOLE, maven=""), "no Maven"),
        (lambda: msgspec.structs.replace(_WHOLE, redis=""), "no Redis or Valkey"),
        (lambda: msgspec.structs.replace(_WHOLE, postgresql=None), "no PostgreSQL 13 or newer"),
        (lambda: msgspec.structs.replace(_WHOLE, faults={"postgresql": "no account"}), "no account"),
        (lambda: msgspec.structs.replace(_WHOLE, memory_mib=3), "too little memory: 4 MiB are needed and 3 MiB are"),
    ],
)
def test_each_thing_that_is_missing_has_one_line(change: Callable[[], Machine], line: str) -> None:
    """The line begins with what is missing."""
    found = machine.missing(change(), _ALL, fetched=False)
    assert len(found) == 1
    assert found[0].startswith(line)


def test_what_is_not_started_may_be_missing() -> None:
    """Redis alone needs no Java, no Maven and no PostgreSQL."""
    bare = msgspec.structs.replace(_WHOLE, javas=(), maven="", postgresql=None, faults={"postgresql": "no account"})
    assert machine.missing(bare, [_server("redis")], fetched=False) == []


def test_a_taken_port_is_named_with_who_wants_it() -> None:
    """Another server's answer would pass for ours."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        (line,) = machine.missing(_WHOLE, [_server("redis", port)], fetched=True)
    assert line.startswith(f"port {port} at 127.0.0.1 (redis) is taken")


def test_memory_is_what_programs_can_still_have() -> None:
    """Not what is free: caches give way."""
    assert machine.available("MemFree:  1 kB\nMemAvailable:   2048000 kB\n") == 2000
    assert machine.available("MemFree:  1 kB\n") is None


def test_an_account_that_is_not_there_is_named() -> None:
    """PostgreSQL refuses to run as root."""
    assert "no-such-account" in machine.account_fault("no-such-account", Path("/"))
    assert machine.account_fault("", Path("/nowhere")) == ""


def test_a_folder_that_the_account_cannot_pass_is_named(tmp_path: Path) -> None:
    """As the home of root, where a checkout of root's often lies."""
    closed = tmp_path / "home"
    closed.mkdir(mode=0o700)
    found = machine.account_fault("nobody", closed / "engines" / "postgresql")
    assert "may not pass" in found
    assert "--folder" in found
