"""What the doctor notices."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
from pathlib import Path

import pytest

from heliograph_cli import doctor, envoys, health, record
from heliograph_cli.doctor import Finding, Patient, worst
from heliograph_cli.folders import Folders, deploy_file
from heliograph_cli.record import UpRecord
from mesh.envoy import certs
from mesh.tokens import create_signing_key
from tests.support import echo
from tests.support.envoy_admin import envoy_admin
from tests.support.wait import until


@pytest.fixture
def place(tmp_path: Path) -> Folders:
    """Folders of a state that was used before."""
    found = Folders(state=tmp_path / "state", run=tmp_path / "run")
    found.make()
    return found


def _patient(place: Folders, base_port: int | None = None) -> Patient:
    return Patient(place, None, base_port, None, None)


def _levels(findings: list[Finding]) -> list[str]:
    return [finding.level for finding in findings]


async def test_a_fresh_machine_is_well(place: Folders) -> None:
    """Nothing that is merely not there yet counts as broken."""
    findings = await doctor.examine(place, base_port=23_400, topology=None, producers=None)
    assert worst(findings) in ("ok", "warn"), findings
    assert {"versions", "envoy", "limits", "folders", "disk", "stores", "tokens", "certificates", "processes"} <= {
        finding.subject for finding in findings
    }


async def test_a_broken_store_is_found(place: Folders) -> None:
    """A database passes; a file that is none, or whose pages are gone, is named."""
    sqlite3.connect(place.data / "good.db").execute("CREATE TABLE t (x)").connection.close()
    assert _levels(await doctor.stores(_patient(place))) == ["ok"]
    (place.data / "lanes").mkdir()
    (place.data / "lanes" / "high.db").write_bytes(b"no database" * 500)
    cut = (place.data / "good.db").read_bytes()[:200]
    (place.data / "cut.db").write_bytes(cut)
    findings = await doctor.stores(_patient(place))
    assert _levels(findings) == ["fail", "fail"]
    assert findings[1].text == f"{place.data / 'lanes' / 'high.db'}: is no SQLite database"
    assert "cut.db" in findings[0].text


async def test_keys_that_do_not_belong_together_are_found(place: Folders, tmp_path: Path) -> None:
    """A token signed by a key that services do not know would be refused everywhere."""
    certs.ensure_token_key(place.certs)
    assert _levels(await doctor.keys(_patient(place))) == ["ok"]
    create_signing_key(place.token_key, tmp_path / "elsewhere.json")
    (finding,) = await doctor.keys(_patient(place))
    assert finding.level == "fail"
    assert "does not verify" in finding.text
    place.token_keys.unlink()
    assert _levels(await doctor.keys(_patient(place))) == ["fail"]


async def test_certificates_that_expire_or_do_not_match_are_found(place: Folders, now: float) -> None:
    """Good ones pass, old ones are a warning, a foreign key is a failure."""
    topology = envoys.load(deploy_file("topology.toml"), None)
    wanted = envoys.identities(topology, deploy_file("producers.example.toml"))
    certs.ensure(place.certs, wanted, now)
    assert _levels(await doctor.certificates(_patient(place))) == ["ok"]
    certs.rotate(place.certs, wanted, now, lifetime=3600.0)
    assert _levels(await doctor.certificates(_patient(place))) == ["warn"]
    folder = place.certs / "svc"
    key = (folder / "ingest" / "current" / "key.pem").read_bytes()
    (folder / "fanout" / "current" / "key.pem").write_bytes(key)
    (finding,) = await doctor.certificates(_patient(place))
    assert finding.level == "fail"
    assert finding.text == "svc/fanout: cert.pem and key.pem do not belong together"
    shutil.rmtree(folder / "fanout")
    certs.rotate(place.certs, wanted, now - 7200.0, lifetime=3600.0)
    findings = await doctor.certificates(_patient(place))
    assert set(_levels(findings)) == {"fail"}
    assert all("expired" in finding.text for finding in findings)


async def test_a_taken_port_is_found(place: Folders) -> None:
    """The port and whom it is for are named."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (finding,) = await doctor.ports(_patient(place, base_port=port))
    assert finding.level == "fail"
    assert f"{port} (edge)" in finding.text


