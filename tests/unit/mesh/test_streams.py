"""Streams both ways: order, bounds, refusals that keep their status, and nothing left behind."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import grpc
import grpc.aio
import pytest
from google.protobuf.wrappers_pb2 import StringValue

from mesh import streams
from mesh.errors import FailedPrecondition, Failure, PermissionDenied, Unavailable
from mesh.streams import Bidi, accept, connect, live_calls
from tests.support import echo
from tests.support.wait import until

Stream = Bidi[StringValue, StringValue]


def _frame(text: str) -> StringValue:
    return StringValue(value=text)


async def _echoing(requests: object, context: echo.Context) -> None:
    """Sends every frame back until the client ends."""
    stream: Stream = await accept(context, limit=16, marker="echo-0")
    async with asyncio.TaskGroup() as group:
        group.create_task(stream.write_loop())
        while (frame := await stream.read()) is not None:
            assert stream.send(frame)
        stream.close()


async def _all_closed() -> None:
    await until(lambda: live_calls() == 0, what="all streams closed")


async def test_frames_go_both_ways_in_order(run_dir: Path) -> None:
    """What is sent comes back in order, and closing one's own side ends the stream in order."""
    got: list[str] = []
    async with echo.serving(run_dir, talk=_echoing) as running:
        async with (
            connect(running.talk, metadata=running.channels.metadata(), limit=8) as stream,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(stream.write_loop())
            for number in range(50):
                assert stream.send(_frame(str(number)))
                frame = await stream.read()
                assert frame is not None
                got.append(frame.value)
            stream.close()
            assert await stream.read() is None
        await _all_closed()
        assert running.count(echo.TALK, "OK") == 1
    assert got == [str(number) for number in range(50)]


async def test_the_queue_says_no(run_dir: Path) -> None:
    """A full queue and a closed stream refuse a frame and keep nothing of it; what was taken is still written."""
    async with echo.serving(run_dir, talk=_echoing) as running:
        async with (
            connect(running.talk, metadata=running.channels.metadata(), limit=3) as stream,
            asyncio.TaskGroup() as group,
        ):
            assert [stream.send(_frame(text)) for text in "abcd"] == [True, True, True, False]
            assert stream.pending == 3
            group.create_task(stream.write_loop())
            assert [await stream.read() for _ in range(3)] == [_frame(text) for text in "abc"]
            assert stream.pending == 0
            assert stream.send(_frame("e"))
            stream.close()
            assert not stream.send(_frame("f"))
            assert await stream.read() == _frame("e")
            assert await stream.read() is None
        await _all_closed()


async def test_a_peer_that_does_not_read_fills_the_queue(run_dir: Path) -> None:
    """Flow control reaches the sender: with a sleeping reader the queue is full after little more than the windows."""

    async def sleeping(requests: object, context: echo.Context) -> None:
        await accept(context, limit=1, marker="m")
        await asyncio.Event().wait()

    frame, limit = _frame("x" * 1000), 100
    async with echo.serving(run_dir, talk=sleeping) as running:
        async with connect(running.talk, metadata=running.channels.metadata(), limit=limit) as stream:
            writer = asyncio.ensure_future(stream.write_loop())
            taken = looks_when_full = 0

            def stays_full() -> bool:
                nonlocal taken, looks_when_full
                looks_when_full += 1
                while stream.send(frame):
                    taken += 1
                    looks_when_full = 0
                return looks_when_full == 12

            await until(stays_full)
            writer.cancel()
        assert taken < 1000, "gRPC took a megabyte into its own buffers"
        await _all_closed()


async def test_an_early_refusal_keeps_its_status(run_dir: Path) -> None:
    """Two hundred streams refused before anything was written all tell the reason, from the guard and the servicer."""

    async def refusing(requests: object, context: echo.Context) -> None:
        raise FailedPrecondition("not here", reason="LEASE_STALE", metadata={"node": "gw-a-0"})

    async with echo.serving(run_dir, talk=refusing) as running:
        for attempt in range(200):
            allowed = attempt % 2 == 0
            metadata = (("x-heliograph-caller", "svc/fanout" if allowed else "svc/stranger"),)
            with pytest.raises(Failure) as caught:
                async with connect(running.talk, metadata=metadata, limit=4) as stream:
                    stream.send(_frame("never"))
            if allowed:
                assert isinstance(caught.value, FailedPrecondition)
                assert (caught.value.reason, dict(caught.value.metadata)) == ("LEASE_STALE", {"node": "gw-a-0"})
            else:
                assert isinstance(caught.value, PermissionDenied)
                assert caught.value.reason == "CALLER_NOT_ALLOWED"
        await _all_closed()


async def test_a_late_refusal_keeps_its_status(run_dir: Path) -> None:
    """A failure raised in the middle of a stream reaches reader and writer as what it is."""

    async def changing_its_mind(requests: object, context: echo.Context) -> None:
        stream: Stream = await accept(context, limit=4, marker="m")
        await stream.read()
        raise FailedPrecondition("superseded", reason="SUPERSEDED")

    async with echo.serving(run_dir, talk=changing_its_mind) as running:
        async with connect(running.talk, metadata=running.channels.metadata(), limit=4) as stream:
            writer = asyncio.ensure_future(stream.write_loop())
            stream.send(_frame("a"))
            with pytest.raises(FailedPrecondition, match="superseded"):
                await stream.read()
            assert not stream.send(_frame("b"))
            await writer
        await _all_closed()


async def test_an_end_under_a_writer_keeps_its_status(run_dir: Path) -> None:
    """Two hundred streams that end while their client writes: all that came before is read, and then why."""

    async def counting(requests: object, context: echo.Context) -> None:
        stream: Stream = await accept(context, limit=16, marker="m")
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(stream.write_loop())
            for number in range(10):
                await stream.read()
                stream.send(_frame(str(number)))
            stream.close()
            await writing
        raise FailedPrecondition("superseded", reason="SUPERSEDED")

    async with echo.serving(run_dir, talk=counting) as running:
        for _ in range(200):
            async with connect(running.talk, metadata=running.channels.metadata(), limit=500) as stream:
                while stream.send(_frame("more")):
                    pass
                writer = asyncio.ensure_future(stream.write_loop())
                for number in range(10):
                    assert await stream.read() == _frame(str(number))
                with pytest.raises(FailedPrecondition, match="superseded"):
                    await stream.read()
                await writer
        await _all_closed()


async def test_a_cut_stream_is_unavailable(run_dir: Path) -> None:
    """A server that stops, and one that crashes, both look like what they are: connect again."""
    crash = asyncio.Event()

    async def waiting(requests: object, context: echo.Context) -> None:
        await accept(context, limit=4, marker="m")
        await crash.wait()
        raise RuntimeError("crash")

    async with echo.serving(run_dir, talk=waiting) as running:
        metadata = running.channels.metadata()
        async with connect(running.talk, metadata=metadata, limit=4) as stream:
            crash.set()
            with pytest.raises(Unavailable, match="internal error, id"):
                await stream.read()
        crash.clear()
        async with connect(running.talk, metadata=metadata, limit=4) as stream:
            reading = asyncio.ensure_future(stream.read())
            await running.server.stop(0.0)
            with pytest.raises(Unavailable):
                await reading
        await _all_closed()


async def test_an_absent_peer_is_unavailable(run_dir: Path) -> None:
    """Nobody there: the stream does not open, and says so."""
    async with echo.serving(run_dir) as running:
        await running.server.stop(0.0)
        with pytest.raises(Unavailable):
            async with connect(running.talk, metadata=running.channels.metadata(), limit=4):
                pass
    await _all_closed()


async def test_a_silent_server_is_given_up(run_dir: Path) -> None:
    """A server that shows no marker in time, or ends without one, is no stream."""

    async def silent(requests: object, context: echo.Context) -> None:
        await asyncio.Event().wait()

    async with echo.serving(run_dir, talk=silent) as running:
        with pytest.raises(Unavailable, match=r"no answer within 0\.1 s"):
            async with connect(running.talk, metadata=running.channels.metadata(), limit=4, marker_timeout=0.1):
                pass
    async with echo.serving(run_dir) as running:
        with pytest.raises(Unavailable, match="before it began"):
            async with connect(running.talk, metadata=running.channels.metadata(), limit=4):
                pass
    await _all_closed()


async def test_a_stream_has_one_reader(run_dir: Path) -> None:
    """A second reader is a bug, found at once; the first one goes on."""
    async with echo.serving(run_dir, talk=_echoing) as running:
        async with (
            connect(running.talk, metadata=running.channels.metadata(), limit=4) as stream,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(stream.write_loop())
            first = group.create_task(stream.read())
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="one reader"):
                await stream.read()
            stream.send(_frame("a"))
            assert await first == _frame("a")
            stream.close()
        await _all_closed()


async def test_an_undecodable_frame_ends_its_stream_only(run_dir: Path) -> None:
    """Bytes that are no frame are INVALID_ARGUMENT for their sender; another stream does not notice."""
    async with echo.serving(run_dir, talk=_echoing) as running:
        metadata = running.channels.metadata()
        async with connect(running.talk, metadata=metadata, limit=4) as healthy:
            raw = echo.raw_talk_of(running.channels.stream("echo"))(metadata=metadata)
            await raw.initial_metadata()
            await raw.write(b"\xff\xff")
            assert await raw.code() is grpc.StatusCode.INVALID_ARGUMENT
            healthy.send(_frame("a"))
            healthy.close()
            await healthy.write_loop()
            assert await healthy.read() == _frame("a")
        await _all_closed()


async def test_leaving_ends_the_call_at_both_ends(run_dir: Path) -> None:
    """Fifty streams left by an error inside leave no call behind, and every servicer is cancelled."""
    cancelled = 0

    async def waiting(requests: object, context: echo.Context) -> None:
        nonlocal cancelled
        stream: Stream = await accept(context, limit=4, marker="m")
        try:
            await stream.read()
        finally:
            cancelled += 1

    async with echo.serving(run_dir, talk=waiting) as running:
        for _ in range(50):
            with pytest.raises(ZeroDivisionError):
                async with connect(running.talk, metadata=running.channels.metadata(), limit=4):
                    raise ZeroDivisionError
        await _all_closed()
        await until(lambda: cancelled == 50)
        gc.collect()
        calls = [item for item in gc.get_objects() if isinstance(item, grpc.aio.StreamStreamCall)]
        assert not any(not call.done() for call in calls)


async def test_the_marker_names_the_server(run_dir: Path) -> None:
    """A stream's first answer says who took it."""
    async with echo.serving(run_dir, talk=_echoing) as running:
        call = running.talk(metadata=running.channels.metadata())
        assert dict(await call.initial_metadata())[streams.STREAM_HEADER] == "echo-0"
        call.cancel()
        await _all_closed()
