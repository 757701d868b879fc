"""One listening session of a load, on a transport in memory."""

from __future__ import annotations

import asyncio

import pytest
from google.protobuf.duration_pb2 import Duration

from bench.session import Order, Session, Tally
from heliograph.gateway.v1.client_frames_pb2 import ConnectRequest, ConnectResponse, GoAway, Notify, Replayed
from heliograph.type.v1.notification_pb2 import Content, Notification
from svc_gateway import wire

_SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\n\r\n"


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def requests(self) -> list[ConnectRequest]:
        """Returns the frames that were sent after the opening."""
        return [ConnectRequest.FromString(frame[8 if frame[1] == 0xFE else 6 :]) for frame in self.sent[1:]]


def _session(order: Order | None = None) -> tuple[Session, _Transport, Tally]:
    tally, transport = Tally(), _Transport()
    order = order or Order(targets=["127.0.0.1:1"], server_name="", ca_file="", sessions=[])
    session = Session(order, 0, "bench", "token", tally, asyncio.get_event_loop())
    session.connection_made(transport)
    return session, transport, tally


def _frame(response: ConnectResponse) -> bytes:
    return wire.frame(wire.BINARY, response.SerializeToString())


def _notification(number: int, body: str = "") -> bytes:
    notification = Notification(notification_id=f"n{number}", revision=1, content=Content(body=body))
    return _frame(ConnectResponse(notify=Notify(notification=notification)))


async def test_it_says_hello_and_acks_what_it_gets() -> None:
    """In whatever pieces the bytes come; a second one of the same id is counted as a duplicate and not acked."""
    session, transport, tally = _session()
    data = _SWITCHED + _frame(ConnectResponse(replayed=Replayed(cursor="7.e"))) + _notification(1) + _notification(1)
    for position in range(0, len(data), 3):
        session.data_received(data[position : position + 3])
    assert session.caught_up
    assert [one.WhichOneof("frame") for one in transport.requests()] == ["hello", "mark"]
    assert (tally.received, tally.duplicates) == (1, 1)


async def test_it_comes_back_with_its_cursor() -> None:
    """A lost session is counted, and names what it has in its next hello."""
    session, _, tally = _session()
    session.data_received(_SWITCHED + _frame(ConnectResponse(replayed=Replayed(cursor="7.e"))) + _notification(1))
    session.connection_lost(None)
    assert (tally.lost, session.caught_up) == (1, False)
    again = _Transport()
    session.connection_made(again)
    session.data_received(_SWITCHED)
    (hello,) = again.requests()
    assert (hello.hello.cursor, [ref.notification_id for ref in hello.hello.received_refs]) == ("7.e", ["n1"])
    session.data_received(_frame(ConnectResponse(replayed=Replayed(cursor="8.e"))))
    assert (session.caught_up, len(tally.returns)) == (True, 1)


async def test_it_notes_when_it_is_told_to_come_later() -> None:
    """A 503 is no broken connection."""
    session, transport, tally = _session()
    session.data_received(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 3\r\n\r\n{}")
    assert (tally.turned_away, transport.closed) == (1, True)


async def test_it_waits_as_long_as_it_is_told_when_a_live_session_ends() -> None:
    """As the client library does: the delay of the frame before the close is shared out, the jitter comes on top."""
    session, _, tally = _session(Order(targets=["127.0.0.1:1"], server_name="", ca_file="", sessions=[], returns=True))
    session.data_received(_SWITCHED + _frame(ConnectResponse(replayed=Replayed(cursor="7.e"))))
    away = ConnectResponse(go_away=GoAway(reason="OVERLOADED", reconnect=True, reconnect_delay=Duration(seconds=60)))
    loop, waits = asyncio.get_event_loop(), list[float]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("random.random", lambda: 1.0)
        patch.setattr(loop, "call_later", lambda delay, *_: waits.append(delay))
        session.data_received(_frame(away))
        session.connection_lost(None)
        assert len(waits) == 1
        assert 60.0 <= waits[0] < 76.0
    assert (tally.lost, tally.turned_away) == (1, 0)


async def test_sessions_come_from_the_addresses_in_turn() -> None:
    """Where the server limits what one address may do."""
    seen: list[str] = []

    def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(writer.get_extra_info("peername")[0])
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    target = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    order = Order(targets=[target], server_name="", ca_file="", sessions=[], addresses=2)
    for index in range(3):
        with pytest.raises(ConnectionError):
            await Session(order, index, "d", "t", Tally(), asyncio.get_event_loop()).connect()
    server.close()
    assert seen == ["127.1.0.1", "127.1.0.2", "127.1.0.1"]


async def test_so_many_come_back_at_once_and_no_more() -> None:
    """The others wait for their turn; one that has arrived makes room."""

    class _Quiet(Session):
        def try_again(self) -> None:
            started.append(self)

    started: list[Session] = []
    order, tally = Order(targets=[], server_name="", ca_file="", sessions=[]), Tally()
    crowd = [_Quiet(order, number, "d", "t", tally, asyncio.get_event_loop()) for number in range(502)]
    for session in crowd:
        tally.return_soon(session)
    assert started == crowd[:500]
    tally.returned()
    assert started == crowd[:501]
