"""What a mesh needs before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from heliograph_cli import envoys
from heliograph_cli.folders import Folders, deploy_file
from heliograph_cli.plan import Choices
from mesh.errors import StartError


def _choices(gateways: int) -> Choices:
    return Choices(
        direct=False,
        gateways=gateways,
        host="lab",
        base_port=23_400,
        trust_domain="heliograph.local",
        trace=False,
        categories=deploy_file("categories.toml"),
        producers=deploy_file("producers.example.toml"),
    )


async def test_a_mesh_is_planned_with_all_its_files(run_dir: Path) -> None:
    """Every Envoy has a checked file, every process its place, and no two a port in common."""
    place = Folders(state=run_dir / "state", run=run_dir / "run")
    place.make()
    plan = await envoys.prepare(envoys.load(deploy_file("topology.toml"), 23_400), _choices(2), place)
    names = {process.name for process in plan.processes}
    services = {"ingest", "fanout", "prefs", "presence", "delivery", "gw-lab-0", "gw-lab-1"}
    assert names == services | {f"{name}-envoy" for name in services} | {"edge"}
    files = [process.argv[process.argv.index("-c") + 1] for process in plan.processes if process.kind != "service"]
    assert sorted(files) == sorted(map(str, place.mesh.glob("*.json")))
    ports = [port for process in plan.processes for port in process.ports]
    assert len(ports) == len(set(ports))
    assert plan.edge == "127.0.0.1:23400"
    assert plan.live_urls == {"edge": "wss://127.0.0.1:23400/v1/ws"}
    assert set(plan.inbound) == services
    assert (place.certs / "producer" / "acme" / "demo" / "current" / "cert.pem").exists()
    assert (place.certs / "operator" / "dev" / "current" / "key.pem").stat().st_mode & 0o077 == 0


async def test_more_nodes_than_ports_are_refused(run_dir: Path) -> None:
    """The failure says how many there may be."""
    place = Folders(state=run_dir / "state", run=run_dir / "run")
    with pytest.raises(StartError, match="41 gateway nodes: the topology has ports for 1 to 40"):
        await envoys.prepare(envoys.load(deploy_file("topology.toml"), None), _choices(41), place)


def test_producers_are_read_from_the_registry(tmp_path: Path) -> None:
    """Each gets a certificate; names that are none, and broken files, are left for ingest to refuse."""
    file = tmp_path / "producers.toml"
    file.write_text('[producers."acme/demo"]\n[producers."../etc"]\n[producers.x]\n')
    assert envoys.producers_of(file) == ["acme/demo"]
    for broken in ("producers = 7", "[producers", "\x00"):
        file.write_text(broken)
        assert envoys.producers_of(file) == []
    assert envoys.producers_of(tmp_path / "none.toml") == []


async def test_an_envoy_that_is_not_there_is_not_ready_and_may_be_told_to_leave(tmp_path: Path) -> None:
    """Asking nobody is no failure: at the end of a stop some are gone already."""
    admin = str(tmp_path / "none.admin")
    assert not await envoys.is_ready(admin)
    await envoys.stop_listening(admin)
    await envoys.leave_service(admin)