async def test_folders_that_others_may_read_are_found(place: Folders) -> None:
    """Sockets are trusted by who can reach them."""
    assert _levels(await doctor.folders(_patient(place))) == ["ok"]
    place.run.chmod(0o755)
    (finding,) = await doctor.folders(_patient(place))
    assert (finding.level, finding.advice) == ("warn", f"chmod 700 {place.run}")


async def test_a_record_of_a_dead_up_is_found(place: Folders, ended_pid: int) -> None:
    """A killed `up` leaves its record behind; the doctor says so and looks on as if nothing ran."""
    dead = UpRecord(ended_pid, "serving", True, 0.0, str(place.run), "heliograph.local", "", {}, {}, "", {})
    record.write(place.record, dead)
    findings = await doctor.examine(place, base_port=23_400, topology=None, producers=None)
    assert ("warn", "state") in [(finding.level, finding.subject) for finding in findings]
    assert "nothing runs; `heliograph up` starts it" in [finding.text for finding in findings]


async def test_a_service_that_does_not_serve_is_found(place: Folders) -> None:
    """A record that says "serving" is not believed: the process itself is asked."""
    one = record.ProcessRecord("ingest", "service", "ingest", os.getpid(), "serving", 0, argv=(), log="")
    running = UpRecord(os.getpid(), "serving", True, 0.0, str(place.run), "d", "", {}, {}, "", {"ingest": one})
    (finding,) = await doctor.processes(Patient(place, running, None, None, None))
    assert finding.level == "fail"
    assert finding.text.startswith("ingest does not serve")


@pytest.mark.parametrize(
    ("ready", "healthy", "text"),
    [
        (200, 1, "1 serve"),
        (200, 0, "ingest-envoy serves, but finds not all healthy of fanout (0 of 1)"),
        (503, 0, "ingest-envoy does not serve (serving, pid {pid}, 0 restarts)"),
    ],
)
async def test_an_envoy_whose_peer_is_gone_is_told_from_one_that_does_not_serve(
    place: Folders, run_dir: Path, ready: int, healthy: int, text: str
) -> None:
    """The peer is named: the log of the Envoy would say nothing of it."""
    pid = os.getpid()
    one = record.ProcessRecord("ingest-envoy", "sidecar", "ingest", pid, "serving", 0, argv=(), log="")
    running = UpRecord(pid, "serving", True, 0.0, str(run_dir), "d", "", {}, {}, "", {"ingest-envoy": one})
    members = f"cluster.fanout.membership_healthy: {healthy}\ncluster.fanout.membership_total: 1\n"
    answers = {
        "/ready": (ready, "LIVE"),
        "/stats?filter=^server.days_until_first_cert_expiring$": (200, "server.days_until_first_cert_expiring: 6\n"),
        "/stats?filter=membership_(healthy|total)$": (200, members),
    }
    async with envoy_admin(run_dir / "ingest.admin", answers):
        (finding,) = await doctor.processes(Patient(place, running, None, None, None))
    assert finding.text == text.format(pid=pid)
    assert (finding.level == "ok") is (healthy == 1)


async def test_a_process_whose_clock_was_set_is_found(place: Folders, run_dir: Path) -> None:
    """Its clock is named as the cause, not that it does not serve."""
    one = record.ProcessRecord("echo", "service", "echo", os.getpid(), "serving", 0, argv=(), log="")
    running = UpRecord(os.getpid(), "serving", True, 0.0, str(run_dir), "d", "", {}, {}, "", {"echo": one})
    async with echo.serving(run_dir) as served:
        served.server.set_clock(False)
        await until(lambda: health.clock_was_set(run_dir / "echo.sock", direct=True))
        (finding,) = await doctor.processes(Patient(place, running, None, None, None))
    assert (finding.level, finding.subject) == ("fail", "clock")
    assert finding.text == "echo: the clock of this machine was set while it ran, or differs from presence's"


def test_the_worst_finding_decides() -> None:
    """One failure among good findings is a failure."""
    ok, warn, fail = (Finding(level, "x", "") for level in ("ok", "warn", "fail"))
    assert worst([ok, warn, fail, ok]) == "fail"
    assert worst([ok, warn]) == "warn"
    assert worst([]) == "ok"
