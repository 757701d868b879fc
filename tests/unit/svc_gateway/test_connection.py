"""Bytes in, messages out, and every way to end: one connection on a transport in memory."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc_gateway import wire
from svc_gateway.host import Form
from tests.support.connections import REQUEST, Bench, closing, masked

PONG_LIMIT = 50

# ---------------------------------------------------------------- messages


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536])
@pytest.mark.parametrize("text", [True, False])
def test_a_message_arrives_whole(size: int, text: bool) -> None:
    """Every length encoding is read, and the host learns whether it is text."""
    bench = Bench().feed(masked(1 if text else 2, b"x" * size))
    assert bench.host.messages == [(b"x" * size, text)]


def test_frames_behind_the_request_are_not_lost() -> None:
    """A client may send before it has read the answer."""
    bench = Bench(opened=False).feed(REQUEST + masked(1, b"early"))
    assert bench.host.messages == [(b"early", True)]
    assert bench.connection.form is Form.BINARY


def test_control_frames_may_come_between_fragments() -> None:
    """A ping inside a message is answered with its payload at once."""
    bench = Bench().feed(masked(1, b"he", final=False), masked(9, b"now"), masked(0, b"llo"))
    assert bench.host.messages == [(b"hello", True)]
    assert bench.transport.sent == b"\x8a\x03now"


MESSAGES = st.lists(
    st.tuples(
        st.booleans(),
        st.text(max_size=90).map(str.encode) | st.just(b"y" * 300),
        st.lists(st.integers(0, 300), max_size=3).map(sorted),
        st.sampled_from([b"", masked(9, b"p"), masked(10)]),
    ),
    max_size=5,
)


@given(messages=MESSAGES, cuts=st.lists(st.integers(0, 2_000), max_size=12).map(sorted), every_byte=st.booleans())
def test_pieces_make_no_difference(
    messages: list[tuple[bool, bytes, list[int], bytes]], cuts: list[int], every_byte: bool
) -> None:
    """However the network cuts a stream of fragments and pings, the host gets the same messages."""
    stream = bytearray()
    for text, payload, places, between in messages:
        ends = [0, *(min(place, len(payload)) for place in places), len(payload)]
        for index in range(1, len(ends)):
            opcode = (1 if text else 2) if index == 1 else 0
            stream += masked(opcode, payload[ends[index - 1] : ends[index]], final=index == len(ends) - 1) + between
    stream += closing(1000)
    edges = range(len(stream) + 1) if every_byte else [0, *(min(cut, len(stream)) for cut in cuts), len(stream)]
    bench = Bench().feed(*(bytes(stream[edges[i] : edges[i + 1]]) for i in range(len(edges) - 1)))
    assert bench.host.messages == [(payload, text) for text, payload, _, _ in messages]
    assert bench.host.codes == [1000]


NOISE = st.lists(
    st.binary(max_size=30)
    | st.builds(masked, st.integers(0, 15), st.binary(max_size=20), final=st.booleans())
    | st.sampled_from([closing(1000), closing(1005), masked(1, b"close"), b"\x81\xff\xff", b"\x82\xfe\x00"]),
    max_size=8,
)


@given(noise=NOISE, opened=st.booleans())
def test_noise_ends_a_connection_and_nothing_else(noise: list[bytes], opened: bool) -> None:
    """Whatever comes, nothing is raised, and an opened connection ends exactly once with a code."""
    bench = Bench(opened=opened).feed(*noise)
    bench.connection.connection_lost(None)
    assert len(bench.host.codes) == len(bench.host.connections) == opened
    assert all(1000 <= code < 5000 for code in bench.host.codes)
    assert bench.connection._partial is None
    assert bench.connection._inflow is None


def test_nothing_is_kept_between_frames() -> None:
    """An idle connection holds no buffer, whatever came before."""
    bench = Bench().feed(masked(1, b"ab", final=False), masked(0, b"c")[:3], masked(0, b"c")[3:])
    assert bench.host.messages == [(b"abc", True)]
    assert bench.connection._partial is None
    assert bench.connection._inflow is None


# ---------------------------------------------------------------- broken rules


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (wire.frame(1, b"x"), 1002),
        (b"\xc1" + masked(1, b"x")[1:], 1002),
        (masked(3), 1002),
        (masked(11), 1002),
        (masked(0, b"x"), 1002),
        (masked(1, b"x", final=False) + masked(1, b"x"), 1002),
        (masked(9, b"x", final=False), 1002),
        (masked(9, b"x" * 126), 1002),
        (masked(8, b"\x03"), 1002),
        (closing(1006), 1002),
        (masked(8, b"\x03\xe8\xff"), 1007),
        (masked(1, b"\xff"), 1007),
        (masked(1, b"\xce\xba", final=False) + masked(0, b"\xed\xa0\x80"), 1007),
        (masked(1, b"\xf4", final=False) + masked(0, b"\x90", final=False), 1007),
        (masked(1, b"abc\xffdef")[:11], 1007),
        (masked(1, b"\xc3"), 1007),
        (masked(1, b"\xc3", final=False) + masked(0), 1007),
        (masked(2, b"x" * 65_537)[:14], 1009),
        (masked(2, b"x" * 40_000, final=False) + masked(0, b"x" * 40_000)[:8], 1009),
        (b"\x82\xff" + b"\xff" * 8 + b"kkkk", 1009),
        (masked(2, b"", final=False) + masked(0, b"", final=False) * 256, 1008),
    ],
)
def test_a_broken_rule_ends_the_connection(frame: bytes, code: int) -> None:
    """The host and the peer learn the fitting code at the first byte that shows it; the rest is thrown away."""
    bench = Bench().feed(frame, masked(1, b"late"))
    assert bench.host.codes == [code]
    assert bench.close_sent == code
    assert bench.transport.ended
    assert bench.host.messages == []
    bench.connection.connection_lost(None)
    assert bench.host.codes == [code]


def test_a_character_may_be_split_between_fragments() -> None:
    """Only the whole text must be valid."""
    bench = Bench().feed(masked(1, b"\xc3", final=False), masked(0, b"\xa4"))
    assert bench.host.messages == [("ä".encode(), True)]


def test_a_flood_of_pings_ends_the_connection() -> None:
    """So many a second are answered and no more; the next second starts anew."""
    bench = Bench().feed(*[masked(9)] * PONG_LIMIT)
    bench.clock.advance(1)
    bench.feed(*[masked(9)] * PONG_LIMIT)
    assert bench.transport.sent == b"\x8a\x00" * (2 * PONG_LIMIT)
    assert bench.feed(masked(10)).host.codes == [1008]


def test_a_peer_that_does_not_read_gets_no_pongs() -> None:
    """Answers to pings never pile up in a full transport."""
    bench = Bench()
    bench.connection.pause_writing()
    assert bench.feed(masked(9)).transport.sent == b""
    bench.connection.resume_writing()
    assert bench.feed(masked(9)).transport.sent == b"\x8a\x00"
    assert bench.host.turns == ["behind", "writable"]


async def test_a_failing_host_costs_one_session() -> None:
    """The failure is reported to the loop, the peer is told, and nothing reaches the transport's own error path."""
    reported: list[object] = []
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    try:
        bench = Bench().feed(masked(1, b"fail"))
    finally:
        loop.set_exception_handler(before)
    assert bench.host.codes == [1011]
    assert bench.close_sent == 1011
    assert isinstance(reported[0], LookupError)


