"""A sidecar's file: what it lets in, how it passes it on, and whom it reaches."""

from __future__ import annotations

import re
from typing import Any

import pytest

from svc_gateway.settings import GatewaySettings
from tests.support.envoys import clusters, http, listener, routes, topology

DISPATCH = "/heliograph.delivery.v1.DeliveryService/Dispatch"
CONNECT = "/heliograph.gateway.v1.ClientService/Connect"
DELIVER = "/heliograph.gateway.v1.GatewayService/Deliver"


def _tls(process: str) -> Any:
    return listener(process, "inbound")["filter_chains"][0]["transport_socket"]["typed_config"]


def _longest(route: Any) -> object:
    return route["route"].get("max_stream_duration", {}).get("max_stream_duration")


def test_it_demands_a_certificate_of_the_mesh() -> None:
    """Mutual TLS 1.3 of the own trust domain, and no session that outlives its certificate."""
    tls = _tls("prefs")
    assert tls["require_client_certificate"] is True
    assert tls["disable_stateless_session_resumption"] is tls["disable_stateful_session_resumption"] is True
    context = tls["common_tls_context"]["combined_validation_context"]["default_validation_context"]
    assert context["match_typed_subject_alt_names"][0]["matcher"] == {"prefix": "spiffe://heliograph.local/"}
    assert http("prefs", "inbound")["forward_client_cert_details"] == "SANITIZE_SET"
    assert http("prefs", "inbound")["normalize_path"] is False


def test_all_nodes_of_the_gateway_have_one_identity() -> None:
    """A node's certificate is the service's."""
    leaf = _tls("gw-test-1")["common_tls_context"]["tls_certificate_sds_secret_configs"][0]
    assert leaf["sds_config"]["path_config_source"]["path"] == "/state/certs/svc/gateway/leaf.json"


def test_only_the_edge_may_say_who_the_producer_is() -> None:
    """For every match there are two routes: from the edge, and from others with the header taken off."""
    found = routes("delivery", "inbound")
    assert len(found) % 2 == 0
    for edge, other in zip(found[::2], found[1::2], strict=True):
        (header,) = edge["match"]["headers"]
        assert header["string_match"]["suffix"] == ";URI=spiffe://heliograph.local/svc/edge"
        assert "request_headers_to_remove" not in edge
        assert other["request_headers_to_remove"] == ["x-heliograph-producer"]
        assert other["route"] == edge["route"]


@pytest.mark.parametrize(
    ("process", "name", "offset"), [("delivery", "inbound", "0.06s"), ("fanout", "outbound", "0.03s")]
)
def test_unary_calls_are_bounded_and_streams_are_not(process: str, name: str, offset: str) -> None:
    """A stream lives on; a unary call ends at the topology's limit, before its caller gives up."""
    found = routes(process, name, None if name == "inbound" else "delivery")
    streams = [route for route in found if route["match"].get("path") == DISPATCH]
    unary = [route for route in found if route["match"].get("prefix") == "/"]
    assert streams
    assert unary
    assert {_longest(route) for route in streams} == {None}
    assert {_longest(route) for route in unary} == {"10s"}
    for route in (*streams, *unary):
        assert route["route"]["timeout"] == "0s"
        assert route["route"]["max_stream_duration"]["grpc_timeout_header_offset"] == offset


def test_a_peer_is_reached_by_name_and_only_if_the_contract_says_so() -> None:
    """Virtual hosts are the peers; each has its cluster."""
    hosts = http("fanout", "outbound")["route_config"]["virtual_hosts"]
    assert [host["domains"] for host in hosts] == [["prefs.heliograph.local"], ["delivery.heliograph.local"]]
    assert set(clusters("fanout")) == {"local", "prefs", "delivery", "admin"}
    assert http("ingest", "outbound")["route_config"]["virtual_hosts"] == []


