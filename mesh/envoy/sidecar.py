"""The Envoy beside one process: what it lets in from the mesh, and whom it reaches for its service.

Inbound it checks certificate, method and identity and passes on over the service's Unix socket. Outbound it knows each
peer by name and by its one exact identity. Must not balance over gateway nodes: those are called by address.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from mesh.envoy.certs import service_folder
from mesh.envoy.contract import Contract, Method, addressed, peers_of
from mesh.envoy.head import access_log, envoy_file
from mesh.envoy.layout import Layout
from mesh.envoy.pieces import (
    NEVER,
    Piece,
    base_cluster,
    client_tls,
    denial,
    endpoints,
    http2_upstream,
    http_connection,
    http_filter_chain,
    local_cluster,
    peer_cluster,
    pipe,
    retry_unsent,
    router,
    seconds,
    server_tls,
    socket_address,
    typed,
    windows,
)
from mesh.envoy.rbac import access_filter
from mesh.envoy.topology import EDGE, Topology

WEBSOCKET = [{"upgrade_type": "websocket"}]
NODE_HEADER = "x-heliograph-node"
NODE_ADDRESS_HEADER = "x-heliograph-node-addr"
PRODUCER_HEADER = "x-heliograph-producer"

_LOCAL = "local"
_LOCAL_WEBSOCKET = "local_ws"
_LOCAL_SESSIONS = "local_sessions"
# Streams of the standard services; all else of theirs is unary.
_STANDARD_STREAMS: Sequence[Piece] = (
    {"path": "/grpc.health.v1.Health/Watch"},
    {"prefix": "/grpc.reflection."},
)


class Place(msgspec.Struct, frozen=True):
    """One process with its sidecar."""

    process: str
    service: str
    port: int


def sidecar_file(topology: Topology, contract: Contract, layout: Layout, place: Place) -> Piece:
    """Returns the file of one process's sidecar."""
    methods = contract.methods(topology.serving()[place.service])
    peers = peers_of(place.service, contract, topology)
    local = {
        **local_cluster(topology, _LOCAL, layout.socket(place.process)),
        "typed_extension_protocol_options": http2_upstream(topology, own=True),
    }
    clusters = [local, *(_peer(topology, layout, place.service, peer) for peer in peers)]
    if addressed(place.service):
        clusters += [_websocket_cluster(topology, layout, place.process), _sessions_cluster(topology, layout, place)]
    return envoy_file(
        topology,
        layout,
        place.process,
        port=place.port,
        listeners=[
            _inbound(topology, layout, place, methods),
            _outbound(topology, contract, layout, place, peers),
        ],
        clusters=clusters,
    )


# ---------------------------------------------------------------- inbound


def _inbound(topology: Topology, layout: Layout, place: Place, methods: Sequence[Method]) -> Piece:
    websocket = topology.gateway.websocket_path if addressed(place.service) else ""
    check = typed(
        "envoy.filters.http.health_check",
        "extensions.filters.http.health_check.v3.HealthCheck",
        pass_through_mode=True,
        headers=[{"name": ":path", "string_match": {"exact": "/grpc.health.v1.Health/Check"}}],
    )
    host = {"name": _LOCAL, "domains": ["*"], "routes": _inbound_routes(topology, place, methods, websocket)}
    sizes = topology.windows
    # What a stream takes from who sends it also keeps for who does not read: a window of a peer's size for each slow
    # session would fill this Envoy's heap.
    stream = sizes.websocket_stream_bytes if addressed(place.service) else sizes.stream_bytes
    served = http_connection(
        "inbound",
        codec_type="HTTP2",
        http2_protocol_options={
            "max_concurrent_streams": topology.sidecar.streams_per_connection,
            **windows(stream, sizes.connection_bytes),
            "allow_connect": True,
            "override_stream_error_on_invalid_http_message": True,
            # The default codec closes a connection with many resets, and every stream on it.
            "use_oghttp2_codec": True,
        },
        forward_client_cert_details="SANITIZE_SET",
        set_current_client_cert_details={"uri": True},
        stream_idle_timeout=NEVER,
        request_timeout=NEVER,
        # Paths are judged as they were sent.
        normalize_path=False,
        path_with_escaped_slashes_action="REJECT_REQUEST",
        common_http_protocol_options={"headers_with_underscores_action": "REJECT_REQUEST", "idle_timeout": NEVER},
        access_log=access_log(topology, layout, place.process),
        route_config={"virtual_hosts": [host]},
        http_filters=[check, access_filter(topology, methods, websocket), router()],
    )
    folder = service_folder(layout.certs_dir, place.service)
    prefix = topology.identity("")
    tls = server_tls(leaf=folder, bundle=folder, peer_prefix=prefix, protocols=["h2"], internal=True)
    return {
        "name": "inbound",
        "address": socket_address(topology.address, place.port),
        "per_connection_buffer_limit_bytes": topology.sidecar.buffer_bytes,
        "filter_chains": [http_filter_chain(tls, served)],
    }


