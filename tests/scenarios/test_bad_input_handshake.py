"""Connections that do not become sessions: wrong requests, wrong pages, silence, and wrong first words."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import pytest

from heliograph.gateway.v1.client_frames_pb2 import ConnectRequest, Hello
from heliograph.type.v1.notification_pb2 import MARK_KIND_READ, MARK_KIND_UNSPECIFIED, NotificationRef
from tests.support.device import mark_of
from tests.support.raw_socket import JSON, PROTO, End, Reply, hello, opened, opening, plain
from tests.support.site import ORIGIN, Site

ID = "00000000-0000-4000-8000-000000000001"


async def _ask(site: Site, head: bytes) -> Reply:
    async with plain(site.live_url, site.tls()) as raw:
        return await raw.request(head)


# ---------------------------------------------------------------- requests


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "http://app.example",
        "https://app.example:8443",
        "https://app.example/",
        "https://APP.example",
        "https://app.example.evil.example",
        "https://evil-app.example",
        "https://sub.app.example",
        "https://app.example, https://evil.example",
        "https://app.example\r\norigin: https://evil.example",
    ],
)
async def test_a_page_of_another_origin_gets_no_socket(site: Site, origin: str) -> None:
    """Origins are compared as they are; whatever resembles one that is allowed is another one."""
    async with site.undisturbed():
        reply = await _ask(site, opening(origin=origin))
        assert reply.status == 403, reply
        assert msgspec.json.decode(reply.body)["reason"] == "ORIGIN_REFUSED"


async def test_a_page_of_an_allowed_origin_gets_one(site: Site) -> None:
    """So that the refusals above are about the origin, and the chosen subprotocol is all that is echoed."""
    reply = await _ask(site, opening(origin=ORIGIN, subprotocol=f"secret-token, {PROTO}"))
    assert (reply.status, reply.headers["sec-websocket-protocol"]) == (101, PROTO)


class Odd(NamedTuple):
    """One request that opens nothing, and the answer."""

    name: str
    head: bytes
    statuses: frozenset[int]
    reason: str = ""


# The edge answers some of these itself; a service's reason is then not to be had.
ODD = (
    Odd("an unknown path", opening("/v1/sockets"), frozenset({404})),
    Odd("a longer path", opening("/v1/ws/"), frozenset({404})),
    Odd("an unknown subprotocol", opening(subprotocol="graphql-ws"), frozenset({400}), "VERSION_UNSUPPORTED"),
    Odd("a later subprotocol", opening(subprotocol="heliograph.v2.json"), frozenset({400}), "VERSION_UNSUPPORTED"),
    Odd("no subprotocol", opening(subprotocol=""), frozenset({400}), "VERSION_UNSUPPORTED"),
    Odd("an old version", opening(sec_websocket_version="8"), frozenset({426}), "VERSION_UNSUPPORTED"),
    Odd("a key that is none", opening(sec_websocket_key="short"), frozenset({400}), "FIELD_INVALID"),
    Odd("no key", opening(sec_websocket_key=""), frozenset({400}), "FIELD_INVALID"),
    Odd("no upgrade", opening(upgrade="", connection=""), frozenset({426}), "FIELD_INVALID"),
    Odd("too many headers", opening(x_large="a" * 20_000), frozenset({431})),
    Odd("another method", opening().replace(b"GET", b"POST"), frozenset({400, 404, 405})),
    Odd(
        "an upgrade to HTTP/2",
        opening(upgrade="h2c", connection="Upgrade, HTTP2-Settings", http2_settings="AAMAAABkAAQAAP__"),
        frozenset({400, 403, 404, 426}),
    ),
    Odd(
        "a body of two lengths",
        opening(content_length="4", transfer_encoding="chunked") + b"0\r\n\r\nGET /v1/ws HTTP/1.1\r\n\r\n",
        frozenset({400}),
    ),
    Odd("what is no HTTP", b"\x16\x03\x01 hello\r\n\r\n", frozenset({400})),
)


@pytest.mark.parametrize("odd", ODD, ids=[odd.name.replace(" ", "-") for odd in ODD])
async def test_an_odd_request_opens_nothing(site: Site, odd: Odd) -> None:
    """A status of HTTP, and a reason where it reached a node."""
    async with site.undisturbed():
        reply = await _ask(site, odd.head)
        assert reply.status in odd.statuses, reply
        if odd.reason:
            assert msgspec.json.decode(reply.body)["reason"] == odd.reason


# ---------------------------------------------------------------- silence


async def test_who_says_nothing_is_let_go(site: Site) -> None:
    """Not a byte, half a request, and no hello: each ends after a few seconds, and costs nobody anything."""
    async with site.undisturbed(), plain(site.live_url, None) as mute, plain(site.live_url, site.tls()) as half:
        await half.send(opening()[:40])
        async with opened(site.live_url, site.tls()) as raw:
            ends = await asyncio.gather(raw.end(), mute.is_gone(), half.is_gone())
    assert ends[0] == End(4002, "SLOW_CONSUMER")


# ---------------------------------------------------------------- first words


def _numbered(frame: str, number: int = 1) -> str:
    return frame.replace("{", f'{{"frameNumber": {number}, ', 1)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (_numbered('{"ping": {}}'), "FRAME_INVALID"),
        (_numbered('{"mark": {"kind": "MARK_KIND_READ", "refs": [{"notificationId": "x"}]}}'), "FRAME_INVALID"),
        (_numbered('{"reauthenticate": {"token": "x"}}'), "FRAME_INVALID"),
        (_numbered('{"hello": {"token": "x"}}', 2), "FRAME_INVALID"),
        ('{"hello": {"token": "x", "deviceId": "x"}}', "FRAME_INVALID"),
        (_numbered('{"dance": {}}'), "FRAME_UNKNOWN"),
        ("{}", "FRAME_UNKNOWN"),
        ("", "FRAME_INVALID"),
        ("hello", "FRAME_INVALID"),
        ("[]", "FRAME_INVALID"),
        ('{"hello": "alice"}', "FRAME_INVALID"),
        ('{"hello": {"token": 1}}', "FRAME_INVALID"),
        ('{"hello": ' * 5_000, "FRAME_INVALID"),
        ('{"frameNumber": 99999999999999999999}', "FRAME_INVALID"),
        (b"\xff\xff\xff", "FRAME_INVALID"),
    ],
)
async def test_first_words_other_than_hello_end_the_connection(site: Site, said: str | bytes, reason: str) -> None:
    """It is told why, and is not to come back with the same."""
    async with site.undisturbed(), opened(site.live_url, site.tls(), subprotocol=JSON) as raw:
        await raw.say(said)
        assert await raw.end() == End(4503, reason, (reason,))


BAD_HELLOS: Mapping[str, tuple[Hello, str]] = {
    "no-device": (Hello(), "hello.device_id"),
    "a-device-with-a-slash": (Hello(device_id="a/b"), "hello.device_id"),
    "a-device-of-two-lines": (Hello(device_id="a\n"), "hello.device_id"),
    "a-long-device": (Hello(device_id="a" * 129), "hello.device_id"),
    "a-long-name": (Hello(device_id="a", client_name="a" * 101), "hello.client_name"),
    "too-many-refs": (
        Hello(device_id="a", received_refs=[NotificationRef(notification_id=ID)] * 501),
        "hello.received_refs",
    ),
    "a-ref-that-is-none": (
        Hello(device_id="a", received_refs=[NotificationRef(notification_id="alice")]),
        "hello.received_refs[0]",
    ),
    "too-many-marks": (
        Hello(device_id="a", unconfirmed_marks=[mark_of(MARK_KIND_READ, ID)] * 101),
        "hello.unconfirmed_marks",
    ),
    "a-mark-without-a-kind": (
        Hello(device_id="a", unconfirmed_marks=[mark_of(MARK_KIND_UNSPECIFIED, ID)]),
        "hello.unconfirmed_marks[0].kind",
    ),
}


@pytest.mark.parametrize("name", BAD_HELLOS)
async def test_a_bad_hello_ends_the_connection(site: Site, name: str) -> None:
    """The field is named, although the token is good; no mark of it is stored."""
    said, field = BAD_HELLOS[name]
    request = ConnectRequest(hello=said, frame_number=1)
    request.hello.token = site.cluster.token("alice")
    async with site.undisturbed(), opened(site.live_url, site.tls(), subprotocol=PROTO) as raw:
        await raw.say(request.SerializeToString())
        refusal = (await raw.until("refused")).refused.refusal
        assert refusal.reason == "FIELD_INVALID"
        assert field in [violation.field for violation in refusal.violations]
        assert await raw.end() == End(4503, "FIELD_INVALID")


async def test_hello_by_a_producer_is_refused(site: Site) -> None:
    """Sessions are recipients'."""
    async with site.undisturbed(), opened(site.live_url, site.tls()) as raw:
        await raw.say(hello(site.cluster.token("demo", role="producer")))
        assert await raw.end() == End(4501, "TOKEN_INVALID", ("TOKEN_INVALID",))
