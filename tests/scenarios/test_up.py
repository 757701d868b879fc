"""`heliograph up` as people use it: start, publish, listen, look, stop; and what a killed `up` leaves behind."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest

from heliograph_cli import record
from heliograph_cli.envoys import identities
from heliograph_cli.folders import deploy_file
from heliograph_cli.record import alive
from heliograph_client import Disconnected, Update
from mesh.envoy import certs
from mesh.envoy.topology import load_topology
from tests.support.cluster import Cluster, Shape
from tests.support.shapes import BOTH, frozen, running
from tests.support.wait import until

pytestmark = pytest.mark.timeout(90)

_LANES = ("high", "slices-high", "normal", "slices-normal", "bulk", "slices-bulk")


@pytest.fixture(scope="module", params=BOTH)
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    """One cluster for the tests that leave it running."""
    async with running(request.param, trace=True) as started:
        yield started


async def test_wishes_are_changed_from_the_command_line(cluster: Cluster) -> None:
    """Mutes and subscriptions are set, shown and taken back; what may not be muted is refused by name."""
    _, output, _ = await cluster.run("prefs", "mute", "wendy", "--category", "billing", "--for", "2h")
    assert ["billing", "any"] in [line.split()[:2] for line in output.splitlines()]
    _, output, _ = await cluster.run("prefs", "mute", "wendy", "--topic", "repo/heliograph")
    assert ["any", "repo/heliograph", "unmuted"] in [line.split() for line in output.splitlines()]
    code, _, errors = await cluster.run("prefs", "mute", "wendy", "--category", "security")
    assert (code, "'security' is mandatory" in errors) == (3, True)
    for muted in (("--category", "billing"), ("--topic", "repo/heliograph")):
        _, output, _ = await cluster.run("prefs", "unmute", "wendy", *muted)
    assert "MUTED" not in output
    _, output, _ = await cluster.run("topics", "subscribe", "wendy", "repo/heliograph", "news")
    assert [line.split()[0] for line in output.splitlines()] == ["TOPIC", "news", "repo/heliograph"]
    assert (await cluster.run("topics", "unsubscribe", "wendy", "news", "other"))[0] == 0
    _, output, _ = await cluster.run("topics", "list", "wendy")
    assert [line.split()[0] for line in output.splitlines()] == ["TOPIC", "repo/heliograph"]


async def _lists(cluster: Cluster, recipient: str, count: int) -> bool:
    return len(await cluster.inbox(recipient)) == count


async def test_the_command_does_what_its_help_promises(cluster: Cluster) -> None:
    """Publish, listen, list, mark, choose, trace and look: each command against everything that `up` started."""
    code, output, errors = await cluster.run("publish", "--to", "alice,bob", "Hello", "--body", "there")
    assert (code, errors) == (0, "")
    event_id = output.strip()
    code, heard, said = await cluster.run("listen", "alice", "--count", "1", "--read")
    assert (code, said) == (0, "connected\n")
    assert "[general] Hello - there" in heard
    assert heard.rstrip().endswith(event_id)
    code, again, said = await cluster.run(
        *("listen", "bob", "--transport", "grpc", "--topic", "releases", "--count", "1", "--anew")
    )
    assert (code, said) == (0, "connected\n")
    assert again.rstrip().endswith(event_id)
    assert "releases" in (await cluster.run("topics", "list", "bob"))[1]
    assert (await cluster.run("unread", "alice"))[1] == "0\n"
    await _use_as_recipient(cluster, event_id)
    code, path, _ = await cluster.run("trace", event_id)
    assert code == 0
    steps = {line.split()[5] for line in path.splitlines()}
    assert {"published", "accepted", "answered", "read", "planned", "dispatched", "inboxed"} <= steps
    await _use_as_operator(cluster)


async def _use_as_recipient(cluster: Cluster, event_id: str) -> None:
    assert "1 listed, 1 unread" in (await cluster.run("inbox", "bob"))[1]
    assert (await cluster.run("mark", "bob", event_id, "--as", "hidden"))[1] == "1 marked as hidden\n"
    assert (await cluster.run("inbox", "bob"))[1] == "0 listed, 0 unread\n"
    code, _, errors = await cluster.run("mark", "carol", event_id)
    assert (code, errors) == (3, f"heliograph: not in this inbox: {event_id}\n")
    code, output, _ = await cluster.run("prefs", "set", "alice", "billing", "--live", "off")
    assert code == 0
    assert ["billing", "on", "off"] in [line.split() for line in output.splitlines()]
    code, _, errors = await cluster.run("publish", "--to", "alice", "x", "--category", "nonsense")
    assert code == 3
    assert errors.startswith("heliograph: refused: CATEGORY_UNKNOWN: ")


async def _use_as_operator(cluster: Cluster) -> None:
    _, output, _ = await cluster.run("lag")
    assert [line.split()[0] for line in output.splitlines()] == ["LANE", *_LANES]
    _, output, _ = await cluster.run("nodes")
    assert [line.split()[:2] for line in output.splitlines()[1:]] == [
        [cluster.node(0), "serving"],
        [cluster.node(1), "serving"],
    ]
    await _wait_until_well(cluster)
    _, output, _ = await cluster.run("config", "show", "ingest")
    assert f"direct = {'true' if cluster.shape == 'processes' else 'false'}" in output


@contextmanager
def _other_version(cluster: Cluster) -> Iterator[None]:
    found = cluster.running
    record.write(cluster.place.record, msgspec.structs.replace(found, version="0.0.1"))
    try:
        yield
    finally:
        record.write(cluster.place.record, found)


@contextmanager
def _other_file(cluster: Cluster) -> Iterator[None]:
    """Puts something else in the place of the store of wishes; whoever has that open goes on with what it has."""
    (file,) = cluster.place.data.rglob("prefs.db")
    aside = file.rename(file.with_suffix(".aside"))
    file.write_text("no store at all")
    try:
        yield
    finally:
        aside.replace(file)


@contextmanager
def _expired_certificate(cluster: Cluster) -> Iterator[None]:
    """Lets the certificate of a producer run out that nobody uses here."""
    wanted = identities(load_topology(deploy_file("topology.toml")), deploy_file("producers.example.toml"))
    billing = [one for one in wanted if one.path == "producer/acme/billing"]
    certs.rotate(cluster.place.certs, billing, time.time() - 7_200.0, lifetime=3_600.0)
    try:
        yield
    finally:
        certs.rotate(cluster.place.certs, billing, time.time())


async def _examined(cluster: Cluster) -> tuple[int, list[str], list[str]]:
    """Asks the doctor; returns the exit code, the lines of what is broken and those of what is odd."""
    code, output, _ = await cluster.run("doctor", "--base-port", str(cluster.base_port))
    broken, odd = ([line for line in output.splitlines() if line.startswith(level)] for level in ("fail", "warn"))
    return code, broken, odd


async def _wait_until_well(cluster: Cluster) -> None:
    """Waits until the doctor finds nothing broken: Envoys find a peer healthy at their next check of it only."""

    async def is_well() -> bool:
        code, broken, _ = await _examined(cluster)
        print(broken)  # shown when the wait fails
        return code == 0

    await until(is_well, 30.0, "a doctor that finds nothing broken")


async def test_the_doctor_finds_what_was_planted_under_a_running_mesh(cluster: Cluster) -> None:
    """A version of its own, a process that does not answer, a store that is none, a certificate that ran out."""
    with ExitStack() as planted:
        planted.enter_context(_other_version(cluster))
        planted.enter_context(frozen(cluster, "fanout"))
        if not cluster.on_engines:
            planted.enter_context(_other_file(cluster))
        if cluster.shape == "mesh":
            planted.enter_context(_expired_certificate(cluster))
        code, broken, odd = await _examined(cluster)
    found = " ".join(broken)
    assert code == 1
    assert {line.split()[1] for line in broken} == {
        "processes",
        *(() if cluster.on_engines else ("stores",)),
        *(("certificates",) if cluster.shape == "mesh" else ()),
    }, broken
    assert "fanout does not serve (serving, pid " in found
    assert ("prefs.db: is no SQLite database; restore it" in found) is not cluster.on_engines
    assert ("producer/acme/billing: cert.pem expired at" in found) is (cluster.shape == "mesh")
    assert any("version 0.0.1 runs" in line for line in odd), odd
    await cluster.wait_restarted(await cluster.kill("prefs"))
    await _wait_until_well(cluster)
    _, _, odd = await _examined(cluster)
    assert any("prefs was started again 1 times" in line for line in odd), odd
    assert not any("version" in line for line in odd), odd


@pytest.mark.mesh
async def test_certificates_are_renewed_under_running_envoys(run_dir: Path) -> None:
    """After a rotation the edge shows a new certificate, and everything goes on."""
    async with Cluster(run_dir, shape="mesh", gateways=1) as cluster:
        file = cluster.place.certs / "svc" / "ingest" / "current" / "cert.pem"
        before = file.read_bytes()
        assert (await cluster.run("certs", "rotate"))[0] == 0
        assert file.read_bytes() != before
        await cluster.publish("alice")
        await until(lambda: _lists(cluster, "alice", 1), 10.0, "the notification")
        code, output, _ = await cluster.run("certs", "show")
        assert code == 0
        assert "producer/acme/demo" in output


@pytest.mark.parametrize("shape", BOTH)
async def test_down_tells_clients_to_go_and_ends_everything(run_dir: Path, shape: Shape) -> None:
    """Listeners are told, through an edge that still stands, and then no process and no port is left."""
    updates: list[Update] = []
    async with Cluster(run_dir, shape=shape, gateways=1) as cluster:
        async with cluster.subscriber("alice", on_update=updates.append) as subscriber:
            await until(lambda: subscriber.connected, 10.0, "the session")
            pids = [cluster.running.pid, *(one.pid for one in cluster.running.processes.values())]
            assert (await cluster.run("down"))[0] == 0
            # It waits for the lock of `up`, which the end of the process gives back.
            await until(lambda: not any(alive(pid) for pid in pids), 5.0, "the end of everything")
            assert await cluster.stop() == 0
        first = next(update for update in updates if isinstance(update, Disconnected))
        # An orderly farewell; a connection that is cut would say 1006.
        assert first.reason == "closed with 1000"
        assert all(one.state == "stopped" for one in cluster.running.processes.values())
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", cluster.base_port + (0 if shape == "mesh" else 20)))
        # What others have taken since then is found before the next start does not get it.
        with socket.create_server(("127.0.0.1", cluster.base_port)):
            _, broken, _ = await _examined(cluster)
        assert [line.split()[1] for line in broken] == ["ports"], broken
        assert f"{cluster.base_port} (edge)" in broken[0]
        assert "killed" not in cluster.output()
        code, _, errors = await cluster.run("nodes")
        assert (code, "nothing runs with the state folder" in errors) == (4, True)


@pytest.mark.parametrize("shape", BOTH)
async def test_a_killed_up_leaves_nothing_and_the_next_one_takes_over(run_dir: Path, shape: Shape) -> None:
    """After SIGKILL at `up` its children end, and a new one starts at once on the same state."""
    cluster = Cluster(run_dir, shape=shape, gateways=1)
    try:
        await cluster.start()
        await cluster.publish("alice")
        await until(lambda: _lists(cluster, "alice", 1), 10.0, "the notification")
        first = [one.pid for one in cluster.running.processes.values()]
        await cluster.end_abruptly()
        killed = cluster.running.pid
        _, _, odd = await _examined(cluster)
        assert any(f"a process that is gone (pid {killed}); harmless" in line for line in odd), odd
        await cluster.start()
        assert await _lists(cluster, "alice", 1)
        # They are told to end, and finish what they have begun.
        await until(lambda: not any(alive(pid) for pid in first), 20.0, "the children have ended")
    finally:
        assert await cluster.stop() == 0
