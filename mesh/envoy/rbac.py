"""Who may call what at a sidecar, rendered from the contract's access option: path, then the URI of the certificate.

The matcher form is used, with exact URIs: it looks at all URIs of a certificate as one text, so that a certificate with
two of them is nobody. Whatever is not named is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mesh.access import OPERATOR, PRODUCER
from mesh.envoy.contract import Method, callers_of
from mesh.envoy.pieces import Piece, any_of, typed
from mesh.envoy.topology import EDGE, Topology

_RBAC = "envoy.filters.http.rbac"
_HEALTH = "/grpc.health.v1.Health/"
_OPERATOR_ONLY = ("/grpc.reflection.", "/grpc.channelz.")


def access_filter(topology: Topology, methods: Iterable[Method], websocket_path: str = "") -> Piece:
    """Returns the HTTP filter that refuses whoever the contract does not name.

    Args:
        topology: names the services.
        methods: what the service behind the sidecar serves.
        websocket_path: where it takes WebSocket connections, from the edge only; "" takes none.
    """
    exact = {method.path: _one_of(topology, method.roles) for method in methods}
    prefixes = {_HEALTH: _one_of(topology, frozenset({*topology.service_names(), OPERATOR}))}
    prefixes |= {prefix: _one_of(topology, frozenset({OPERATOR})) for prefix in _OPERATOR_ONLY}
    if websocket_path:
        exact[websocket_path] = _one_of(topology, frozenset({EDGE}))
        # The path that is matched contains the query.
        prefixes[f"{websocket_path}?"] = exact[websocket_path]
    by_prefix = {
        "matcher": {
            "matcher_tree": {"input": _path(), "prefix_match_map": {"map": prefixes}},
            "on_no_match": _action("DENY"),
        }
    }
    matcher = {"matcher_tree": {"input": _path(), "exact_match_map": {"map": exact}}, "on_no_match": by_prefix}
    return typed(_RBAC, "extensions.filters.http.rbac.v3.RBAC", matcher=matcher)


def uri_pattern(topology: Topology, role: str) -> str:
    """Returns the pattern of the URIs of all producers or all operators."""
    domain = topology.trust_domain.replace(".", "[.]")
    path = "[a-z0-9-]+/[a-z0-9-]+" if role == PRODUCER else "[A-Za-z0-9][A-Za-z0-9._-]*"
    return f"spiffe://{domain}/{role}/{path}"


def _one_of(topology: Topology, roles: frozenset[str]) -> Piece:
    """Returns the decision for a path: allow these roles, deny all others."""
    services = callers_of(roles, topology)
    patterns = [uri_pattern(topology, role) for role in (PRODUCER, OPERATOR) if role in roles]
    decision = _by_pattern(patterns) if patterns else _action("DENY")
    if not services:
        return decision
    exact = {topology.identity(f"svc/{name}"): _action("ALLOW") for name in services}
    return {
        "matcher": {
            "matcher_tree": {"input": _uri(), "exact_match_map": {"map": exact}},
            "on_no_match": decision,
        }
    }


def _by_pattern(patterns: Sequence[str]) -> Piece:
    matchers = [
        {
            "predicate": {
                "single_predicate": {
                    "input": _uri(),
                    "value_match": {"safe_regex": {"google_re2": {}, "regex": pattern}},
                }
            },
            "on_match": _action("ALLOW"),
        }
        for pattern in patterns
    ]
    return {"matcher": {"matcher_list": {"matchers": matchers}, "on_no_match": _action("DENY")}}


def _action(verdict: str) -> Piece:
    name = verdict.lower()
    return {"action": {"name": name, "typed_config": any_of("config.rbac.v3.Action", name=name, action=verdict)}}


def _path() -> Piece:
    return typed("path", "type.matcher.v3.HttpRequestHeaderMatchInput", header_name=":path")


def _uri() -> Piece:
    return typed("uri", "extensions.matching.common_inputs.ssl.v3.UriSanInput")
