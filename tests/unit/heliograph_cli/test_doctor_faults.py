"""Faults that are planted one at a time: the doctor finds each, says what it is and what to do about it."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from email.utils import formatdate
from pathlib import Path

import pytest

from heliograph_cli import doctor, envoys, record
from heliograph_cli.doctor import Finding, Patient
from heliograph_cli.folders import Folders, deploy_file, folders
from heliograph_cli.record import UpRecord, installed_version
from mesh.envoy import certs
from mesh.lanes import position_migrations
from mesh.sqlite import Migration, Writer

BASE_PORT = 23_600


@pytest.fixture
def place(tmp_path: Path, now: float) -> Folders:
    """A state that was used before, in which everything is well."""
    found = folders(tmp_path / "state", str(tmp_path))
    found.make()
    topology = envoys.load(deploy_file("topology.toml"), None)
    certs.ensure(found.certs, envoys.identities(topology, deploy_file("producers.example.toml")), now)
    certs.ensure_token_key(found.certs)
    return found


def _patient(place: Folders, running: UpRecord | None = None, **fields: object) -> Patient:
    return Patient(place, running, BASE_PORT, None, None, **fields)  # type: ignore[arg-type] # one of its last fields


def _record(*, pid: int, now: float, edge: str = "", version: str = "") -> UpRecord:
    return UpRecord(pid, "serving", True, now, "", "heliograph.local", edge, {}, {}, "", {}, version)


def _run_doctor(place: Folders, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "heliograph_cli", "doctor", "--state-dir", str(place.state), *words]
    environ = os.environ | {"XDG_RUNTIME_DIR": str(place.run.parent)}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=28, env=environ)


def _expire(place: Folders) -> None:
    now = (place.certs / "ca").stat().st_mtime
    topology = envoys.load(deploy_file("topology.toml"), None)
    wanted = envoys.identities(topology, deploy_file("producers.example.toml"))
    certs.rotate(place.certs, wanted, now - 7_200.0, lifetime=3_600.0)


def _mismatch(place: Folders) -> None:
    shutil.copy(place.certs / "svc/ingest/current/key.pem", place.certs / "svc/fanout/current/key.pem")


def _break_keys(place: Folders) -> None:
    place.token_keys.write_text("{ no keys")


def _write_by_newer(place: Folders) -> None:
    asyncio.run(_make_store(place.data / "positions.db", [*position_migrations(), _FURTHER]))


_FURTHER = Migration(len(position_migrations()) + 1, "further", "create table further(x)")


async def _make_store(file: Path, migrations: list[Migration]) -> None:
    writer = Writer(file, migrations=migrations)
    await writer.open()
    await writer.close()


@pytest.mark.parametrize(
    ("plant", "subject", "what", "advice"),
    [
        (_expire, "certificates", "expired", "`heliograph certs rotate`"),
        (_mismatch, "certificates", "svc/fanout: cert.pem and key.pem do not belong together", "remove"),
        (_break_keys, "tokens", "a fresh token does not verify", "start again"),
        (_write_by_newer, "schemas", f"has schema {_FURTHER.number}, this version knows up to", "install the newer"),
    ],
)
def test_what_is_broken_in_the_state_is_said_with_advice(
    place: Folders, plant: Callable[[Folders], None], subject: str, what: str, advice: str
) -> None:
    """Exit code 1, and of all lines only those about the fault say that something failed."""
    plant(place)
    done = _run_doctor(place, "--base-port", str(BASE_PORT))
    failed = [line for line in done.stdout.splitlines() if line.startswith("fail")]
    assert done.returncode == 1
    assert failed
    assert {line.split()[1] for line in failed} == {subject}, failed
    assert all(what in line and advice in line for line in failed), failed


def test_a_well_state_is_exit_code_zero(place: Folders) -> None:
    """What the other tests plant is what makes it fail."""
    done = _run_doctor(place, "--base-port", str(BASE_PORT))
    assert done.returncode == 0, done.stdout
    assert not [line for line in done.stdout.splitlines() if line.startswith("fail")]


def test_a_port_that_others_use_is_exit_code_one(place: Folders) -> None:
    """The line names the port, whom it is for, and how to find who has it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = _run_doctor(place, "--base-port", str(port))
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("fail")]
    assert done.returncode == 1
    assert f"{port} (edge)" in line
    assert "`ss -ltnp` shows it" in line


