"""The Envoy at the edge: the one port that others reach, for REST, gRPC and WebSocket.

It authenticates producers that have certificates, strips every header that only the mesh may write, bounds sizes, rates
and connections, and turns REST into the contract's calls. Tokens are for the services to judge. Must not offer a method
that the contract does not open to producers or recipients.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from mesh.access import PRODUCER
from mesh.envoy.certs import PUBLIC, service_folder
from mesh.envoy.contract import Contract, Method, peers_of
from mesh.envoy.edge_replies import local_replies
from mesh.envoy.head import access_log, envoy_file
from mesh.envoy.layout import Layout
from mesh.envoy.pieces import (
    NEVER,
    Piece,
    any_of,
    denial,
    http_connection,
    http_filter_chain,
    peer_cluster,
    retry_unsent,
    router,
    seconds,
    server_tls,
    socket_address,
    typed,
    windows,
)
from mesh.envoy.sidecar import PRODUCER_HEADER, WEBSOCKET
from mesh.envoy.topology import EDGE, GATEWAY, GatewayNode, Rate, Topology

_BUFFER = "envoy.filters.http.buffer"
_TRANSCODER = "envoy.filters.http.grpc_json_transcoder"
_RATE = "envoy.filters.http.local_ratelimit"
_RATE_MESSAGE = "extensions.filters.http.local_ratelimit.v3.LocalRateLimit"
_OFF = "config.route.v3.FilterConfig"
_REMEMBERED_ADDRESSES = 10_000
# Headers by which the parts of the mesh speak to each other, and Envoy to itself.
_OWN_HEADERS = ("x-heliograph-", "x-envoy-", "x-forwarded-client-cert")


def edge_file(topology: Topology, contract: Contract, layout: Layout, nodes: Sequence[GatewayNode]) -> Piece:
    """Returns the edge's file.

    Args:
        topology: the numbers.
        contract: what is open to producers and recipients.
        layout: where the files are.
        nodes: the gateway nodes that take sessions.
    """
    services = [peer for peer in peers_of(EDGE, contract, topology) if peer != GATEWAY]
    clusters = [
        peer_cluster(
            topology,
            layout,
            caller=EDGE,
            peer=peer,
            addresses=[socket_address(topology.address, topology.port_of(peer))],
        )
        for peer in services
    ]
    # One for both kinds of sessions: a node's load is the number of all of them.
    gateways = [socket_address(topology.address, node.port) for node in nodes]
    sessions = peer_cluster(topology, layout, caller=EDGE, peer=GATEWAY, addresses=gateways, sessions=True)
    return envoy_file(
        topology,
        layout,
        EDGE,
        port=topology.port_of(EDGE),
        listeners=[_listener(topology, contract, layout)],
        clusters=[*clusters, sessions],
    )


def open_methods(topology: Topology, contract: Contract) -> list[tuple[str, Method]]:
    """Returns the methods that producers and recipients may call, each with the service that serves it."""
    return [
        (service, method)
        for service, serves in topology.serving().items()
        for method in contract.methods(serves)
        if method.roles & {PRODUCER, "recipient"}
    ]


# ---------------------------------------------------------------- listener


def _listener(topology: Topology, contract: Contract, layout: Layout) -> Piece:
    edge = topology.edge
    served = _http(topology, contract, layout)
    limit = typed(
        "envoy.filters.network.connection_limit",
        "extensions.filters.network.connection_limit.v3.ConnectionLimit",
        stat_prefix=EDGE,
        max_connections=edge.limits.connections,
    )
    public, mesh = layout.certs_dir / PUBLIC, service_folder(layout.certs_dir, EDGE)
    protocols, prefix = ["h2", "http/1.1"], topology.identity(f"{PRODUCER}/")
    demanding = server_tls(leaf=public, bundle=mesh, peer_prefix=prefix, protocols=protocols, internal=False)
    open_to_all = server_tls(leaf=public, bundle=None, peer_prefix=prefix, protocols=protocols, internal=False)
    handshake = {"transport_socket_connect_timeout": seconds(edge.timeouts.handshake)}
    return {
        "name": EDGE,
        "address": socket_address(edge.address, topology.port_of(EDGE)),
        "per_connection_buffer_limit_bytes": edge.limits.buffer_bytes,
        "socket_options": [
            {
                "level": socket.SOL_SOCKET,
                "name": socket.SO_SNDBUF,
                "int_value": edge.limits.send_buffer_bytes,
                "state": "STATE_PREBIND",
            }
        ],
        "listener_filters": [
            typed("envoy.filters.listener.tls_inspector", "extensions.filters.listener.tls_inspector.v3.TlsInspector")
        ],
        "listener_filters_timeout": seconds(edge.timeouts.handshake),
        "filter_chains": [
            {
                "name": "producers",
                "filter_chain_match": {"server_names": list(edge.producer_names)},
                **http_filter_chain(demanding, served, [limit]),
                **handshake,
            },
            {"name": "public", **http_filter_chain(open_to_all, served, [limit]), **handshake},
        ],
    }


def _http(topology: Topology, contract: Contract, layout: Layout) -> Piece:
    limits, timeouts, sizes = topology.edge.limits, topology.edge.timeouts, topology.windows
    mutations = [{"remove_on_match": {"key_matcher": {"prefix": prefix}}} for prefix in _OWN_HEADERS]
    strip = typed(
        "strip",
        "extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
        mutations=mutations,
    )
    return http_connection(
        EDGE,
        use_remote_address=True,
        normalize_path=True,
        merge_slashes=True,
        path_with_escaped_slashes_action="REJECT_REQUEST",
        http2_protocol_options={
            "max_concurrent_streams": limits.streams_per_connection,
            **windows(sizes.edge_stream_bytes, sizes.edge_connection_bytes),
        },
        common_http_protocol_options={
            "idle_timeout": seconds(timeouts.idle),
            "headers_with_underscores_action": "REJECT_REQUEST",
            "max_headers_count": limits.header_count,
        },
        max_request_headers_kb=limits.header_kib,
        request_headers_timeout=seconds(timeouts.headers),
        request_timeout=seconds(timeouts.request),
        stream_idle_timeout=seconds(timeouts.stream_idle),
        delayed_close_timeout=seconds(timeouts.delayed_close),
        early_header_mutation_extensions=[strip],
        local_reply_config=local_replies(),
        access_log=access_log(topology, layout, EDGE),
        route_config={"virtual_hosts": [_virtual_host(topology, contract)]},
        http_filters=[
            typed(_BUFFER, "extensions.filters.http.buffer.v3.Buffer", max_request_bytes=limits.body_bytes),
            _transcoder(topology, contract, layout),
            # Behind the transcoder, because the route is chosen again after it.
            typed(_RATE, _RATE_MESSAGE, stat_prefix=EDGE),
            router(),
        ],
    )


def _transcoder(topology: Topology, contract: Contract, layout: Layout) -> Piece:
    services = sorted({method.service for _, method in open_methods(topology, contract) if method.rest})
    return typed(
        _TRANSCODER,
        "extensions.filters.http.grpc_json_transcoder.v3.GrpcJsonTranscoder",
        proto_descriptor=str(layout.descriptors),
        services=services,
        convert_grpc_status=True,
        print_options={"stream_newline_delimited": True},
        request_validation_options={
            "reject_unknown_method": True,
            "reject_unknown_query_parameters": True,
            "reject_binding_body_field_collisions": True,
        },
    )


# ---------------------------------------------------------------- routes


def _virtual_host(topology: Topology, contract: Contract) -> Piece:
    producer = {
        "header": {"key": PRODUCER_HEADER, "value": "%DOWNSTREAM_PEER_URI_SAN%"},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }
    return {
        "name": "all",
        "domains": ["*"],
        # Absent for whoever showed no certificate.
        "request_headers_to_add": [producer],
        "routes": [
            _websocket_route(topology),
            *(_method_route(topology, service, method) for service, method in open_methods(topology, contract)),
            # At once, and not when a stream that never ends has come in whole.
            {**_nowhere(grpc={}), "typed_per_filter_config": {_BUFFER: any_of(_OFF, disabled=True)}},
            _nowhere(),
        ],
    }


def _nowhere(**match: Piece) -> Piece:
    return {"match": {"prefix": "/", **match}, "direct_response": denial(404, "nothing is served at this path")}


def _websocket_route(topology: Topology) -> Piece:
    off = any_of(_OFF, disabled=True)
    # A node that answers 503 has not taken the session: another one may.
    retry = retry_unsent(also="retriable-status-codes", codes=[503])
    return {
        # Envoy would make a GET of any method on the way to the node.
        "match": {
            "path": topology.gateway.websocket_path,
            "headers": [{"name": ":method", "string_match": {"exact": "GET"}}],
        },
        "route": {
            "cluster": GATEWAY,
            "timeout": NEVER,
            "idle_timeout": NEVER,
            "upgrade_configs": WEBSOCKET,
            "retry_policy": retry,
        },
        "typed_per_filter_config": {
            _BUFFER: off,
            _TRANSCODER: off,
            _RATE: _rate("websocket", topology.edge.rates.websocket),
        },
    }


def _method_route(topology: Topology, service: str, method: Method) -> Piece:
    rates = topology.edge.rates
    rate = rates.producer if PRODUCER in method.roles else rates.recipient
    if service == GATEWAY:
        # A call opens a session, and costs as much as an opening handshake.
        rate = rates.websocket
    prefix = method.path.rpartition("/")[2].lower()
    off = any_of(_OFF, disabled=True)
    common: Piece = {
        "match": {"path": method.path},
        "typed_per_filter_config": {_BUFFER: off, _RATE: _rate(prefix, rate)},
    }
    if method.streaming:
        # Who answers "unavailable" at once has not begun: another endpoint may.
        stream = {"cluster": service, "timeout": NEVER, "idle_timeout": NEVER}
        return {**common, "route": {**stream, "retry_policy": retry_unsent(also="unavailable")}}
    longest = seconds(topology.timeouts.unary)
    return {
        **common,
        "route": {
            "cluster": service,
            "timeout": NEVER,
            "max_stream_duration": {"max_stream_duration": longest, "grpc_timeout_header_max": longest},
            "retry_policy": retry_unsent(),
        },
        # REST brings no deadline.
        "request_headers_to_add": [
            {
                "header": {"key": "grpc-timeout", "value": f"{topology.timeouts.unary * 1000:.0f}m"},
                "append_action": "ADD_IF_ABSENT",
            }
        ],
    }


def _rate(prefix: str, rate: Rate) -> Piece:
    always = {"default_value": {"numerator": 100}}
    return any_of(
        _RATE_MESSAGE,
        stat_prefix=prefix,
        token_bucket=_bucket(rate.total),
        max_dynamic_descriptors=_REMEMBERED_ADDRESSES,
        rate_limits=[{"actions": [{"remote_address": {}}]}],
        descriptors=[{"entries": [{"key": "remote_address"}], "token_bucket": _bucket(rate.address)}],
        filter_enabled=always,
        filter_enforced=always,
        rate_limited_as_resource_exhausted=True,
        response_headers_to_add=[{"header": {"key": "retry-after", "value": "1"}}],
    )


def _bucket(per_second: int) -> Piece:
    return {"max_tokens": per_second, "tokens_per_fill": per_second, "fill_interval": "1s"}