def _inbound_routes(topology: Topology, place: Place, methods: Sequence[Method], websocket: str) -> list[Piece]:
    offset = topology.timeouts.inbound_offset
    routes: list[Piece] = []
    if addressed(place.service):
        upgrade = {"cluster": _LOCAL_WEBSOCKET, "timeout": NEVER, "idle_timeout": NEVER, "upgrade_configs": WEBSOCKET}
        routes.append({"match": {"path": websocket}, "route": upgrade})
        routes += _guard(place.process, methods)
    for method in methods:
        if method.streaming:
            cluster = _LOCAL_SESSIONS if addressed(place.service) and _from_outside(method) else _LOCAL
            routes += _from_edge_or_peer(topology, {"path": method.path}, _stream(cluster, offset))
    for match in _STANDARD_STREAMS:
        routes += _from_edge_or_peer(topology, match, _stream(_LOCAL, offset))
    return [*routes, *_from_edge_or_peer(topology, {"prefix": "/"}, _unary(topology, _LOCAL, offset))]


def _guard(process: str, methods: Iterable[Method]) -> list[Piece]:
    """Returns routes that let a call by name through to this very node, and answer for any other."""
    named = [{"name": NODE_HEADER, "string_match": {"exact": process}}]
    routes: list[Piece] = []
    for path in sorted({method.path for method in methods if method.streaming and not _from_outside(method)}):
        forward = {"cluster": _LOCAL, "timeout": NEVER, "idle_timeout": NEVER}
        routes.append({"match": {"path": path, "headers": named}, "route": forward})
        routes.append({"match": {"path": path}, "direct_response": denial(503, "not this gateway node")})
    return routes


def _from_outside(method: Method) -> bool:
    return bool(method.roles & {EDGE, "producer", "recipient"})


def _from_edge_or_peer(topology: Topology, match: Piece, route: Piece) -> list[Piece]:
    """Returns two routes: only the edge may say which producer is behind it."""
    edge = {"name": "x-forwarded-client-cert", "string_match": {"suffix": f";URI={topology.identity('svc/edge')}"}}
    return [
        {"match": {**match, "grpc": {}, "headers": [edge]}, "route": route},
        {"match": {**match, "grpc": {}}, "route": route, "request_headers_to_remove": [PRODUCER_HEADER]},
    ]


# ---------------------------------------------------------------- outbound


def _outbound(topology: Topology, contract: Contract, layout: Layout, place: Place, peers: Sequence[str]) -> Piece:
    served = http_connection(
        "outbound",
        codec_type="HTTP2",
        http2_protocol_options={
            "max_concurrent_streams": topology.sidecar.outbound_streams,
            **windows(topology.windows.stream_bytes, topology.windows.connection_bytes),
            "use_oghttp2_codec": True,
        },
        stream_idle_timeout=NEVER,
        request_timeout=NEVER,
        common_http_protocol_options={"idle_timeout": NEVER},
        route_config={"virtual_hosts": [_peer_host(topology, contract, peer) for peer in peers]},
        http_filters=[router()],
    )
    return {
        "name": "outbound",
        "address": pipe(layout.outbound(place.process)),
        "per_connection_buffer_limit_bytes": topology.sidecar.buffer_bytes,
        "filter_chains": [http_filter_chain(None, served)],
    }