def test_a_record_of_a_dead_process_is_said_and_harmless(place: Folders, ended_pid: int, now: float) -> None:
    """A stale state directory: the line says so and what replaces it; nothing is broken by it."""
    record.write(place.record, _record(pid=ended_pid, now=now))
    done = _run_doctor(place, "--base-port", str(BASE_PORT))
    (line,) = [line for line in done.stdout.splitlines() if " state " in line]
    assert done.returncode == 0
    assert line.startswith("warn")
    assert f"a process that is gone (pid {ended_pid}); harmless: the next `heliograph up` replaces it" in line


@pytest.mark.parametrize(("free", "level"), [(10 << 20, "fail"), (1 << 30, "warn"), (100 << 30, "ok")])
async def test_a_full_disk_is_found(place: Folders, free: int, level: str) -> None:
    """Nearly full is a failure, little room a warning."""
    asked: list[Path] = []

    def measure(folder: Path) -> int:
        asked.append(folder)
        return free

    (finding,) = await doctor.disk(_patient(place, free=measure))
    assert (finding.level, asked) == (level, [place.state])
    assert bool(finding.advice) == (level != "ok")


async def test_another_version_that_runs_is_found(place: Folders, now: float) -> None:
    """What runs was started by another version than the one that is installed now."""
    mine = installed_version()
    (finding,) = await doctor.schemas(_patient(place, _record(pid=os.getpid(), now=now, version="0.0.1")))
    assert finding.level == "warn"
    assert finding.text == f"version 0.0.1 runs, {mine} is installed"
    assert "heliograph up" in finding.advice
    (finding,) = await doctor.schemas(_patient(place, _record(pid=os.getpid(), now=now, version=mine)))
    assert finding.level == "ok"


async def test_a_clock_that_was_set_back_is_found(place: Folders, now: float) -> None:
    """Files of the stores, and the start of what runs, lie in its future."""
    (place.data / "inbox.db").touch()
    assert [one.level for one in await doctor.clock(_patient(place, now=lambda: now + 1.0))] == ["ok"]
    (finding,) = await doctor.clock(_patient(place, now=lambda: now - 3_600.0))
    _is_wrong_clock(finding, "inbox.db")
    running = _record(pid=os.getpid(), now=now + 60.0)
    (finding,) = await doctor.clock(_patient(place, running, now=lambda: now))
    _is_wrong_clock(finding, "by its own record")


@asynccontextmanager
async def _edge(place: Folders, now: float) -> AsyncIterator[str]:
    """An edge that says this time."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    folder = place.certs / "public" / "current"
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 404 Not Found\r\ndate: {formatdate(now, usegmt=True)}\r\ncontent-length: 0\r\n\r\n"
        writer.write(head.encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
        yield "{}:{}".format(*server.sockets[0].getsockname())


@pytest.mark.parametrize("off", [-60.0, 60.0])
async def test_a_clock_that_is_not_the_edges_is_found(place: Folders, now: float, off: float) -> None:
    """Either way, by how many seconds."""
    async with _edge(place, now) as edge:
        running = _record(pid=os.getpid(), now=now - 3_600.0, edge=edge)
        (finding,) = await doctor.clock(_patient(place, running, now=lambda: now))
        assert finding.level == "ok", finding
        (finding,) = await doctor.clock(_patient(place, running, now=lambda: now + off))
    _is_wrong_clock(finding, "s apart from the edge")


def _is_wrong_clock(finding: Finding, what: str) -> None:
    assert (finding.level, finding.subject) == ("fail", "clock")
    assert what in finding.text
    assert "set this machine's clock" in finding.advice
