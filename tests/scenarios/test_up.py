"""`heliograph up` with the real services: start, restart, takeover, refusal of broken input, stop."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from heliograph_cli.record import alive
from tests.support.cluster import Cluster, Shape
from tests.support.wait import until

pytestmark = pytest.mark.processes

# Nobody listens live in these scenarios.
_NODES = 0


def _cluster(run_dir: Path, *arguments: str, shape: Shape = "processes", trace: bool = False) -> Cluster:
    return Cluster(run_dir, shape=shape, gateways=_NODES, trace=trace, arguments=arguments)


async def test_everything_starts_serves_and_stops(run_dir: Path) -> None:
    """One publish reaches the inbox through processes that `up` started; its path can be traced; `down` ends all."""
    async with _cluster(run_dir, trace=True) as cluster:
        code, output, errors = await cluster.run("publish", "--to", "alice,bob", "Hello", "--body", "there")
        assert (code, errors) == (0, "")
        event_id = output.strip()

        async def arrived() -> bool:
            return [item.notification.content.title for item in await cluster.inbox("alice")] == ["Hello"]

        await until(arrived, 10.0, "the notification in the inbox")
        _, listed, _ = await cluster.run("inbox", "bob")
        assert event_id in listed
        assert "1 listed, 1 unread" in listed
        code, path, _ = await cluster.run("trace", event_id)
        assert code == 0
        steps = [line.split()[5] for line in path.splitlines()]
        assert {"published", "accepted", "answered", "read", "planned", "dispatched", "inboxed"} <= set(steps)
        code, said, _ = await cluster.run("down")
        assert (code, said) == (0, "everything is stopped\n")
        assert await cluster.stop() == 0
        assert all(one.pid == 0 and one.state == "stopped" for one in cluster.running.processes.values())
        assert "started (pid" in cluster.output()
        assert "everything serves after" in cluster.output()


async def test_recipients_commands_change_what_they_say(run_dir: Path) -> None:
    """Marking, counting and preferences work from the command line, and refusals say why."""
    async with _cluster(run_dir) as cluster:
        event_id = await cluster.publish("alice")
        await until(lambda: _lists(cluster, "alice", 1), 10.0, "the notification in the inbox")
        assert (await cluster.run("unread", "alice"))[1] == "1\n"
        assert (await cluster.run("mark", "alice", event_id))[1] == "1 marked as read\n"
        assert (await cluster.run("unread", "alice"))[1] == "0\n"
        code, _, errors = await cluster.run("mark", "bob", event_id)
        assert code == 3
        assert errors == f"heliograph: not in this inbox: {event_id}\n"
        code, output, _ = await cluster.run("prefs", "set", "alice", "billing", "--live", "off")
        assert code == 0
        assert ["billing", "on", "off"] in [line.split() for line in output.splitlines()]
        code, _, errors = await cluster.run("publish", "--to", "alice", "x", "--category", "nonsense")
        assert code == 3
        assert errors.startswith("heliograph: refused: CATEGORY_UNKNOWN: ")
        code, output, _ = await cluster.run("lag")
        assert [line.split()[0] for line in output.splitlines()] == ["LANE", "high", "normal", "bulk"]
        code, output, _ = await cluster.run("doctor")
        assert "fail" not in [line.split()[0] for line in output.splitlines()], output
        code, output, _ = await cluster.run("config", "show", "ingest")
        assert "direct = true" in output


async def test_wishes_are_changed_from_the_command_line(run_dir: Path) -> None:
    """Mutes and subscriptions are set, shown and taken back; what may not be muted is refused by name."""
    async with _cluster(run_dir) as cluster:
        _, output, _ = await cluster.run("prefs", "mute", "alice", "--category", "billing", "--for", "2h")
        assert ["billing", "any"] in [line.split()[:2] for line in output.splitlines()]
        _, output, _ = await cluster.run("prefs", "mute", "alice", "--topic", "repo/heliograph")
        assert ["any", "repo/heliograph", "unmuted"] in [line.split() for line in output.splitlines()]
        code, _, errors = await cluster.run("prefs", "mute", "alice", "--category", "security")
        assert (code, "'security' is mandatory" in errors) == (3, True)
        for muted in (("--category", "billing"), ("--topic", "repo/heliograph")):
            _, output, _ = await cluster.run("prefs", "unmute", "alice", *muted)
        assert "MUTED" not in output
        _, output, _ = await cluster.run("topics", "subscribe", "alice", "repo/heliograph", "news")
        assert [line.split()[0] for line in output.splitlines()] == ["TOPIC", "news", "repo/heliograph"]
        assert (await cluster.run("topics", "unsubscribe", "alice", "news", "other"))[0] == 0
        _, output, _ = await cluster.run("topics", "list", "alice")
        assert [line.split()[0] for line in output.splitlines()] == ["TOPIC", "repo/heliograph"]


async def _lists(cluster: Cluster, recipient: str, count: int) -> bool:
    return len(await cluster.inbox(recipient)) == count


@pytest.mark.parametrize("name", ["ingest", "delivery"])
async def test_a_killed_service_comes_back_and_what_was_accepted_stays(run_dir: Path, name: str) -> None:
    """SIGKILL at a service is noticed, said and healed; nothing that was accepted is lost."""
    async with _cluster(run_dir) as cluster:
        await cluster.publish("alice", title="before")
        await until(lambda: _lists(cluster, "alice", 1), 10.0, "the first notification")
        before = await cluster.kill(name)
        after = await cluster.wait_restarted(before)
        assert after.restart_count == 1
        await cluster.publish("alice", title="after")
        await until(lambda: _lists(cluster, "alice", 2), 10.0, "the second notification")
        assert f"{name:<16} killed by SIGKILL; starting it again" in cluster.output()


async def test_a_state_folder_has_one_owner(run_dir: Path) -> None:
    """A second `up` with the same state folder is refused at once and disturbs nobody."""
    async with _cluster(run_dir) as cluster:
        code, _, errors = await cluster.run("up", "--direct", "--base-port", str(cluster.base_port + 100))
        assert code == 2
        assert f"is in use by `heliograph up` (pid {cluster.running.pid})" in errors
        assert await cluster.inbox("alice") == []


async def test_a_killed_up_leaves_nothing_behind_and_the_next_one_takes_over(run_dir: Path) -> None:
    """After SIGKILL at `up` its children end, and a new one starts at once on the same state."""
    cluster = _cluster(run_dir)
    await cluster.start()
    try:
        await cluster.publish("alice")
        await until(lambda: _lists(cluster, "alice", 1), 10.0, "the notification")
        first = [one.pid for one in cluster.running.processes.values()]
        await cluster.end_abruptly()
        await cluster.start()
        assert await _lists(cluster, "alice", 1)
        assert not any(alive(pid) for pid in first)
    finally:
        assert await cluster.stop() == 0


async def _refused(cluster: Cluster) -> str:
    """Starts a cluster that must not start; returns what it said last."""
    up = await cluster.launch()
    try:
        await until(lambda: up.returncode is not None, 20.0, "the refusal")
    finally:
        await cluster.stop()
    assert up.returncode == 2, cluster.output()
    assert "Traceback" not in cluster.output()
    return cluster.output().splitlines()[-1]


async def test_a_broken_registry_stops_the_start(run_dir: Path) -> None:
    """A producers file with an error ends the start with the file and the key in one line."""
    file = run_dir / "producers.toml"
    file.write_text('[producers."acme/demo"]\ncategories = 7\npriorities = ["high"]\n')
    said = await _refused(_cluster(run_dir, "--producers", str(file)))
    assert said.startswith("heliograph: ingest: ")
    assert str(file) in said
    assert "categories" in said


async def test_a_broken_store_stops_the_start(run_dir: Path) -> None:
    """A store file that is no database ends the start with its path in one line."""
    cluster = _cluster(run_dir)
    cluster.place.make()
    file = cluster.place.data / "prefs.db"
    file.write_bytes(b"this is no database at all" * 400)
    said = await _refused(cluster)
    assert said.startswith("heliograph: prefs: ")
    assert str(file) in said
    code, output, _ = await cluster.run("doctor")
    assert code == 1
    assert f"{file}: is no SQLite database" in output


async def test_a_taken_port_stops_the_start(run_dir: Path) -> None:
    """A port that somebody uses is named, with whom it is for and what to do."""
    cluster = _cluster(run_dir)
    with socket.create_server(("127.0.0.1", cluster.base_port + 40)):
        said = await _refused(cluster)
    assert said.startswith(f"heliograph: port {cluster.base_port + 40} (presence): ")
    assert said.endswith("stop what uses it, or give another --base-port")


async def test_a_missing_file_stops_the_start(run_dir: Path) -> None:
    """A registry that is not there is named before anything is started."""
    said = await _refused(_cluster(run_dir, "--categories", str(run_dir / "none.toml")))
    assert said == f"heliograph: {run_dir / 'none.toml'}: no such file; name another one, or leave it out"
