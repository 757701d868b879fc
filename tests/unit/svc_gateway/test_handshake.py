"""Which requests open a WebSocket, and what the others are told."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc_gateway.handshake import Answer, Options, answer, not_now

OPTIONS = Options(allowed_origins=frozenset({"https://app.example.com"}))
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
HEADERS = {
    "Host": "gateway.example.com",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": KEY,
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Protocol": "heliograph.v1.json",
}


def head(line: str = "GET /v1/ws HTTP/1.1", **changes: str | None) -> bytes:
    """Returns a request; a change names a header with underscores, None leaves it out."""
    fields: dict[str, str | None] = dict(HEADERS)
    fields.update((name.replace("_", "-"), value) for name, value in changes.items())
    lines = [line, *(f"{name}: {value}" for name, value in fields.items() if value is not None)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def told(given: Answer) -> tuple[int, str]:
    """Returns a refusal's HTTP status and reason, after checking that it is a whole response and the last one."""
    assert not given.accepted
    top, _, body = given.response.partition(b"\r\n\r\n")
    lines = top.decode().split("\r\n")
    fields = dict(line.split(": ", 1) for line in lines[1:])
    assert fields["Content-Type"] == "application/json"
    assert fields["Connection"] == "close"
    assert int(fields["Content-Length"]) == len(body)
    return int(lines[0].split(" ")[1]), json.loads(body)["reason"]


def test_a_request_with_a_known_subprotocol_is_accepted() -> None:
    """The answer proves that the key was read and names the subprotocol, and nothing is compressed."""
    given = answer(head(Sec_WebSocket_Extensions="permessage-deflate; client_max_window_bits"), OPTIONS)
    assert given.accepted
    assert given.subprotocol == "heliograph.v1.json"
    text = given.response.decode()
    assert text.startswith("HTTP/1.1 101 ")
    assert "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in text
    assert "Sec-WebSocket-Protocol: heliograph.v1.json\r\n" in text
    assert "Extensions" not in text


def test_lower_case_headers_are_read() -> None:
    """A sidecar writes header names in lower case."""
    assert answer(head().replace(b"Sec-WebSocket", b"sec-websocket").replace(b"Upgrade", b"upgrade"), OPTIONS).accepted


@pytest.mark.parametrize("line", ["GET /v1/ws?x=1 HTTP/1.1", "GET /v1/ws? HTTP/1.1"])
def test_a_query_is_ignored(line: str) -> None:
    """Only the path counts."""
    assert answer(head(line), OPTIONS).accepted


def test_of_several_subprotocols_only_a_known_one_is_answered() -> None:
    """A token smuggled through the subprotocol list never comes back; the serialised form is preferred."""
    offered = "bearer.secret, heliograph.v1.json, heliograph.v1.proto"
    given = answer(head(Sec_WebSocket_Protocol=offered), OPTIONS)
    assert given.subprotocol == "heliograph.v1.proto"
    assert b"secret" not in given.response


@pytest.mark.parametrize("offered", [None, "heliograph.v2.json", "HELIOGRAPH.V1.JSON", "heliograph.v1.jsonx"])
def test_without_a_common_subprotocol_the_known_ones_are_named(offered: str | None) -> None:
    """A client of another version learns what this server speaks."""
    given = answer(head(Sec_WebSocket_Protocol=offered), OPTIONS)
    assert told(given) == (400, "VERSION_UNSUPPORTED")
    assert b"heliograph.v1.proto, heliograph.v1.json" in given.response


@pytest.mark.parametrize("origin", [None, "https://app.example.com"])
def test_listed_origins_and_clients_without_one_may_connect(origin: str | None) -> None:
    """Browsers send the header always, other clients never."""
    assert answer(head(Origin=origin), OPTIONS).accepted


@pytest.mark.parametrize(
    "origin",
    [
        "",
        "null",
        "*",
        "https://evil.example",
        "http://app.example.com",
        "https://app.example.com:8443",
        "https://app.example.com:443",
        "https://app.example.com/",
        "https://app.example.com.evil.example",
        "https://evilapp.example.com",
        "https://example.com",
        "https://sub.app.example.com",
        "HTTPS://APP.EXAMPLE.COM",
        "https://App.example.com",
        "https://app.example.com https://evil.example",
        "https://app.example.com, https://evil.example",
        "https://app.example.com@evil.example",
        "https://app.ex\xe4mple.com",
        "https://xn--pp-example.com",
    ],
)
def test_other_origins_are_refused(origin: str) -> None:
    """Nothing but the exact value counts: no prefix, suffix, port, case or list."""
    assert told(answer(head(Origin=origin), OPTIONS)) == (403, "ORIGIN_REFUSED")