def _peer_host(topology: Topology, contract: Contract, peer: str) -> Piece:
    methods = contract.methods(topology.serving()[peer])
    routes = _addressed_routes(topology, peer, methods) if addressed(peer) else _peer_routes(topology, peer, methods)
    return {"name": peer, "domains": [topology.host(peer)], "routes": routes}


def _peer_routes(topology: Topology, peer: str, methods: Sequence[Method]) -> list[Piece]:
    offset = topology.timeouts.outbound_offset
    routes: list[Piece] = [
        {
            "match": {"path": method.path, "grpc": {}},
            "route": {**_stream(peer, offset), "retry_policy": retry_unsent()},
        }
        for method in methods
        if method.streaming
    ]
    unary = {**_unary(topology, peer, offset), "retry_policy": retry_unsent()}
    return [*routes, {"match": {"prefix": "/", "grpc": {}}, "route": unary}]


def _addressed_routes(topology: Topology, peer: str, methods: Sequence[Method]) -> list[Piece]:
    pattern = f"{topology.address.replace('.', '[.]')}:[0-9]{{1,5}}"
    address = {"name": NODE_ADDRESS_HEADER, "string_match": {"safe_regex": {"regex": pattern}}}
    routes: list[Piece] = [
        {
            "match": {"path": method.path, "headers": [address]},
            "route": {"cluster": peer, "timeout": NEVER, "idle_timeout": NEVER},
        }
        for method in methods
        if method.streaming and not _from_outside(method)
    ]
    return [*routes, {"match": {"prefix": "/"}, "direct_response": denial(503, "no such node address")}]


def _unary(topology: Topology, cluster: str, offset: float) -> Piece:
    longest = seconds(topology.timeouts.unary)
    # `timeout` would be ignored beside these, also for calls without a deadline.
    duration = {
        "max_stream_duration": longest,
        "grpc_timeout_header_max": longest,
        "grpc_timeout_header_offset": seconds(offset),
    }
    return {"cluster": cluster, "timeout": NEVER, "idle_timeout": NEVER, "max_stream_duration": duration}


def _stream(cluster: str, offset: float) -> Piece:
    duration = {"grpc_timeout_header_max": NEVER, "grpc_timeout_header_offset": seconds(offset)}
    return {"cluster": cluster, "timeout": NEVER, "idle_timeout": NEVER, "max_stream_duration": duration}


# ---------------------------------------------------------------- clusters


def _peer(topology: Topology, layout: Layout, caller: str, peer: str) -> Piece:
    if not addressed(peer):
        address = socket_address(topology.address, topology.port_of(peer))
        return peer_cluster(topology, layout, caller=caller, peer=peer, addresses=[address])
    return {
        **base_cluster(topology, peer, "ORIGINAL_DST", "CLUSTER_PROVIDED"),
        "cleanup_interval": "60s",
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": NODE_ADDRESS_HEADER},
        "typed_extension_protocol_options": http2_upstream(topology),
        "transport_socket": client_tls(service_folder(layout.certs_dir, caller), topology.identity(f"svc/{peer}")),
    }


def _websocket_cluster(topology: Topology, layout: Layout, process: str) -> Piece:
    # HTTP/1.1: a connection for each session.
    connections = topology.sidecar.connections
    return {
        **base_cluster(topology, _LOCAL_WEBSOCKET, "STATIC", "ROUND_ROBIN", connections=connections),
        "per_connection_buffer_limit_bytes": topology.edge.limits.buffer_bytes,
        "load_assignment": endpoints(_LOCAL_WEBSOCKET, [{"pipe": {"path": layout.websocket(process)}}]),
    }


def _sessions_cluster(topology: Topology, layout: Layout, place: Place) -> Piece:
    """Returns the cluster of the own socket for sessions.

    A connection apart: each session that does not read fills a window, and must not fill that of the links.
    """
    return {
        **local_cluster(topology, _LOCAL_SESSIONS, layout.socket(place.process)),
        "per_connection_buffer_limit_bytes": topology.edge.limits.buffer_bytes,
        "typed_extension_protocol_options": http2_upstream(topology, own=True, sessions=True),
    }
