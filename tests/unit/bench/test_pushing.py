"""The frames that are pushed have the size that the figures are quoted for."""

from __future__ import annotations

import pytest

from bench import peers
from bench.pushing import Writer
from heliograph.gateway.v1.client_frames_pb2 import ConnectResponse
from svc_gateway import frames
from svc_gateway.host import Form


@pytest.mark.parametrize("size", [400, 4_000, 16_000])
def test_a_pushed_notification_makes_a_frame_of_the_size(size: int) -> None:
    """As the gateway writes it, header included."""
    delivery = Writer(size).delivery(["acme/alice"], 123_456_789)
    written = frames.notify(delivery.envelope.notification).in_form(Form.BINARY)
    assert abs(len(written) - size) <= 4


def test_the_peers_write_as_much() -> None:
    """The same frame for the same number, without its header of four bytes."""
    payload = peers.notification(396, 7)
    assert abs(len(payload) - 396) <= 2
    assert ConnectResponse.FromString(payload).notify.notification.revision == 1


def test_each_notification_is_one_of_its_own() -> None:
    """A client that has it would not be given it again."""
    writer = Writer(400)
    assert len({writer.delivery([], 0).envelope.notification_id for _ in range(100)}) == 100
