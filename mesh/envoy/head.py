"""What every Envoy's file begins with: identity, admin socket, logs, overload limits, metrics listener."""

from __future__ import annotations

from mesh.envoy.layout import Layout
from mesh.envoy.pieces import (
    Piece,
    denial,
    http_connection,
    http_filter_chain,
    local_cluster,
    pipe,
    router,
    socket_address,
    typed,
)
from mesh.envoy.topology import EDGE, Topology

_ADMIN = "admin"
_LOG = {"t": "%Y-%m-%dT%T.%e", "level": "%l", "logger": "%n", "msg": "%j"}
_ACCESS_LOG = {
    "t": "%START_TIME%",
    "method": "%REQ(:METHOD)%",
    # Without the query: it may hold a token.
    "path": "%PATH(NQ:ORIG_OR_PATH)%",
    "code": "%RESPONSE_CODE%",
    "grpc": "%GRPC_STATUS%",
    "flags": "%RESPONSE_FLAGS%",
    "why": "%RESPONSE_CODE_DETAILS%",
    "ms": "%DURATION%",
    "peer": "%DOWNSTREAM_PEER_URI_SAN%",
    "tls": "%UPSTREAM_TRANSPORT_FAILURE_REASON%",
    "traceparent": "%REQ(TRACEPARENT)%",
}


def envoy_file(
    topology: Topology, layout: Layout, process: str, *, port: int, listeners: list[Piece], clusters: list[Piece]
) -> Piece:
    """Returns a whole file.

    Args:
        topology: the numbers.
        layout: where the sockets are.
        process: the Envoy's name.
        port: where it listens; its metrics port follows from it.
        listeners: all but the one for metrics.
        clusters: all but the one for metrics.
    """
    metrics_port = topology.envoy_metrics_port(port)
    if metrics_port:
        listeners = [*listeners, _metrics_listener(topology, metrics_port)]
        clusters = [*clusters, local_cluster(topology, _ADMIN, layout.admin(process))]
    document: Piece = {
        "node": {"id": process, "cluster": process},
        "admin": {"address": pipe(layout.admin(process))},
        "application_log_config": {"log_format": {"json_format": _LOG}},
        "overload_manager": _overload(topology),
        "static_resources": {"listeners": listeners, "clusters": clusters},
    }
    if process != EDGE:
        # Half of 500 streams reset within a second is a normal burst of expired deadlines between services.
        layer = {"overload.premature_reset_total_stream_count": 100_000}
        document["layered_runtime"] = {"layers": [{"name": "static", "static_layer": layer}]}
    return document


def access_log(topology: Topology, layout: Layout, process: str) -> list[Piece]:
    """Returns the access log that the topology asks for: of all, of failures, or none."""
    kind = topology.sidecar.access_log
    if kind == "off":
        return []
    no_check = {
        "header_filter": {
            "header": {
                "name": "user-agent",
                "string_match": {"prefix": "Envoy/HC"},
                "invert_match": True,
                "treat_missing_header_as_empty": True,
            }
        }
    }
    failed = {
        "or_filter": {"filters": [_http_failure(), {"grpc_status_filter": {"statuses": ["OK"], "exclude": True}}]}
    }
    chosen = no_check if kind == "all" else {"and_filter": {"filters": [no_check, failed]}}
    log = typed(
        "envoy.access_loggers.file",
        "extensions.access_loggers.file.v3.FileAccessLog",
        path=layout.access_log(process),
        log_format={"json_format": _ACCESS_LOG},
    )
    return [{**log, "filter": chosen}]


def _http_failure() -> Piece:
    limit = {"default_value": 400, "runtime_key": "access_log.failure"}
    return {"status_code_filter": {"comparison": {"op": "GE", "value": limit}}}


def _overload(topology: Topology) -> Piece:
    heap = "envoy.resource_monitors.fixed_heap"
    return {
        "refresh_interval": "0.25s",
        "resource_monitors": [
            typed(
                "envoy.resource_monitors.global_downstream_max_connections",
                "extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
                max_active_downstream_connections=topology.sidecar.connections,
            ),
            typed(
                heap,
                "extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig",
                max_heap_size_bytes=topology.sidecar.heap_bytes,
            ),
        ],
        "actions": [
            {"name": f"envoy.overload_actions.{action}", "triggers": [{"name": heap, "threshold": {"value": share}}]}
            for action, share in (("shrink_heap", 0.9), ("stop_accepting_requests", 0.95))
        ],
    }


def _metrics_listener(topology: Topology, port: int) -> Piece:
    routes = [
        {
            "match": {"path": "/metrics"},
            "route": {"cluster": _ADMIN, "timeout": "5s", "prefix_rewrite": "/stats/prometheus?usedonly"},
        },
        {"match": {"prefix": "/"}, "direct_response": denial(404, "only /metrics is here")},
    ]
    served = http_connection(
        "metrics",
        codec_type="HTTP1",
        stream_idle_timeout="30s",
        request_timeout="5s",
        route_config={"virtual_hosts": [{"name": "metrics", "domains": ["*"], "routes": routes}]},
        http_filters=[router()],
    )
    return {
        "name": "metrics",
        "address": socket_address(topology.address, port),
        # Metrics must be there when connections are exhausted.
        "ignore_global_conn_limit": True,
        "filter_chains": [http_filter_chain(None, served)],
    }
