"""The access table of a sidecar, judged by walking the rendered matcher as Envoy does."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mesh.envoy.rbac import uri_pattern
from tests.support.contract import access_of
from tests.support.envoys import http, topology

DOMAIN = "spiffe://heliograph.local/"


def _matcher(process: str) -> Any:
    filters = http(process, "inbound")["http_filters"]
    return next(one for one in filters if one["name"] == "envoy.filters.http.rbac")["typed_config"]["matcher"]


def _decide(matcher: Any, path: str, uris: str) -> str:
    """Walks a matcher: exact and prefix maps first, then lists, then what stands for no match."""
    found = None
    if "matcher_tree" in matcher:
        tree = matcher["matcher_tree"]
        value = path if tree["input"]["name"] == "path" else uris
        if "exact_match_map" in tree:
            found = tree["exact_match_map"]["map"].get(value)
        else:
            fitting = [prefix for prefix in tree["prefix_match_map"]["map"] if value.startswith(prefix)]
            found = tree["prefix_match_map"]["map"][max(fitting, key=len)] if fitting else None
    for one in matcher.get("matcher_list", {}).get("matchers", ()):
        pattern = one["predicate"]["single_predicate"]["value_match"]["safe_regex"]["regex"]
        if found is None and re.fullmatch(pattern, uris):
            found = one["on_match"]
    found = found or matcher["on_no_match"]
    return _decide(found["matcher"], path, uris) if "matcher" in found else str(found["action"]["name"])


def _uri(role: str) -> str:
    named = {"producer": "producer/acme/demo", "operator": "operator/dev", "recipient": "svc/edge"}
    return DOMAIN + named.get(role, f"svc/{role}")


@pytest.mark.parametrize("service", ["ingest", "fanout", "prefs", "presence", "delivery"])
def test_each_method_is_open_to_its_callers_only(service: str) -> None:
    """For every method and every role the rendered table decides as the option says."""
    table = access_of(topology().serving()[service])
    callers = [*topology().service_names(), "producer", "operator"]
    for path, roles in table.items():
        for caller in callers:
            allowed = caller in roles or (caller == "edge" and bool(roles & {"producer", "recipient"}))
            assert _decide(_matcher(service), path, _uri(caller)) == ("allow" if allowed else "deny"), (path, caller)


def test_what_is_not_named_is_refused() -> None:
    """Unknown methods, other services' methods and changed spellings are closed to all."""
    matcher = _matcher("prefs")
    for path in ("/", "/heliograph.ingest.v1.IngestService/Publish", "/heliograph.prefs.v1.PrefsService/BatchResolve/"):
        assert _decide(matcher, path, _uri("fanout")) == "deny"
    for uri in ("", _uri("fanoutx"), f"{_uri('fanout')},{_uri('prefs')}", _uri("fanout").upper()):
        assert _decide(matcher, "/heliograph.prefs.v1.PrefsService/BatchResolve", uri) == "deny"


def test_standard_services_are_open_as_everywhere() -> None:
    """Health to all services and operators, reflection and channelz to operators."""
    matcher = _matcher("prefs")
    for caller in (*topology().service_names(), "operator"):
        assert _decide(matcher, "/grpc.health.v1.Health/Check", _uri(caller)) == "allow"
        for path in (
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            "/grpc.channelz.v1.Channelz/GetServer",
        ):
            assert _decide(matcher, path, _uri(caller)) == ("allow" if caller == "operator" else "deny")
    assert _decide(matcher, "/grpc.health.v1.Health/Check", _uri("producer")) == "deny"


def test_websockets_are_for_the_edge() -> None:
    """Only the edge upgrades, with or without a query, and only at a gateway."""
    for path in ("/v1/ws", "/v1/ws?x=1"):
        assert _decide(_matcher("gw-test-0"), path, _uri("edge")) == "allow"
        assert _decide(_matcher("gw-test-0"), path, _uri("delivery")) == "deny"
        assert _decide(_matcher("prefs"), path, _uri("edge")) == "deny"
    assert _decide(_matcher("gw-test-0"), "/v1/wsx", _uri("edge")) == "deny"


@pytest.mark.parametrize(
    ("role", "path", "fits"),
    [
        ("producer", "producer/acme/demo", True),
        ("producer", "producer/acme", False),
        ("producer", "producer/acme/demo/x", False),
        ("producer", "producer/acme/", False),
        ("producer", "producer/acme/demo,spiffe://heliograph.local/producer/acme/x", False),
        ("operator", "operator/dev", True),
        ("operator", "operator/ada.l_1", True),
        ("operator", "operator/", False),
        ("operator", "operator/a/b", False),
    ],
)
def test_patterns_take_whole_identities(role: str, path: str, fits: bool) -> None:
    """A pattern fits one identity of its kind, never two and never a part."""
    assert bool(re.fullmatch(uri_pattern(topology(), role), DOMAIN + path)) is fits
    assert not re.fullmatch(uri_pattern(topology(), role), f"spiffe://heliographXlocal/{path}")
