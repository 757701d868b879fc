"""WebSocket frames as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc_gateway import wire


@pytest.mark.parametrize(
    ("size", "header"),
    [
        (0, b"\x81\x00"),
        (125, b"\x81\x7d"),
        (126, b"\x81\x7e\x00\x7e"),
        (65_535, b"\x81\x7e\xff\xff"),
        (65_536, b"\x81\x7f\x00\x00\x00\x00\x00\x01\x00\x00"),
    ],
)
def test_a_frame_has_the_shortest_length(size: int, header: bytes) -> None:
    """Each size uses the smallest of the three encodings."""
    payload = bytes(size)
    assert wire.frame(wire.TEXT, payload) == header + payload


@given(data=st.binary(max_size=50), key=st.binary(min_size=4, max_size=4))
def test_the_mask_is_applied_byte_by_byte(data: bytes, key: bytes) -> None:
    """The one big operation equals the definition."""
    assert wire.unmask(data, key) == bytes(byte ^ key[index % 4] for index, byte in enumerate(data))


@pytest.mark.parametrize("code", [1000, 1003, 1007, 1014, 3000, 4001, 4999])
def test_codes_that_may_be_sent_are_read(code: int) -> None:
    """A code with a reason gives the code."""
    assert wire.close_code(code.to_bytes(2, "big") + "grüß".encode()) == code


def test_a_closing_frame_may_be_empty() -> None:
    """No code is a code of its own, and is answered without one."""
    assert wire.close_code(b"") == 1005
    assert wire.close_frame(1005) == b"\x88\x00"


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"\x03", 1002),
        (b"\x00\x00", 1002),
        ((999).to_bytes(2, "big"), 1002),
        ((1004).to_bytes(2, "big"), 1002),
        ((1005).to_bytes(2, "big"), 1002),
        ((1006).to_bytes(2, "big"), 1002),
        ((1015).to_bytes(2, "big"), 1002),
        ((2999).to_bytes(2, "big"), 1002),
        ((5000).to_bytes(2, "big"), 1002),
        ((1000).to_bytes(2, "big") + b"\xff", 1007),
    ],
)
def test_what_must_not_be_sent_is_a_protocol_error(payload: bytes, code: int) -> None:
    """Half codes, reserved codes and reasons that are no text are answered with the fitting code."""
    with pytest.raises(wire.ProtocolError) as caught:
        wire.close_code(payload)
    assert caught.value.code == code


def test_a_long_reason_is_cut_between_characters() -> None:
    """A closing frame is a control frame of 125 bytes at most, and its reason stays UTF-8."""
    sent = wire.close_frame(4000, "ä" * 100)
    assert sent[1] == 2 + 122
    assert sent[4:].decode() == "ä" * 61
