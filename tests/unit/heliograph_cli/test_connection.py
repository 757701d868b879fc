"""Where the command calls, and as whom."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from heliograph_cli import record
from heliograph_cli.connection import Actor, Connection, Reach, connect
from heliograph_cli.failures import REFUSED, UNAVAILABLE, USAGE, CommandFailed
from heliograph_cli.folders import Folders
from heliograph_cli.record import UpRecord
from mesh.clock import SystemClock
from mesh.envoy.certs import ensure_token_key
from mesh.tokens import TokenVerifier

ALICE = Actor("recipient", "alice", "acme")
DEMO = Actor("producer", "demo", "acme")


@pytest.fixture
def place(tmp_path: Path) -> Folders:
    """A state folder with a token key."""
    found = Folders(state=tmp_path, run=tmp_path / "run")
    ensure_token_key(found.certs)
    return found


def _running(*, direct: bool, live_urls: dict[str, str] | None = None) -> UpRecord:
    return UpRecord(
        pid=os.getpid(),
        state="serving",
        direct=direct,
        start_time=0.0,
        run_dir="/run/hg",
        trust_domain="heliograph.local",
        edge="" if direct else "127.0.0.1:7400",
        live_urls=live_urls or {},
        inbound={},
        producer_host="" if direct else "producers.localhost",
        processes={},
    )


async def test_nothing_running_is_said_before_anything_is_tried(place: Folders) -> None:
    """Without a mesh here, and none named elsewhere, the command ends at once."""
    with pytest.raises(CommandFailed, match="nothing runs") as caught:
        async with connect(Reach(state_dir=place.state), place):
            pytest.fail("connected to nothing")
    assert caught.value.code == UNAVAILABLE


async def test_an_edge_elsewhere_needs_nothing_here(place: Folders) -> None:
    """With an address on the command line, this machine's state is not looked at."""
    async with connect(Reach(state_dir=place.state, edge="notify.example.org:443", token="t"), place) as connection:
        assert (connection.edge, connection.direct, connection.roots) == ("notify.example.org:443", False, None)
        assert connection.token(ALICE) == "t"


async def test_a_mesh_on_this_machine_is_found_by_its_record(place: Folders) -> None:
    """The edge and the roots to trust come from the state folder; other roots can be given."""
    record.write(place.record, _running(direct=False))
    async with connect(Reach(state_dir=place.state), place) as connection:
        assert connection.edge == "127.0.0.1:7400"
        assert connection.roots == place.certs / "ca" / "bundle.pem"
    async with connect(Reach(state_dir=place.state, ca=Path("/other.pem")), place) as connection:
        assert connection.roots == Path("/other.pem")


def test_a_token_says_who_it_is_for(place: Folders) -> None:
    """A token made here verifies with the keys that services use."""
    connection = Connection(Reach(state_dir=place.state), place, _running(direct=True))
    claims = TokenVerifier(place.token_keys, clock=SystemClock()).verify(connection.token(ALICE))
    assert (claims.subject, claims.tenant, claims.role) == ("alice", "acme", "recipient")


def test_without_a_key_there_is_no_token(tmp_path: Path) -> None:
    """The failure names the key and what makes one."""
    connection = Connection(Reach(), Folders(state=tmp_path, run=tmp_path), _running(direct=True))
    with pytest.raises(CommandFailed, match=r"signing\.pem.*`heliograph up` makes one") as caught:
        connection.token(ALICE)
    assert caught.value.code == REFUSED


def test_a_producer_without_a_certificate_is_told_how_to_get_one(place: Folders) -> None:
    """A name that is not in the registry has no certificate; the failure is not that of a missing file."""
    connection = Connection(Reach(state_dir=place.state), place, _running(direct=False))
    with pytest.raises(CommandFailed, match="producer acme/demo: has no certificate; add it to the registry"):
        connection.publisher(DEMO)


def test_a_node_that_does_not_run_is_named(place: Folders) -> None:
    """In direct mode a listener goes to a node of its choice, and hears which ones there are."""
    urls = {"gw-a-0": "ws://127.0.0.1:1/v1/ws"}
    connection = Connection(Reach(state_dir=place.state), place, _running(direct=True, live_urls=urls))
    connection.subscriber(ALICE, "phone", node="gw-a-0")
    with pytest.raises(CommandFailed, match="gw-b-0: does not run here; there are gw-a-0"):
        connection.subscriber(ALICE, "phone", node="gw-b-0")


async def test_operators_need_a_mesh_on_this_machine(place: Folders) -> None:
    """Sidecars are not reached through an edge elsewhere."""
    async with connect(Reach(state_dir=place.state, edge="notify.example.org:443"), place) as connection:
        with pytest.raises(CommandFailed, match="need the state folder") as caught:
            await connection.call(
                "presence", lambda channel: channel.unary_unary("/x/Y"), b"", Actor("operator", "dev")
            )
        assert caught.value.code == USAGE
