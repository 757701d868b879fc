"""What is started, with which arguments, and in which order it stops."""

from __future__ import annotations

from pathlib import Path

import msgspec

from heliograph_cli.folders import Folders
from heliograph_cli.plan import Choices, Envoy, Node, Plan, node_ids, plan_direct, plan_mesh, stop_order

FOLDERS = Folders(state=Path("/state"), run=Path("/run/hg"))


def _choices(*, direct: bool, gateways: int = 2, trace: bool = False) -> Choices:
    return Choices(
        direct=direct,
        gateways=gateways,
        host="Lab-7.example.org",
        base_port=7400,
        trust_domain="heliograph.local",
        trace=trace,
        categories=Path("/etc/categories.toml"),
        producers=Path("/etc/producers.toml"),
    )


def _mesh(choices: Choices | None = None) -> Plan:
    names = [("ingest", "ingest"), ("gw-lab-7-0", "gateway"), ("edge", "edge")]
    envoys = [
        Envoy(
            name=f"{name}-envoy", service=service, argv=("/bin/envoy",), admin=Path(f"/run/hg/{name}.admin"), ports=()
        )
        for name, service in names
    ]
    return plan_mesh(
        choices or _choices(direct=False, gateways=1),
        FOLDERS,
        nodes=[Node("gw-lab-7-0", "127.0.0.1:17420")],
        envoys=envoys,
        metrics={"ingest": 7441},
        edge="127.0.0.1:7400",
        live_url="wss://127.0.0.1:7400/v1/ws",
        inbound={"ingest": "127.0.0.1:17401"},
        producer_host="producers.localhost",
    )


def _option(argv: tuple[str, ...], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_direct_runs_six_services_and_as_many_nodes_as_asked() -> None:
    """Every service runs once and the gateway as often as asked, with sockets and logs by their names."""
    plan = plan_direct(_choices(direct=True, gateways=3), FOLDERS)
    names = [process.name for process in plan.processes]
    assert names == ["presence", "prefs", "delivery", "fanout", "ingest", "gw-lab-7-0", "gw-lab-7-1", "gw-lab-7-2"]
    assert all("--direct" in process.argv for process in plan.processes)
    assert {process.socket for process in plan.processes} == {Path(f"/run/hg/{name}.sock") for name in names}
    assert plan.processes[0].log == Path("/state/log/presence.log")
    assert plan.edge == ""


def test_direct_nodes_listen_on_ports_of_their_own() -> None:
    """Clients reach each gateway node at its own loopback port, and no two processes share one."""
    plan = plan_direct(_choices(direct=True), FOLDERS)
    assert plan.live_urls == {"gw-lab-7-0": "ws://127.0.0.1:7420/v1/ws", "gw-lab-7-1": "ws://127.0.0.1:7421/v1/ws"}
    node = next(process for process in plan.processes if process.name == "gw-lab-7-1")
    assert _option(node.argv, "--websocket-listen") == "127.0.0.1:7421"
    assert _option(node.argv, "--process") == _option(node.argv, "--node-id") == "gw-lab-7-1"
    ports = [port for process in plan.processes for port in process.ports]
    assert len(ports) == len(set(ports))
    assert 7421 in node.ports


def test_stores_outside_are_named_to_the_services_that_have_them() -> None:
    """Each gets the flags of its own, in both shapes; the others none."""
    stores = {"presence": ("--store-url", "redis://h/0"), "delivery": ("--store-url", "cassandra://h/k")}
    for plan in (
        plan_direct(msgspec.structs.replace(_choices(direct=True), stores=stores), FOLDERS),
        _mesh(msgspec.structs.replace(_choices(direct=False, gateways=1), stores=stores)),
    ):
        named = {process.service: process for process in plan.processes if "--store-url" in process.argv}
        assert set(named) == {"presence", "delivery"}
        assert _option(named["delivery"].argv, "--store-url") == "cassandra://h/k"


def test_registries_reach_the_services_that_read_them() -> None:
    """Ingest gets both registries, fanout and prefs the categories, and nobody else any."""
    plan = plan_direct(_choices(direct=True), FOLDERS)
    readers = {process.service for process in plan.processes if "--categories-file" in process.argv}
    assert readers == {"ingest", "fanout", "prefs"}
    ingest = next(process for process in plan.processes if process.name == "ingest")
    assert _option(ingest.argv, "--producers-file") == "/etc/producers.toml"


def test_tracing_is_asked_of_every_service() -> None:
    """A path that one service does not log would have a hole."""
    plan = plan_direct(_choices(direct=True, trace=True), FOLDERS)
    assert all("--trace-log" in process.argv for process in plan.processes)
    plan = plan_direct(_choices(direct=True), FOLDERS)
    assert not any("--trace-log" in process.argv for process in plan.processes)


def test_a_mesh_has_sidecars_and_nodes_with_addresses() -> None:
    """Behind sidecars nobody is direct, and a node says where its sidecar listens."""
    plan = _mesh()
    services = [process for process in plan.processes if process.kind == "service"]
    assert not any("--direct" in process.argv for process in services)
    node = next(process for process in services if process.service == "gateway")
    assert _option(node.argv, "--address") == "127.0.0.1:17420"
    assert "--websocket-listen" not in node.argv
    ingest = next(process for process in services if process.name == "ingest")
    assert _option(ingest.argv, "--metrics-port") == "7441"
    assert ingest.ports == (7441,)
    kinds = {process.name: process.kind for process in plan.processes}
    assert kinds["edge-envoy"] == "edge"
    assert kinds["ingest-envoy"] == "sidecar"


def test_services_stop_before_their_sidecars_and_gateways_before_the_edge() -> None:
    """Clients hear "go away" through an edge that still stands, and no service loses its way out before it is done."""
    order = [[process.name for process in group] for group in stop_order(_mesh().processes)]
    flat = [name for group in order for name in group]
    assert flat.index("gw-lab-7-0") < flat.index("gw-lab-7-0-envoy") < flat.index("edge-envoy") < flat.index("ingest")
    assert flat.index("ingest") < flat.index("ingest-envoy") < flat.index("fanout") < flat.index("delivery")
    assert order[-1] == ["presence", "prefs"]


def test_node_ids_are_made_of_any_host_name() -> None:
    """A host's name is cut and cleaned, so that socket paths stay short and ids stay valid."""
    assert node_ids("Ann's MacBook.local", 1) == ["gw-ann-s-macbook-0"]
    assert node_ids("", 1) == ["gw-local-0"]
    assert node_ids("x" * 200, 1) == ["gw-" + "x" * 20 + "-0"]
