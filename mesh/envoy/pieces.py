"""The parts that sidecars and the edge have in common, each a small function that returns a piece of configuration.

Must not decide who may call whom. Every number comes from the topology.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from mesh.envoy.certs import service_folder
from mesh.envoy.layout import Layout
from mesh.envoy.topology import Topology

# A JSON object on its way to Envoy.
Piece: TypeAlias = dict[str, object]

_HCM = "envoy.filters.network.http_connection_manager"
NEVER = "0s"
# What was certainly not begun by the far side may be tried again; nothing else.
_UNSENT = "connect-failure,refused-stream,reset-before-request"
_TLS13 = {"tls_minimum_protocol_version": "TLSv1_3", "tls_maximum_protocol_version": "TLSv1_3"}
_PUBLIC_TLS = {"tls_minimum_protocol_version": "TLSv1_2", "tls_maximum_protocol_version": "TLSv1_3"}
# A resumed session would outlive the certificate it began with.
_NO_RESUMPTION: Piece = {
    "disable_stateless_session_resumption": True,
    "disable_stateful_session_resumption": True,
}


def typed(name: str, message: str, **fields: object) -> Piece:
    """Returns an extension with its configuration; `message` is the type below `envoy.`."""
    return {"name": name, "typed_config": any_of(message, **fields)}


def any_of(message: str, **fields: object) -> Piece:
    """Returns a message that says its own type."""
    return {"@type": f"type.googleapis.com/envoy.{message}", **fields}


def seconds(value: float) -> str:
    """Returns a duration as Envoy reads it."""
    return f"{value:g}s"


def socket_address(address: str, port: int) -> Piece:
    """Returns a TCP address."""
    return {"socket_address": {"address": address, "port_value": port}}


def pipe(path: str) -> Piece:
    """Returns a Unix socket that only its owner may use."""
    return {"pipe": {"path": path, "mode": 0o600}}


# ---------------------------------------------------------------- TLS


def secret(folder: Path, name: str) -> Piece:
    """Returns a reference to a secret that is read again when its files change."""
    source = {"resource_api_version": "V3", "path_config_source": {"path": str(folder / f"{name}.json")}}
    return {"name": name, "sds_config": source}


def server_tls(*, leaf: Path, bundle: Path | None, peer_prefix: str, protocols: Sequence[str], internal: bool) -> Piece:
    """Returns the TLS of a listener.

    Args:
        leaf: the folder of the certificate it shows.
        bundle: the folder with the roots that its clients must come from; None asks for no certificate.
        peer_prefix: how the URI in a client's certificate must begin.
        protocols: ALPN names.
        internal: between our own Envoys only the newest TLS is spoken.
    """
    common: Piece = {
        "tls_params": _TLS13 if internal else _PUBLIC_TLS,
        "alpn_protocols": list(protocols),
        "tls_certificate_sds_secret_configs": [secret(leaf, "leaf")],
    }
    if bundle is not None:
        common["combined_validation_context"] = _validation(bundle, {"prefix": peer_prefix})
    tls = any_of(
        "extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        require_client_certificate=bundle is not None,
        common_tls_context=common,
        **_NO_RESUMPTION,
    )
    return {"name": "envoy.transport_sockets.tls", "typed_config": tls}


def client_tls(folder: Path, peer_uri: str) -> Piece:
    """Returns the TLS of a cluster: one exact identity at the far side."""
    common: Piece = {
        "tls_params": _TLS13,
        "alpn_protocols": ["h2"],
        "tls_certificate_sds_secret_configs": [secret(folder, "leaf")],
        "combined_validation_context": _validation(folder, {"exact": peer_uri}),
    }
    return typed(
        "envoy.transport_sockets.tls",
        "extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        common_tls_context=common,
    )


def _validation(folder: Path, matcher: Piece) -> Piece:
    return {
        "default_validation_context": {"match_typed_subject_alt_names": [{"san_type": "URI", "matcher": matcher}]},
        "validation_context_sds_secret_config": secret(folder, "bundle"),
    }


# ---------------------------------------------------------------- clusters


def windows(stream: int, connection: int) -> Piece:
    """Returns HTTP/2 flow-control windows."""
    return {"initial_stream_window_size": stream, "initial_connection_window_size": connection}


def http2_upstream(topology: Topology, *, own: bool = False, sessions: bool = False) -> Piece:
    """Returns how a cluster speaks HTTP/2.

    Args:
        topology: the numbers.
        own: the cluster is the own service's socket, which is never replaced.
        sessions: sessions travel inside, as WebSockets or gRPC streams.
    """
    sizes, health = topology.windows, topology.health
    stream, connection = sizes.stream_bytes, sizes.connection_bytes
    if sessions:
        stream, connection = sizes.websocket_stream_bytes, sizes.websocket_connection_bytes
    options = windows(stream, connection)
    if not own:
        keepalive = {"interval": seconds(health.keepalive_interval), "timeout": seconds(health.keepalive_timeout)}
        options["connection_keepalive"] = keepalive
    if sessions:
        options["allow_connect"] = True
    upstream = any_of(
        "extensions.upstreams.http.v3.HttpProtocolOptions",
        explicit_http_config={"http2_protocol_options": options},
    )
    if not own:
        age = {"max_connection_duration": seconds(topology.timeouts.connection_age), "idle_timeout": NEVER}
        upstream["common_http_protocol_options"] = age
    return {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": upstream}


def base_cluster(topology: Topology, name: str, kind: str, policy: str, *, connections: int = 0) -> Piece:
    """Returns what every cluster has.

    Args:
        topology: the numbers.
        name: of the cluster.
        kind: how its endpoints are found.
        policy: how one of them is chosen.
        connections: to it; those of the breakers when left out.
    """
    limits = topology.breakers
    threshold = {
        "max_connections": connections or limits.connections,
        "max_pending_requests": limits.pending_requests,
        "max_requests": limits.requests,
        "max_retries": limits.retries,
    }
    return {
        "name": name,
        "type": kind,
        "lb_policy": policy,
        "connect_timeout": seconds(topology.timeouts.connect),
        "per_connection_buffer_limit_bytes": topology.sidecar.buffer_bytes,
        "circuit_breakers": {"thresholds": [threshold]},
    }


def endpoints(name: str, addresses: Sequence[Piece]) -> Piece:
    """Returns a fixed list of endpoints."""
    return {
        "cluster_name": name,
        "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}} for address in addresses]}],
    }


def local_cluster(topology: Topology, name: str, path: str) -> Piece:
    """Returns the cluster of a socket on this machine that speaks HTTP/1.1."""
    return {
        **base_cluster(topology, name, "STATIC", "ROUND_ROBIN"),
        "load_assignment": endpoints(name, [{"pipe": {"path": path}}]),
    }


def peer_cluster(
    topology: Topology,
    layout: Layout,
    *,
    caller: str,
    peer: str,
    addresses: Sequence[Piece],
    sessions: bool = False,
) -> Piece:
    """Returns the cluster of another service's sidecars: checked, balanced, and of exactly one identity.

    Args:
        topology: the numbers.
        layout: where the certificates are.
        caller: whose certificate is shown.
        peer: the service at the far side.
        addresses: its sidecars.
        sessions: the cluster carries sessions.
    """
    health = topology.health
    interval = seconds(health.websocket_interval if sessions else health.interval)
    checks = {
        "timeout": seconds(health.timeout),
        "interval": interval,
        "no_traffic_interval": interval,
        "unhealthy_interval": seconds(health.unhealthy_interval),
        "unhealthy_threshold": 1,
        "healthy_threshold": 1,
        "grpc_health_check": {"service_name": ""},
    }
    cluster = base_cluster(topology, peer, "STATIC", "LEAST_REQUEST")
    if sessions:
        cluster["per_connection_buffer_limit_bytes"] = topology.edge.limits.buffer_bytes
    return {
        **cluster,
        "common_lb_config": {"healthy_panic_threshold": {"value": health.panic_percent}},
        "health_checks": [checks],
        "outlier_detection": {
            "consecutive_gateway_failure": health.ejection_failures,
            "enforcing_consecutive_gateway_failure": 100,
            "interval": seconds(health.ejection_interval),
            "base_ejection_time": seconds(health.ejection_time),
            "max_ejection_percent": health.ejection_percent,
        },
        "typed_extension_protocol_options": http2_upstream(topology, sessions=sessions),
        "load_assignment": endpoints(peer, addresses),
        "transport_socket": client_tls(service_folder(layout.certs_dir, caller), topology.identity(f"svc/{peer}")),
    }


# ---------------------------------------------------------------- routes and listeners


def retry_unsent(*, also: str = "", codes: Sequence[int] = ()) -> Piece:
    """Returns a policy that tries another endpoint for what no endpoint has begun.

    Args:
        also: further conditions.
        codes: answers that mean the same.
    """
    policy: Piece = {
        "retry_on": _UNSENT + (f",{also}" if also else ""),
        "num_retries": 2,
        "retry_host_predicate": [
            typed(
                "envoy.retry_host_predicates.previous_hosts",
                "extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate",
            )
        ],
        # A dead host has the fewest requests: of two hosts it is chosen three times in four, until it is ejected.
        "host_selection_retry_max_attempts": 64,
    }
    if codes:
        policy["retriable_status_codes"] = list(codes)
    return policy


def router() -> Piece:
    """Returns the last HTTP filter; it tells nobody how long an upstream took."""
    return typed("envoy.filters.http.router", "extensions.filters.http.router.v3.Router", suppress_envoy_headers=True)


def http_filter_chain(tls: Piece | None, http: Piece, before: Sequence[Piece] = ()) -> Piece:
    """Returns a filter chain that ends in HTTP.

    Args:
        tls: its transport socket; None on a Unix socket.
        http: what `http_connection` returned.
        before: network filters that come first.
    """
    chain: Piece = {"filters": [*before, {"name": _HCM, "typed_config": http}]}
    if tls is not None:
        chain["transport_socket"] = tls
    return chain


def http_connection(prefix: str, **fields: object) -> Piece:
    """Returns how a listener takes HTTP: the settings of Envoy's connection manager."""
    return any_of(
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix=prefix,
        generate_request_id=False,
        **fields,
    )


def denial(code: int, text: str) -> Piece:
    """Returns an answer that Envoy gives by itself."""
    return {"status": code, "body": {"inline_string": text}}
