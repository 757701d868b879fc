"""Sessions over gRPC: a node as a whole, with real streams on its Unix socket."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import grpc
import grpc.aio
import pytest

from heliograph.gateway.v1 import gateway_service_pb2 as pb
from heliograph.gateway.v1.client_frames_pb2 import ConnectRequest, ConnectResponse, Hello, Ping
from heliograph.type.v1.notification_pb2 import MarkKind
from mesh.errors import (
    Aborted,
    Failure,
    InvalidArgument,
    Unauthenticated,
    Unavailable,
)
from mesh.identity import CALLER_HEADER, TOKEN_HEADER
from svc_gateway.connect import status_of
from svc_gateway.decisions import CloseCode
from tests.support.device import Form
from tests.support.nodes import Node, delivery_of
from tests.support.sessions import id_of
from tests.support.stream_device import Call, raw_streams
from tests.support.wait import until

ALICE = "acme/alice"
EDGE = ((CALLER_HEADER, "svc/edge"),)


@pytest.fixture
def node(run_dir: Path, tmp_path: Path) -> Node:
    """A node that does not run yet."""
    return Node(run_dir, tmp_path)


async def _status(call: Call) -> grpc.StatusCode:
    async with asyncio.timeout(10.0):
        return await call.code()


# ---------------------------------------------------------------- a session


async def test_a_notification_goes_through_and_its_ack_comes_home(node: Node) -> None:
    """Offered over the link, written, acked, stored, confirmed."""
    async with node.running(), node.link() as link, node.device(form="grpc") as device:
        result = await link.result(link.offer(delivery_of(id_of(1), ALICE, title="Deployed")))
        assert list(result.refusals) == []
        await device.has(id_of(1))
        assert device.titles == ["Deployed"]
        await device.has_confirmed(await device.mark(MarkKind.MARK_KIND_RECEIVED, id_of(1)))
        assert (link.marks[0].recipient_key, link.marks[0].device_id) == (ALICE, "phone")


async def test_a_client_that_leaves_in_order_is_forgotten(node: Node) -> None:
    """Its stream ends with OK, and presence knows it no more."""
    async with node.running():
        async with node.streaming() as device:
            await device.hello(node.token(), "phone")
            await device.ready()
            assert await node.present(ALICE)
            await device.pipe.close()
            assert await device.is_closed() == 1000
            assert device.pipe.failure is None
        await until(lambda: node.gauge("streams_count") == 0, 5.0, "the stream is gone")

        async def gone() -> bool:
            return not await node.present(ALICE)

        await until(gone, 5.0, "presence has forgotten the session")


async def test_a_client_that_is_cut_off_is_forgotten(node: Node) -> None:
    """As one that left."""
    async with node.running():
        async with node.device(form="grpc") as device:
            device.cut()

            async def gone() -> bool:
                return not await node.present(ALICE)

            await until(gone, 5.0, "presence has forgotten the session")
        await until(lambda: node.gauge("streams_count") == 0, 5.0, "the stream is gone")


async def test_a_silent_client_is_closed_after_two_heartbeats(node: Node) -> None:
    """It may be half open; one that answers pings stays."""
    async with (
        node.running("--heartbeat-interval=2"),
        node.device("bob", form="grpc") as healthy,
        node.streaming() as device,
    ):
        device.answers = False
        await device.hello(node.token(), "phone")
        failure = await device.ends_with()
        assert isinstance(failure, Unavailable)
        assert (failure.reason, failure.metadata["close_code"]) == ("SLOW_CONSUMER", "4002")
        assert any(frame.HasField("ping") for frame in device.frames)
        assert healthy.closed is None


async def test_a_device_that_does_not_read_is_refused_and_caught_up(node: Node) -> None:
    """Its neighbour on the same transport notices nothing; when it reads again the inbox brings what was not kept."""
    body = "x" * 15_000
    inbox = node.inbox.of("acme/slow")
    async with (
        node.running(),
        node.link() as link,
        node.device("healthy", form="grpc") as healthy,
        node.device("slow", form="grpc") as slow,
    ):
        slow.stop_reading()
        kinds: list[int] = []
        count = 0
        while pb.REFUSAL_KIND_BEHIND not in kinds and count < 200:
            count += 1
            inbox.write(id_of(count), 1, time.time())
            result = await link.result(link.offer(delivery_of(id_of(count), "acme/slow", "acme/healthy", title=body)))
            kinds = [one.kind for one in result.refusals]
        # A window of 64 KiB over there and as much here.
        assert 5 <= count <= 20
        await healthy.has(*(id_of(number) for number in range(1, count + 1)))
        slow.go_on_reading()
        await slow.has(*(id_of(number) for number in range(1, count + 1)))
        assert slow.ids == [id_of(number) for number in range(1, count + 1)]


async def test_a_session_that_stays_behind_is_closed_and_its_stream_counted_until_it_ends(node: Node) -> None:
    """What it was told lies in its window; the stream is gone when the client is."""
    async with (
        node.running("--behind-limit=0.1"),
        node.link() as link,
        node.device("healthy", form="grpc") as healthy,
    ):
        async with node.streaming() as slow:
            await slow.hello(node.token("slow"), "phone")
            await slow.ready()
            slow.stop_reading()
            for number in range(1, 15):
                await link.result(link.offer(delivery_of(id_of(number), "acme/slow", title="x" * 15_000)))
            await until(lambda: node.gauge("sessions_count") == 1, 10.0, "the session is closed")
            assert node.gauge("streams_count") == 2
            slow.go_on_reading()
            failure = await slow.ends_with()
            assert failure.reason == "SLOW_CONSUMER"
        await until(lambda: node.gauge("streams_count") == 1, 5.0, "the stream is gone")
        assert healthy.closed is None


# ---------------------------------------------------------------- the end


@pytest.mark.parametrize("code", list(CloseCode))
def test_every_close_code_has_a_status_that_says_whether_to_reconnect(code: CloseCode) -> None:
    """UNAVAILABLE means: connect again; the code itself travels along."""
    failure = status_of(code, "REASON", 0.5)
    assert isinstance(failure, Unavailable) == (code < 4500)
    assert (failure.reason, failure.metadata["close_code"], failure.retry_delay) == ("REASON", str(int(code)), 0.5)


@pytest.mark.parametrize(
    ("token", "kind", "code", "reason"),
    [
        ("", Unauthenticated, 4501, "TOKEN_INVALID"),
        ("producer", Unauthenticated, 4501, "TOKEN_INVALID"),
        ("old", Unavailable, 4003, "TOKEN_EXPIRED"),
    ],
)
async def test_a_bad_token_gets_a_typed_refusal_and_a_status(
    node: Node, token: str, kind: type[Failure], code: int, reason: str
) -> None:
    """The frame comes first, as over WebSocket."""
    async with node.running(), node.streaming() as device:
        tokens = {"producer": node.token(role="producer"), "old": node.token(lifetime=-60.0)}
        await device.hello(tokens.get(token, ""), "phone")
        failure = await device.ends_with()
        assert (type(failure), failure.reason, device.closed) == (kind, reason, code)
        assert device.refusals == [reason]
        assert await node.present(ALICE) == []


async def test_the_newest_session_of_a_device_wins_whatever_carries_it(node: Node) -> None:
    """The older one is told not to come back."""
    async with node.running(), node.streaming() as device:
        await device.hello(node.token(), "phone")
        await device.ready()
        async with node.device(form="json") as newer:
            failure = await device.ends_with()
            assert (type(failure), failure.reason) == (Aborted, "SUPERSEDED")
            assert newer.closed is None


async def test_a_full_node_says_when_to_come_back(node: Node) -> None:
    """In a goodbye and in the status."""
    async with node.running("--session-limit=1"), node.device(form="grpc"), node.streaming() as device:
        await device.hello(node.token("bob"), "phone")
        failure = await device.ends_with()
        assert (type(failure), failure.reason, device.closed) == (Unavailable, "OVERLOADED", 4004)
        (farewell,) = [frame.go_away for frame in device.frames]
        assert farewell.reason == "OVERLOADED"
        assert failure.retry_delay == farewell.reconnect_delay.ToNanoseconds() / 1e9 > 0.0


async def test_a_drain_says_goodbye_and_takes_no_more_streams(node: Node) -> None:
    """Sessions that stay are ended; who comes meanwhile is sent elsewhere."""
    async with node.running("--drain-grace=1.0"), node.streaming() as device:
        await device.hello(node.token(), "phone")
        await device.ready()
        node.app.request_stop("drain")
        await until(lambda: any(frame.HasField("go_away") for frame in device.frames), 5.0, "goodbye is said")
        async with raw_streams(node.target, EDGE) as open_one:
            assert await _status(open_one()) is grpc.StatusCode.UNAVAILABLE
        failure = await device.ends_with()
        assert (type(failure), failure.reason, device.closed) == (Unavailable, "DRAINING", 4001)
        assert failure.retry_delay == 1.0


# ---------------------------------------------------------------- who may come


async def test_a_token_in_the_call_is_that_of_hello(node: Node) -> None:
    """Another recipient's is refused, and a call with one needs no edge."""
    async with node.running():
        bearer = (TOKEN_HEADER, f"Bearer {node.token()}")
        async with node.streaming(bearer) as device:
            await device.hello(node.token(), "phone")
            await device.ready()
        async with node.streaming(bearer) as device:
            await device.hello(node.token("bob"), "phone")
            failure = await device.ends_with()
            assert (type(failure), failure.metadata["close_code"]) == (Unauthenticated, "4501")
            assert device.refusals == ["CALLER_NOT_ALLOWED"]
            assert await node.present("acme/bob") == []


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("", grpc.StatusCode.PERMISSION_DENIED),
        ("svc/ingest", grpc.StatusCode.PERMISSION_DENIED),
        ("producer/acme/demo", grpc.StatusCode.PERMISSION_DENIED),
        ("operator/ada", grpc.StatusCode.PERMISSION_DENIED),
    ],
)
async def test_nobody_else_gets_a_stream(node: Node, header: str, code: grpc.StatusCode) -> None:
    """Services, producers and operators have no sessions; a neighbour's goes on."""
    async with node.running(), node.device(form="grpc") as neighbour:
        async with raw_streams(node.target, ((CALLER_HEADER, header),) if header else ()) as open_one:
            assert await _status(open_one()) is code
        assert neighbour.closed is None
        assert node.gauge("streams_count") == 1


