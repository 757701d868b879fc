"""The edge's file: what is open, what is taken off, what is bounded."""

from __future__ import annotations

from typing import Any

from mesh.envoy.contract import read_contract
from mesh.envoy.edge import open_methods
from tests.support.contract import access_of, descriptors, services
from tests.support.envoys import clusters, http, listener, routes, topology

CONNECT = "/heliograph.gateway.v1.ClientService/Connect"


def _method_routes() -> dict[str, Any]:
    return {route["match"]["path"]: route for route in routes("edge", "edge") if "path" in route["match"]}


def test_only_methods_for_producers_and_recipients_have_a_route() -> None:
    """What the contract keeps inside does not exist outside."""
    table = access_of(tuple(services()))
    wanted = {path for path, roles in table.items() if roles & {"producer", "recipient"}}
    contract = read_contract(descriptors(), topology().access_option)
    assert {method.path for _, method in open_methods(topology(), contract)} == wanted
    assert set(_method_routes()) == wanted | {topology().gateway.websocket_path}
    assert routes("edge", "edge")[-1]["direct_response"]["status"] == 404


def test_every_open_route_has_a_rate_for_each_address() -> None:
    """Publishing, reading and opening sessions are bounded apart."""
    rates = topology().edge.rates
    for path, route in _method_routes().items():
        limit = route["typed_per_filter_config"]["envoy.filters.http.local_ratelimit"]
        opens_session = path in ("/v1/ws", CONNECT)
        rate = rates.websocket if opens_session else rates.producer if "Publish" in path else rates.recipient
        assert limit["token_bucket"]["max_tokens"] == rate.total
        assert limit["descriptors"][0]["token_bucket"]["max_tokens"] == rate.address


def test_headers_of_the_mesh_are_taken_off_before_anything_else() -> None:
    """Neither identity nor Envoy's own controls can be written from outside."""
    (strip,) = http("edge", "edge")["early_header_mutation_extensions"]
    prefixes = [one["remove_on_match"]["key_matcher"]["prefix"] for one in strip["typed_config"]["mutations"]]
    assert prefixes == ["x-heliograph-", "x-envoy-", "x-forwarded-client-cert"]


def test_producers_are_told_apart_by_the_name_they_call() -> None:
    """One chain demands a producer's certificate, the other asks for none; both lead to the same routes."""
    producers, public = listener("edge", "edge")["filter_chains"]
    assert producers["filter_chain_match"] == {"server_names": ["producers.localhost"]}
    assert "filter_chain_match" not in public
    demanding = producers["transport_socket"]["typed_config"]
    assert demanding["require_client_certificate"] is True
    names = demanding["common_tls_context"]["combined_validation_context"]["default_validation_context"]
    assert names["match_typed_subject_alt_names"][0]["matcher"] == {"prefix": "spiffe://heliograph.local/producer/"}
    open_to_all = public["transport_socket"]["typed_config"]
    assert open_to_all["require_client_certificate"] is False
    assert "combined_validation_context" not in open_to_all["common_tls_context"]
    assert producers["filters"] == public["filters"]


def test_the_body_limit_stands_before_the_transcoder_and_the_rate_behind_it() -> None:
    """Only in this order the one counts bytes of REST and the other sees the method's route."""
    names = [one["name"].rpartition(".")[2] for one in http("edge", "edge")["http_filters"]]
    assert names == ["buffer", "grpc_json_transcoder", "local_ratelimit", "router"]


def test_rest_gets_a_deadline() -> None:
    """A request without one is bounded like any unary call."""
    for path, route in _method_routes().items():
        if path not in ("/v1/ws", CONNECT):
            (added,) = route["request_headers_to_add"]
            assert added["header"] == {"key": "grpc-timeout", "value": "10000m"}
            assert route["route"]["max_stream_duration"]["max_stream_duration"] == "10s"


def test_sessions_over_grpc_are_spread_like_websockets_and_live_as_long() -> None:
    """The same nodes; nothing ends a stream that is idle, and who is refused at once gets another node."""
    found = _method_routes()[CONNECT]["route"]
    assert found["cluster"] == _method_routes()["/v1/ws"]["route"]["cluster"] == "gateway"
    assert (found["timeout"], found["idle_timeout"]) == ("0s", "0s")
    assert "max_stream_duration" not in found
    assert "unavailable" in found["retry_policy"]["retry_on"].split(",")
    assert _method_routes()[CONNECT]["typed_per_filter_config"]["envoy.filters.http.buffer"]["disabled"] is True


def test_a_connection_without_a_request_is_let_go_within_a_minute() -> None:
    """A client that finishes TLS and says nothing costs its buffers no longer; sessions are requests and stay."""
    assert http("edge", "edge")["common_http_protocol_options"]["idle_timeout"] == "60s"
    assert all(chain["transport_socket_connect_timeout"] == "5s" for chain in listener("edge", "edge")["filter_chains"])
    assert _method_routes()["/v1/ws"]["route"]["idle_timeout"] == "0s"


def test_sessions_are_spread_over_checked_nodes() -> None:
    """All nodes are endpoints, checked more often than others, with windows for thousands of sessions."""
    cluster = clusters("edge")["gateway"]
    endpoints = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    ports = [one["endpoint"]["address"]["socket_address"]["port_value"] for one in endpoints]
    assert ports == [7440, 7441]
    assert cluster["lb_policy"] == "LEAST_REQUEST"
    assert cluster["health_checks"][0]["interval"] == "1s"
    assert cluster["health_checks"][0]["unhealthy_interval"] == "0.5s"
    (options,) = cluster["typed_extension_protocol_options"].values()
    http2 = options["explicit_http_config"]["http2_protocol_options"]
    assert (http2["allow_connect"], http2["initial_stream_window_size"]) == (True, 65536)
    assert http2["initial_connection_window_size"] > 10_000 * http2["initial_stream_window_size"]


def test_the_edge_keeps_the_guard_against_resets() -> None:
    """Clients outside get no more patience with resets than Envoy gives by itself."""
    from tests.support.envoys import rendered

    assert "layered_runtime" not in rendered()["edge"]
    assert "layered_runtime" in rendered()["prefs"]
