"""What a session may not send: broken frames end it with a code of the protocol, wrong ones are refused.

A session that was refused something goes on. Either way nothing is stored, and the sessions next door do not notice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from google.protobuf import json_format

from heliograph.gateway.v1.client_frames_pb2 import ClientMark, ConnectRequest, ConnectResponse, Hello, Reauthenticate
from heliograph.type.v1.notification_pb2 import (
    MARK_KIND_HIDDEN,
    MARK_KIND_READ,
    MARK_KIND_RECEIVED,
    MARK_KIND_UNSPECIFIED,
    NotificationRef,
)
from svc_gateway import wire
from tests.support.connections import closing, masked
from tests.support.device import mark_of
from tests.support.publishing import publish_request
from tests.support.raw_socket import PROTO, RawSocket, hello, opened
from tests.support.site import OTHER_TENANT, Site
from tests.support.wait import until

CONTINUATION, TEXT, BINARY, CLOSE, PING = wire.CONTINUATION, wire.TEXT, wire.BINARY, wire.CLOSE, wire.PING
LARGEST = 64 * 1024
# A machine under load may be slow to register a session; it is then read to once more.
QUIET = {"replayed"}
UNKNOWN = "00000000-0000-4000-8000-000000000001"


class Talker:
    """A session of serialised messages whose frames are numbered for it."""

    def __init__(self, raw: RawSocket) -> None:
        self.raw = raw
        self.number = 1

    async def say(self, request: ConnectRequest) -> None:
        """Sends a frame under the next number."""
        self.number += 1
        request.frame_number = self.number
        await self.raw.say(request.SerializeToString())

    async def refusal(self, request: ConnectRequest) -> str:
        """Sends a frame, returns the reason for which it is refused, and checks that the session goes on."""
        await self.say(request)
        refused = (await self.raw.until("refused")).refused
        assert refused.frame_number == self.number
        await self.goes_on()
        return refused.refusal.reason

    async def goes_on(self) -> None:
        """Checks that the session answers, and says nothing else."""
        request = ConnectRequest()
        request.ping.SetInParent()
        await self.say(request)
        assert set(await self.raw.kinds_until("pong")) <= QUIET


@asynccontextmanager
async def _session(site: Site, recipient: str, *, received: tuple[str, ...] = ()) -> AsyncIterator[Talker]:
    """A session that has its window."""
    refs = [NotificationRef(notification_id=id_, revision=1) for id_ in received]
    said = Hello(token=site.cluster.token(recipient), device_id="stranger", received_refs=refs)
    async with opened(site.live_url, site.tls(), subprotocol=PROTO) as raw:
        await raw.say(ConnectRequest(hello=said, frame_number=1).SerializeToString())
        await raw.until("replayed")
        yield Talker(raw)


# ---------------------------------------------------------------- broken frames


def _unmasked(payload: bytes) -> bytes:
    return bytes((0x80 | TEXT, len(payload))) + payload


def _huge(length: int) -> bytes:
    return bytes((0x80 | BINARY, 0xFF)) + length.to_bytes(8, "big") + bytes(4)


BROKEN = {
    "unmasked": (_unmasked(b'{"ping": {}}'), 1002),
    "reserved-bits": (masked(TEXT | 0x40, b"{}"), 1002),
    "an-unknown-opcode": (masked(0x3, b"{}"), 1002),
    "an-unknown-control-opcode": (masked(0xB), 1002),
    "a-fragment-of-nothing": (masked(CONTINUATION, b"{}"), 1002),
    "a-message-inside-a-message": (masked(TEXT, b"{", final=False) + masked(TEXT, b"}"), 1002),
    "a-ping-in-fragments": (masked(PING, b"a", final=False), 1002),
    "a-long-ping": (masked(PING, b"a" * 126), 1002),
    "half-a-closing-code": (masked(CLOSE, b"\x03"), 1002),
    "a-closing-code-that-is-none": (closing(1005), 1002),
    "a-closing-reason-that-is-no-text": (masked(CLOSE, b"\x03\xe8\xff"), 1007),
    "text-that-is-no-utf8": (masked(TEXT, b'{"ping": "\xff\xfe"}'), 1007),
    "a-surrogate": (masked(TEXT, b"\xed\xa0\x80"), 1007),
    "bad-utf8-in-fragments": (masked(TEXT, b"\xc3", final=False) + masked(CONTINUATION, b"("), 1007),
    "utf8-without-an-end": (masked(TEXT, b"{\xe2\x82"), 1007),
    "one-byte-too-large": (masked(BINARY, bytes(LARGEST + 1)), 1009),
    "too-large-by-its-header": (_huge(2**62), 1009),
    "too-large-in-fragments": (
        masked(BINARY, bytes(LARGEST), final=False) + masked(CONTINUATION, b"\x00"),
        1009,
    ),
    "too-many-fragments": (
        masked(BINARY, b"\x00", final=False) + masked(CONTINUATION, b"\x00", final=False) * 256,
        1008,
    ),
    "fragments-of-nothing": (masked(BINARY, final=False) + masked(CONTINUATION, final=False) * 300, 1008),
    # In whatever second each arrives, one of two has more than fifty.
    "a-flood-of-pings": (masked(PING) * 200, 1008),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("greeted", [False, True], ids=["before-hello", "after-hello"])
async def test_a_broken_frame_ends_the_connection(site: Site, name: str, greeted: bool) -> None:
    """With the close code of RFC 6455, before hello as after it."""
    data, code = BROKEN[name]
    async with site.undisturbed(), opened(site.live_url, site.tls()) as raw:
        if greeted:
            await raw.say(hello(site.cluster.token("alice")))
            await raw.until("replayed")
        await raw.send(data)
        assert (await raw.end()).code == code


async def test_fragments_within_the_limits_are_a_message(site: Site) -> None:
    """So that the refusals above are about the limits: a hello in pieces, with a ping in between."""
    said = hello(site.cluster.token("alice")).encode()
    async with opened(site.live_url, site.tls()) as raw:
        await raw.send(masked(TEXT, said[:10], final=False) + masked(PING, b"a"))
        await raw.send(masked(CONTINUATION, said[10:20], final=False) + masked(CONTINUATION, said[20:]))
        await raw.until("welcome")


# ---------------------------------------------------------------- wrong frames


async def test_a_second_hello_is_refused_and_the_session_goes_on(site: Site) -> None:
    """A session begins once, whoever the second token is of."""
    async with site.undisturbed(), _session(site, "alice") as talker:
        for recipient in ("alice", "bob"):
            again = Hello(token=site.cluster.token(recipient), device_id="stranger")
            assert await talker.refusal(ConnectRequest(hello=again)) == "FRAME_INVALID"


async def test_a_frame_that_does_not_rise_is_refused(site: Site) -> None:
    """Numbers confirm marks: one that was used names another frame already."""
    async with site.undisturbed(), _session(site, "alice") as talker:
        for number in (1, 0, -5):
            request = ConnectRequest(frame_number=number)
            request.ping.SetInParent()
            await talker.raw.say(request.SerializeToString())
            refused = (await talker.raw.until("refused")).refused
            assert (refused.frame_number, refused.refusal.reason) == (number, "FRAME_INVALID")
        await talker.goes_on()


@pytest.mark.parametrize(
    ("junk", "reason"),
    [
        (b"\xff\xff\xff\xff", "FRAME_INVALID"),
        (b"\x12\x7f", "FRAME_INVALID"),
        (b"", "FRAME_UNKNOWN"),
        # Field 9 of a later version, and the number that every frame has.
        (b"\x4a\x00\x78\x02", "FRAME_UNKNOWN"),
        ("{", "FRAME_INVALID"),
        ('{"mark": []}', "FRAME_INVALID"),
        ('{"mark": {"kind": "MARK_KIND_EATEN"}, "frameNumber": 2}', "FIELD_INVALID"),
        ('{"dance": {}, "frameNumber": 2}', "FRAME_UNKNOWN"),
        ("[" * 60_000, "FRAME_INVALID"),
    ],
)
async def test_what_is_no_frame_is_refused_and_the_session_goes_on(site: Site, junk: bytes | str, reason: str) -> None:
    """A client of a later version, or a broken one, keeps its session."""
    async with site.undisturbed(), _session(site, "alice") as talker:
        await talker.raw.say(junk)
        assert (await talker.raw.until("refused")).refused.refusal.reason == reason
        talker.number += 1
        await talker.goes_on()


async def test_who_sends_nothing_but_junk_is_closed(site: Site) -> None:
    """Patience ends after twenty frames."""
    async with site.undisturbed(), _session(site, "alice") as talker:
        for _ in range(30):
            await talker.raw.say(b"\xff")
        end = await talker.raw.end()
        assert (end.code, end.reason) == (4503, "FRAME_INVALID")
        assert end.refused == ("FRAME_INVALID",) * 21


@pytest.mark.parametrize(
    ("mark", "reason"),
    [
        (ClientMark(kind=MARK_KIND_READ), "FIELD_INVALID"),
        (mark_of(MARK_KIND_UNSPECIFIED, UNKNOWN), "FIELD_INVALID"),
        (mark_of(MARK_KIND_READ, *[UNKNOWN] * 501), "FIELD_INVALID"),
        (mark_of(MARK_KIND_READ, "alice"), "FIELD_INVALID"),
        (mark_of(MARK_KIND_READ, UNKNOWN), "NOTIFICATION_UNKNOWN"),
        (mark_of(MARK_KIND_RECEIVED, UNKNOWN), "NOTIFICATION_UNKNOWN"),
    ],
    ids=["no-refs", "no-kind", "501-refs", "no-id", "unknown", "unknown-ack"],
)
async def test_a_mark_that_cannot_be_is_refused(site: Site, mark: ClientMark, reason: str) -> None:
    """Nothing of it is stored, and the session goes on."""
    async with site.undisturbed(), _session(site, "alice") as talker:
        assert await talker.refusal(ConnectRequest(mark=mark)) == reason


async def test_an_id_that_was_not_given_to_the_session_cannot_be_marked(site: Site) -> None:
    """Neither another's nor together with one's own, and not one of the same recipient id elsewhere."""
    own = (await site.publish(publish_request("Own", to=["kate"]))).event_id

    async def arrived() -> bool:
        return len((await site.inbox("kate")).items) == 1

    await until(arrived, 10.0, "kate's own is in her inbox")
    async with _session(site, "kate") as talker, opened(site.live_url, site.tls()) as foreign, site.undisturbed():
        for ids in (site.gifts, (own, site.gifts[0])):
            mark = ConnectRequest(mark=mark_of(MARK_KIND_HIDDEN, *ids))
            assert await talker.refusal(mark) == "NOTIFICATION_UNKNOWN"
        await foreign.say(hello(site.cluster.token("alice", tenant=OTHER_TENANT)))
        await foreign.until("replayed")
        stolen = ConnectRequest(mark=mark_of(MARK_KIND_HIDDEN, site.gifts[0]), frame_number=2)
        await foreign.say(json_format.MessageToJson(stolen))
        assert (await foreign.until("refused")).refused.refusal.reason == "NOTIFICATION_UNKNOWN"
    assert [item.notification.notification_id for item in (await site.inbox("kate")).items] == [own]


async def test_an_id_of_another_that_hello_claims_changes_ones_own_inbox_only(site: Site) -> None:
    """A client may say that it received anything; what it marks is a row of its own, and there is none."""
    async with _session(site, "leo", received=site.gifts) as talker, site.undisturbed():
        await talker.say(ConnectRequest(mark=mark_of(MARK_KIND_HIDDEN, *site.gifts)))
        assert (await talker.raw.until("confirmed")).confirmed.frame_number == talker.number
    assert list((await site.inbox("leo")).items) == []


async def test_a_fresh_token_of_another_is_refused(site: Site) -> None:
    """Another recipient, another tenant, another role, no token: the session stays whose it was."""
    cluster = site.cluster
    tokens = {
        cluster.token("bob"): "CALLER_NOT_ALLOWED",
        cluster.token("alice", tenant=OTHER_TENANT): "CALLER_NOT_ALLOWED",
        cluster.token("alice", role="producer"): "TOKEN_INVALID",
        cluster.token("alice", lifetime=-60.0): "TOKEN_EXPIRED",
        "": "TOKEN_INVALID",
    }
    async with site.undisturbed(), _session(site, "alice") as talker:
        for token, reason in tokens.items():
            assert await talker.refusal(ConnectRequest(reauthenticate=Reauthenticate(token=token))) == reason


# ---------------------------------------------------------------- cursors


async def _resume(site: Site, recipient: str, cursor: str) -> tuple[list[str], ConnectResponse, list[str]]:
    """Says hello with a cursor; returns what was refused, the checkpoint, and the ids that came before it."""
    refused: list[str] = []
    ids: list[str] = []
    async with opened(site.live_url, site.tls()) as raw:
        await raw.say(hello(site.cluster.token(recipient), cursor=cursor))
        while True:
            came = await raw.next()
            assert isinstance(came, ConnectResponse), came
            if came.HasField("refused"):
                refused.append(came.refused.refusal.reason)
            if came.HasField("notify"):
                ids.append(came.notify.notification.notification_id)
            if came.HasField("replayed"):
                return refused, came, ids


@pytest.mark.parametrize(
    "cursor", ["abc", "-1.store", "1", ".", "1e9.x", "1234567890123456789.x", "1.\N{SNOWMAN}", "1." + "x" * 200, "1. "]
)
async def test_a_malformed_cursor_brings_the_whole_window(site: Site, cursor: str) -> None:
    """It is said to be none, and the client is told to drop its copy: nothing can be missing."""
    async with site.undisturbed():
        refused, checkpoint, ids = await _resume(site, "alice", cursor)
        assert refused == ["CURSOR_INVALID"]
        assert checkpoint.replayed.reload
        assert set(ids) == set(site.gifts)


@pytest.mark.parametrize(("spoil", "why"), [("epoch", "foreign"), ("future", "future"), ("old", "old")])
async def test_a_cursor_that_cannot_be_used_brings_the_whole_window_and_is_counted(
    site: Site, spoil: str, why: str
) -> None:
    """Of another store, from the future, or older than rows are kept."""
    _, first, _ = await _resume(site, "alice", "")
    stamp, _, epoch = first.replayed.cursor.partition(".")
    year = 365 * 86_400 * 1_000_000
    bad = {
        "epoch": f"{stamp}.another-store",
        "future": f"{int(stamp) + year}.{epoch}",
        "old": f"{int(stamp) - year}.{epoch}",
    }[spoil]
    before = await site.metric("delivery", "heliograph_delivery_reloads_total", why=why)
    async with site.undisturbed():
        _, checkpoint, ids = await _resume(site, "alice", bad)
        assert checkpoint.replayed.reload
        assert checkpoint.replayed.item_count == len(site.gifts)
        assert set(ids) == set(site.gifts)
    assert await site.metric("delivery", "heliograph_delivery_reloads_total", why=why) == before + 1


async def test_a_cursor_of_another_recipient_shows_ones_own_only(site: Site) -> None:
    """A cursor is a time, no right: who borrows one may miss something of his own, and sees it by the checksum."""
    _, first, _ = await _resume(site, "alice", "")
    async with site.undisturbed():
        refused, checkpoint, ids = await _resume(site, "mallory", first.replayed.cursor)
        assert (refused, ids) == ([], [])
        assert checkpoint.replayed.item_count == 0