# ---------------------------------------------------------------- bad input


async def test_bytes_that_are_no_frame_are_refused_and_the_session_goes_on(node: Node) -> None:
    """As over WebSocket, not with a status."""
    async with node.running(), raw_streams(node.target, EDGE) as open_one:
        call = open_one()
        hello = ConnectRequest(hello=Hello(token=node.token(), device_id="phone"), frame_number=1)
        await call.write(hello.SerializeToString())
        await call.write(b"\xff\xff\xff")
        await call.write(ConnectRequest(ping=Ping(), frame_number=2).SerializeToString())
        kinds: list[str] = []
        while kinds[-1:] != ["pong"]:
            payload = await call.read()
            assert isinstance(payload, bytes)
            frame = ConnectResponse.FromString(payload)
            kinds.append(str(frame.WhichOneof("frame")))
        assert "refused" in kinds


@pytest.mark.parametrize("before_hello", [True, False])
async def test_a_frame_that_is_too_large_ends_the_session(node: Node, before_hello: bool) -> None:
    """Nothing of it is read; a neighbour's session goes on."""
    async with node.running(), node.device("bob", form="grpc") as neighbour, node.streaming() as device:
        if not before_hello:
            await device.hello(node.token(), "phone")
            await device.ready()
        await device.hello("x" * 65_536, "phone")
        failure = await device.ends_with()
        assert (type(failure), failure.reason) == (InvalidArgument, "FRAME_INVALID")
        assert neighbour.closed is None


