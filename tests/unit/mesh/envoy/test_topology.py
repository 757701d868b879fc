"""The topology file: what it gives, and what a broken one says."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from mesh.envoy.topology import gateway_nodes, load_topology
from mesh.errors import StartError
from tests.support.envoys import TOPOLOGY, topology


def _broken(tmp_path: Path, old: str, new: str) -> str:
    text = TOPOLOGY.read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "topology.toml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(StartError) as caught:
        load_topology(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"topology file {path}")
    return message.removeprefix(f"topology file {path}")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("base_port = 7400", 'base_port = "x"', ", key base_port: Expected int, got str; correct it"),
        ("base_port = 7400", "base_port = 65500", "does not exist; lower it or base_port"),
        ("base_port = 7400", "", ", key base_port: is not set"),
        ("base_port = 7400", "base_port = 7400\nextra = 1", ", key extra: is unknown; remove it or correct its name"),
        ("body_bytes = 65536", "body_byte = 65536", ", key edge.limits.body_byte: is unknown"),
        ("body_bytes = 65536", "body_bytes = -1", ", key edge.limits.body_bytes: Expected int >= 1024; correct it"),
        ("unary = 10.0", "unary = 0", ", key timeouts.unary: Expected float >= 0.01"),
        ("port = 12\n", "port = 11\n", ", key services.fanout.port: port 7411 is already that of services.ingest.port"),
        (
            "port = 15\n",
            "port = 41\n",
            ", key gateway.port (node 1): port 7441 is already that of services.delivery.port",
        ),
        ("process_offset = 200", "process_offset = 1", "is already that of"),
        ("[services.prefs]", "[services.operator]", ", key services.operator: this name has a meaning of its own"),
        ("[services.prefs]", "[services.Prefs]", ", key services.<name>"),
        ('"heliograph.fanout.v1.FanoutService"', "", ", key services.fanout.serves: is empty"),
        (
            "heliograph.fanout.v1.FanoutService",
            "heliograph.ingest.v1.IngestService",
            ", key services.fanout.serves: heliograph.ingest.v1.IngestService is already served by ingest",
        ),
        ("inbound_offset = 0.06", "inbound_offset = 0.01", ", key timeouts.inbound_offset: must exceed"),
        ('access_log = "failures"', 'access_log = "some"', ", key sidecar.access_log: Invalid enum value"),
        ("[metrics]", "[metrics", ": is not TOML: "),
    ],
)
def test_a_broken_topology_is_one_line_that_says_where(tmp_path: Path, old: str, new: str, said: str) -> None:
    """The file, the key, what is wrong with it."""
    assert said in _broken(tmp_path, old, new)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A path that leads nowhere stops the start."""
    with pytest.raises(StartError, match="No such file"):
        load_topology(tmp_path / "nothing.toml")


def test_every_key_is_needed(tmp_path: Path) -> None:
    """Nothing falls back to a default that the file does not show."""

    def keys(table: dict[str, object], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        found = []
        for key, value in table.items():
            found += keys(value, (*path, key)) if isinstance(value, dict) else [(*path, key)]
        return found

    text = TOPOLOGY.read_text(encoding="utf-8")
    lines = text.splitlines()
    wanted = keys(tomllib.loads(text))
    removed = 0
    for number, line in enumerate(lines):
        if " = " not in line or line.startswith("#"):
            continue
        path = tmp_path / "topology.toml"
        path.write_text("\n".join(lines[:number] + lines[number + 1 :]), encoding="utf-8")
        with pytest.raises(StartError, match=rf"key \S*{line.partition(' ')[0]}: is not set"):
            load_topology(path)
        removed += 1
    assert removed == len(wanted) > 60


def test_another_base_port_moves_everything() -> None:
    """A second mesh on a machine needs one number."""
    moved = load_topology(TOPOLOGY, base_port=20000)
    assert moved.port_of("edge") == 20000
    assert moved.port_of("ingest") - topology().port_of("ingest") == 20000 - topology().base_port


@pytest.mark.parametrize(
    ("host", "label"), [("vm", "vm"), ("Build-7.example.org", "build-7"), ("__", "local"), ("ä b", "b")]
)
def test_node_ids_name_host_and_index(host: str, label: str) -> None:
    """Node ids are made of what sockets and headers can carry, and each node has a port of its own."""
    first, second = gateway_nodes(topology(), host, 2)
    assert (first.node_id, second.node_id) == (f"gw-{label}-0", f"gw-{label}-1")
    assert (first.address, second.port) == ("127.0.0.1:7440", 7441)


@pytest.mark.parametrize("count", [0, 41])
def test_there_are_only_so_many_nodes(count: int) -> None:
    """More nodes than ports is refused."""
    with pytest.raises(StartError, match="1 to 40"):
        gateway_nodes(topology(), "vm", count)
