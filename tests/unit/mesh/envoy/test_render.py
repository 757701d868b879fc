"""All files together: one for each Envoy, everything explicit, written whole, and taken by Envoy itself."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from mesh.envoy.layout import Layout
from mesh.envoy.render import places, render, write
from mesh.errors import StartError
from tests.support.contract import descriptors
from tests.support.envoys import LAYOUT, clusters, nodes, rendered, topology, walk


def test_there_is_a_file_for_every_process_and_the_edge() -> None:
    """Services by their name, gateway nodes by theirs."""
    assert list(rendered()) == ["ingest", "fanout", "prefs", "presence", "delivery", "gw-test-0", "gw-test-1", "edge"]
    assert [place.process for place in places(topology(), nodes())] == [*rendered()][:-1]


def test_every_connection_to_another_machine_is_authenticated() -> None:
    """A cluster with a TCP address demands one exact identity; all others are Unix sockets."""
    for process in rendered():
        for name, cluster in clusters(process).items():
            tcp = cluster["type"] == "ORIGINAL_DST" or "socket_address" in json.dumps(cluster["load_assignment"])
            if not tcp:
                assert "transport_socket" not in cluster
                continue
            peer = name
            context = cluster["transport_socket"]["typed_config"]["common_tls_context"]
            names = context["combined_validation_context"]["default_validation_context"][
                "match_typed_subject_alt_names"
            ]
            assert names == [{"san_type": "URI", "matcher": {"exact": f"spiffe://heliograph.local/svc/{peer}"}}]
            assert context["tls_params"]["tls_minimum_protocol_version"] == "TLSv1_3"


def test_nothing_is_left_to_envoys_defaults() -> None:
    """Windows, breakers, time-outs and buffers stand in every file."""
    for process, document in rendered().items():
        for path, value in walk(document):
            if not isinstance(value, dict):
                continue
            if path.endswith("http2_protocol_options"):
                assert {"initial_stream_window_size", "initial_connection_window_size"} <= set(value), (process, path)
            if path.endswith(".clusters[]"):
                assert {"circuit_breakers", "connect_timeout", "per_connection_buffer_limit_bytes"} <= set(value)
            if path.endswith(".routes[].route"):
                assert "timeout" in value, (process, path)
            if str(value.get("@type", "")).endswith("HttpConnectionManager"):
                assert {"stream_idle_timeout", "request_timeout"} <= set(value), (process, path)


def test_sockets_are_their_owners_alone() -> None:
    """Whoever could open a sidecar's socket could speak as its service."""
    for document in rendered().values():
        for path, value in walk(document):
            if path.endswith(".address.pipe") and ".endpoint." not in path:
                assert isinstance(value, dict)
                assert value["mode"] == 0o600


def test_metrics_can_be_turned_off() -> None:
    """Without an offset there is no metrics listener and no way to the admin socket."""
    quiet = msgspec.structs.replace(
        topology(), metrics=msgspec.structs.replace(topology().metrics, envoy_offset=0, process_offset=0)
    )
    assert quiet.process_metrics_port(7411) == 0
    for document in render(quiet, descriptors(), LAYOUT, nodes()).values():
        assert ".admin" not in json.dumps(document["static_resources"])


def test_a_run_folder_that_is_too_long_stops_the_start() -> None:
    """The kernel would cut the path of a socket."""
    long = msgspec.structs.replace(LAYOUT, run_dir=Path("/" + "x" * 100))
    with pytest.raises(StartError, match="exceed 107 bytes"):
        render(topology(), descriptors(), long, nodes())


def _layout(folder: Path) -> Layout:
    return Layout(folder, folder / "certs", folder / "mesh", folder / "log")


def test_files_are_written_whole_and_can_be_written_again(run_dir: Path) -> None:
    """Each file is JSON; the descriptor set lies beside them."""
    for _ in range(2):
        files = write(topology(), descriptors(), _layout(run_dir), nodes())
    assert set(files) == set(rendered())
    for process, file in files.items():
        assert json.loads(file.read_text(encoding="utf-8"))["node"]["id"] == process
    assert _layout(run_dir).descriptors.read_bytes() == descriptors()
    assert len(list((run_dir / "mesh").iterdir())) == len(files) + 1


def test_a_folder_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    """The folder is named."""
    (tmp_path / "mesh").write_text("")
    with pytest.raises(StartError, match="mesh: File exists"):
        write(topology(), descriptors(), _layout(tmp_path), nodes())