# ---------------------------------------------------------------- the beginning and the end


def test_the_peers_closing_frame_is_answered() -> None:
    """The same code goes back, the server ends the connection, and the host is told once."""
    bench = Bench().feed(closing(4321) + masked(1, b"late"))
    assert bench.close_sent == 4321
    assert bench.transport.gone
    assert bench.host.codes == [4321]
    bench.connection.connection_lost(None)
    assert bench.host.codes == [4321]
    assert bench.host.messages == []


def test_a_closing_frame_without_a_code_is_answered_without_one() -> None:
    """The host sees 1005, which is never sent."""
    bench = Bench().feed(masked(8))
    assert bench.transport.sent == b"\x88\x00"
    assert bench.host.codes == [1005]


def test_closing_waits_for_the_peer() -> None:
    """After `close` nothing is written or delivered; the host is told, with its own code, when the peer answers."""
    bench = Bench()
    bench.connection.close(4001, "draining")
    bench.connection.close(4002, "again")
    bench.connection.write(wire.frame(1, b"late"))
    assert bench.transport.sent == wire.close_frame(4001, "draining")
    bench.feed(masked(1, b"still on its way"), masked(9))
    assert not bench.host.codes
    assert not bench.host.messages
    bench.feed(closing(1000))
    assert bench.host.codes == [4001]
    assert bench.transport.gone


def test_a_host_may_close_while_it_receives() -> None:
    """What stands behind that message in the same piece is not delivered, but the peer's closing frame is seen."""
    bench = Bench().feed(masked(1, b"close") + masked(1, b"late") + closing(4001))
    assert bench.host.messages == [(b"close", True)]
    assert bench.host.codes == [4001]


def test_a_broken_rule_while_closing_ends_it() -> None:
    """No second closing frame is sent, and the code stays the host's."""
    bench = Bench()
    bench.connection.close(4001, "")
    bench.feed(wire.frame(1, b"unmasked"))
    assert bench.transport.sent == wire.close_frame(4001)
    assert bench.host.codes == [4001]


def test_a_lost_connection_is_1006() -> None:
    """A connection that breaks without a closing frame has the code that is never sent."""
    bench = Bench()
    bench.connection.connection_lost(OSError("gone"))
    assert bench.host.codes == [1006]


def test_an_aborted_connection_delivers_nothing_more() -> None:
    """Breaking off is told once the transport is gone."""
    bench = Bench()
    bench.connection.abort()
    bench.feed(masked(1, b"late"))
    bench.connection.connection_lost(None)
    assert bench.host.messages == []
    assert bench.host.codes == [1006]


def test_a_refused_request_never_reaches_the_host() -> None:
    """It is answered, counted and thrown away."""
    bench = Bench(opened=False).feed(REQUEST.replace(b"/v1/ws", b"/"), masked(1, b"x"))
    assert bench.transport.sent.startswith(b"HTTP/1.1 404 ")
    assert bench.transport.ended
    bench.connection.connection_lost(None)
    assert not bench.host.connections
    assert not bench.host.codes
    assert bench.listener.refused == 1


@pytest.mark.parametrize("piece", [b"x: " + b"y" * 20_000, b"z"])
def test_headers_have_a_limit(piece: bytes) -> None:
    """Neither one large piece nor endless small ones are collected beyond it."""
    bench = Bench(opened=False).feed(b"GET /v1/ws HTTP/1.1\r\n")
    for _ in range(20_000 // len(piece) + 1):
        bench.feed(piece)
    assert bench.transport.sent.startswith(b"HTTP/1.1 431 ")
    assert bench.connection._partial is None


def test_a_request_may_come_byte_by_byte() -> None:
    """The end of the headers is found wherever the pieces are cut."""
    bench = Bench(opened=False).feed(*(bytes((byte,)) for byte in REQUEST))
    assert len(bench.host.connections) == 1