def test_a_second_origin_does_not_hide_behind_a_listed_one() -> None:
    """Two headers are no browser's request."""
    twice = head(Origin="https://app.example.com", origin="https://evil.example")
    assert told(answer(twice, OPTIONS)) == (403, "ORIGIN_REFUSED")


def test_null_is_refused_even_when_listed() -> None:
    """Every sandboxed page has this origin, so allowing it would allow anybody."""
    options = Options(allowed_origins=frozenset({"null"}))
    assert told(answer(head(Origin="null"), options)) == (403, "ORIGIN_REFUSED")


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (head("GET / HTTP/1.1"), 404),
        (head("GET /v1/ws/ HTTP/1.1"), 404),
        (head("GET /v1/WS HTTP/1.1"), 404),
        (head("POST /v1/ws HTTP/1.1"), 405),
        (head("GET /v1/ws HTTP/1.0"), 505),
        (head(Upgrade=None), 426),
        (head(Upgrade="h2c"), 426),
        (head(Connection="close"), 426),
        (head(Sec_WebSocket_Key=None), 400),
        (head(Sec_WebSocket_Key="short"), 400),
        (b"\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
    ],
)
def test_what_opens_no_websocket_is_told_why(request_head: bytes, status: int) -> None:
    """Wrong paths, methods, versions and headers get the HTTP status that fits."""
    assert told(answer(request_head, OPTIONS)) == (status, "FIELD_INVALID")


def test_another_version_of_the_protocol_is_told_which_one_is_spoken() -> None:
    """As RFC 6455, section 4.2.2, demands: a client that knows several can come back with that one."""
    refused = answer(head(Sec_WebSocket_Version="12"), OPTIONS)
    assert told(refused) == (426, "VERSION_UNSUPPORTED")
    assert b"\r\nSec-WebSocket-Version: 13\r\n" in refused.response


@pytest.mark.parametrize(
    ("forwarded", "seen"),
    [(None, ""), ("10.1.2.3", "10.1.2.3"), ("1.1.1.1, 10.1.2.3", "10.1.2.3"), ("x" * 500, "x" * 64)],
)
def test_the_address_that_the_last_proxy_saw_is_kept(forwarded: str | None, seen: str) -> None:
    """What a client writes in front of it cannot hide where it comes from."""
    assert answer(head(X_Forwarded_For=forwarded), OPTIONS).forwarded == seen


def test_conformance_clients_need_no_subprotocol() -> None:
    """The switch for tests opens without one."""
    given = answer(head(Sec_WebSocket_Protocol=None), Options(any_subprotocol=True))
    assert given.accepted
    assert given.subprotocol == ""


@pytest.mark.parametrize(
    ("delay", "whole", "exact"), [(1.25, 2, "1.250s"), (2.0003, 2, "2.000s"), (2.0007, 3, "2.001s")]
)
def test_overload_says_when_to_come_back(delay: float, whole: int, exact: str) -> None:
    """In whole seconds for HTTP, to the millisecond in the body, and both the same."""
    given = not_now(delay)
    assert told(given) == (503, "OVERLOADED")
    assert f"\r\nRetry-After: {whole}\r\n".encode() in given.response
    assert f'"retryDelay":"{exact}"'.encode() in given.response


@given(noise=st.binary(max_size=200), place=st.integers(0, 250))
def test_noise_is_answered_not_raised(noise: bytes, place: int) -> None:
    """Whatever a request contains, it is accepted or gets a whole HTTP response."""
    request = head()
    noisy = answer(request[:place] + noise.replace(b"\r\n\r\n", b"") + request[place:], OPTIONS)
    assert noisy.response.startswith(b"HTTP/1.1 101 " if noisy.accepted else b"HTTP/1.1 4") or told(noisy)[0] == 505