def test_only_what_was_never_sent_is_tried_again() -> None:
    """No retry repeats a call that may have begun."""
    (route,) = routes("fanout", "outbound", "prefs")
    assert route["route"]["retry_policy"]["retry_on"] == "connect-failure,refused-stream,reset-before-request"


def test_a_gateway_node_is_called_by_address_and_checked_by_name() -> None:
    """The caller's sidecar takes any address of the mesh's network; the node's own takes its own name only."""
    deliver, rest = routes("delivery", "outbound", "gateway")
    pattern = deliver["match"]["headers"][0]["string_match"]["safe_regex"]["regex"]
    assert re.fullmatch(pattern, "127.0.0.1:7440")
    for address in ("127.0.0.1", "127.0.0.1:", "10.0.0.1:7440", "localhost:7440", "127.0.0.1:7440,127.0.0.1:1"):
        assert not re.fullmatch(pattern, address)
    assert rest["direct_response"]["status"] == 503
    assert clusters("delivery")["gateway"]["original_dst_lb_config"]["http_header_name"] == "x-heliograph-node-addr"
    guards = [route for route in routes("gw-test-1", "inbound") if route["match"].get("path") == DELIVER][:2]
    assert guards[0]["match"]["headers"] == [{"name": "x-heliograph-node", "string_match": {"exact": "gw-test-1"}}]
    assert guards[1]["direct_response"]["status"] == 503


def test_sessions_over_grpc_have_a_connection_apart_from_links() -> None:
    """Nobody's name has to be said, and a client that does not read fills a small window, not the links' connection."""
    found = [route for route in routes("gw-test-1", "inbound") if route["match"].get("path") == CONNECT]
    assert [route["route"]["cluster"] for route in found] == ["local_sessions", "local_sessions"]
    assert all(route["route"]["idle_timeout"] == "0s" for route in found)
    assert not [route for route in routes("delivery", "outbound", "gateway") if route["match"].get("path") == CONNECT]
    known = clusters("gw-test-1")
    assert known["local_sessions"]["load_assignment"]["endpoints"] == known["local"]["load_assignment"]["endpoints"]
    (options,) = known["local_sessions"]["typed_extension_protocol_options"].values()
    http2 = options["explicit_http_config"]["http2_protocol_options"]
    assert http2["initial_stream_window_size"] == 65_536
    assert http2["initial_connection_window_size"] > 10_000 * http2["initial_stream_window_size"]
    assert "local_sessions" not in clusters("delivery")


@pytest.mark.parametrize(("process", "most"), [("gw-test-1", 65_536), ("delivery", 1_048_576)])
def test_a_nodes_sidecar_keeps_little_of_what_a_session_does_not_read(process: str, most: int) -> None:
    """A stream's window is what it keeps for a far side that does not read; sessions are thousands, peers a few."""
    assert http(process, "inbound")["http2_protocol_options"]["initial_stream_window_size"] == most


def test_websockets_go_to_the_nodes_own_socket() -> None:
    """The first route of a gateway's sidecar upgrades, and no other service has one."""
    first = routes("gw-test-0", "inbound")[0]
    assert first["match"] == {"path": topology().gateway.websocket_path}
    assert first["route"]["upgrade_configs"] == [{"upgrade_type": "websocket"}]
    endpoint = clusters("gw-test-0")["local_ws"]["load_assignment"]["endpoints"][0]["lb_endpoints"][0]
    assert endpoint["endpoint"]["address"]["pipe"]["path"] == "/run/hg/gw-test-0.ws"
    assert "local_ws" not in clusters("delivery")


def test_a_node_may_have_as_many_websockets_as_its_sidecar_connections() -> None:
    """Each has a connection of its own to the node; what limits calls to a service would stop them far below."""
    sidecar = clusters("gw-test-0")
    most = {name: sidecar[name]["circuit_breakers"]["thresholds"][0]["max_connections"] for name in sidecar}
    assert most["local_ws"] == topology().sidecar.connections
    assert most["local_ws"] >= GatewaySettings.model_fields["session_limit"].default
    assert most["local"] == topology().breakers.connections