async def test_a_stream_that_never_says_hello_is_ended(node: Node) -> None:
    """Idle streams cost their opener a connection, and this side five seconds; a late one may come again."""
    async with node.running(), node.streaming() as device:
        failure = await device.ends_with()
        assert (type(failure), failure.metadata["close_code"]) == (Unavailable, "4002")


async def test_streams_without_a_session_are_bounded(node: Node) -> None:
    """One too many is sent elsewhere before anything is read of it; the sessions that are here go on."""
    async with (
        node.running("--session-limit=1"),
        node.device(form="grpc") as neighbour,
        raw_streams(node.target, EDGE) as open_one,
    ):
        await asyncio.gather(*(open_one().initial_metadata() for _ in range(256)))
        assert node.gauge("streams_count") == 257
        late = open_one()
        assert await _status(late) is grpc.StatusCode.UNAVAILABLE
        await neighbour.ping()
        await until(lambda: any(frame.HasField("pong") for frame in neighbour.frames), 5.0, "the neighbour is answered")


@pytest.mark.parametrize("form", ["json", "proto", "grpc"])
async def test_ids_of_others_are_refused_in_every_frame(node: Node, form: Form) -> None:
    """What another recipient was given cannot be marked, in a mark or by naming it in hello under the own name only."""
    async with (
        node.running(),
        node.link() as link,
        node.device("bob") as bob,
        node.device(form=form) as alice,
    ):
        await link.result(link.offer(delivery_of(id_of(7), "acme/bob")))
        await bob.has(id_of(7))
        await alice.mark(MarkKind.MARK_KIND_READ, id_of(7))
        await until(lambda: alice.refusals == ["NOTIFICATION_UNKNOWN"], 5.0, "the mark is refused")
        assert link.marks == []
        await bob.has_confirmed(await bob.mark(MarkKind.MARK_KIND_READ, id_of(7)))
        assert [mark.recipient_key for mark in link.marks] == ["acme/bob"]


@pytest.mark.parametrize("cursor", ["-1.store-1", "99999999999999999999.store-1", "nonsense"])
async def test_a_tampered_cursor_is_told_and_everything_follows(node: Node, cursor: str) -> None:
    """The whole window comes, whatever the cursor said."""
    node.inbox.of(ALICE).write(id_of(1), 1, time.time())
    async with node.running(), node.device(form="grpc", cursor=cursor) as device:
        assert device.ids == [id_of(1)]
        assert device.refusals == ["CURSOR_INVALID"]
        assert device.checkpoints[0].reload
