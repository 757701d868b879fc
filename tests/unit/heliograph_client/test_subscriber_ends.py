"""The subscriber against a real WebSocket server: how connections end, and when it comes back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from heliograph.gateway.v1.client_frames_pb2 import ConnectResponse, Ping
from heliograph.type.v1.notification_pb2 import NotificationState
from heliograph_client import (
    Aborted,
    Disconnected,
    Failure,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Unauthenticated,
)
from tests.support.listening import Listener, token_of
from tests.support.scripted_gateway import (
    ScriptedGateway,
    go_away,
    id_of,
    notify,
    replayed,
    scripted_gateway,
    welcome,
)
from tests.support.wait import until

NEW, READ = NotificationState.NOTIFICATION_STATE_NEW, NotificationState.NOTIFICATION_STATE_READ


@pytest.fixture
async def gateway(run_dir: Path) -> AsyncIterator[ScriptedGateway]:
    """A gateway that listens."""
    async with scripted_gateway(run_dir) as scripted:
        yield scripted


@pytest.mark.parametrize("code", [4000, 4001, 4002, 4004, 4099, 1001, 1011])
async def test_it_comes_back_after_a_code_that_allows_it(gateway: ScriptedGateway, code: int) -> None:
    """Known and unknown codes below 4500 mean: connect again, after half of the first bound here."""
    listener = Listener(gateway.url)
    async with listener.subscriber:
        session, _ = await gateway.begin(replayed("c1", reload=True))
        await session.close(code)
        assert await listener.next_wait() == 0.25
        await gateway.begin()


@pytest.mark.parametrize(
    ("code", "kind", "reason"),
    [
        (4500, Aborted, "SUPERSEDED"),
        (4501, Unauthenticated, "TOKEN_INVALID"),
        (4502, PermissionDenied, "ORIGIN_REFUSED"),
        (4503, InvalidArgument, "FRAME_INVALID"),
        (4505, Unauthenticated, "TOKEN_INVALID"),
        (4599, Failure, "WHATEVER"),
    ],
)
async def test_it_stops_after_a_code_that_forbids_more(
    gateway: ScriptedGateway, code: int, kind: type[Failure], reason: str
) -> None:
    """The iteration shows what had arrived and then raises what the code means."""
    listener = Listener(gateway.url)
    async with listener.subscriber:
        session, _ = await gateway.begin(notify(1, state=NEW))
        await session.close(code, "WHATEVER")
        assert await listener.titles(1) == ["title 1"]
        failure = await listener.failure()
    assert isinstance(failure, kind)
    assert failure.reason == reason
    assert listener.told(Disconnected) == []


async def test_waits_grow_until_a_session_is_complete(gateway: ScriptedGateway) -> None:
    """Each connection that ends before its checkpoint doubles the bound; a checkpoint sets it back."""
    listener = Listener(gateway.url)
    async with listener.subscriber:
        waits = []
        for _ in range(3):
            session, _ = await gateway.begin()
            await session.close(4001)
            waits.append(await listener.next_wait())
        session, _ = await gateway.begin(replayed("c1", reload=True))
        await session.close(4001)
        waits.append(await listener.next_wait())
    assert waits == [0.25, 0.5, 1.0, 0.25]


async def test_it_goes_away_when_told(gateway: ScriptedGateway) -> None:
    """It leaves within the named delay, with full jitter, and comes back at once."""
    listener = Listener(gateway.url)
    async with listener.subscriber:
        session, _ = await gateway.begin(replayed("c1", reload=True))
        await session.say(go_away("DRAINING", delay=8), notify(1))
        assert await listener.titles(1) == ["title 1"]
        await until(lambda: 4.0 in listener.clock.waiting)
        await listener.pass_time(4.0)
        _, hello = await gateway.begin()
    assert hello.hello.cursor == "c1"
    assert [update.retry_delay for update in listener.told(Disconnected)] == [0.0]


async def test_it_waits_the_named_delay_when_turned_away(gateway: ScriptedGateway) -> None:
    """An overloaded node closes at once; what is left of the named delay is waited for, and the back-off on top."""
    listener = Listener(gateway.url)
    async with listener.subscriber:
        session = await gateway.session()
        await session.read()
        await session.say(go_away("OVERLOADED", delay=10))
        await session.close(4004, "OVERLOADED")
        assert await listener.next_wait() == 5.0
        session = await gateway.session()
        await session.read()
        await session.say(go_away("OVERLOADED", delay=10))
        await session.close(4004, "OVERLOADED")
        assert await listener.next_wait() == 5.5


async def test_a_silent_server_is_probed_and_then_left(gateway: ScriptedGateway) -> None:
    """After one and a half heartbeats it asks for a sign of life, after two it connects again."""
    listener = Listener(gateway.url)
    async with listener.subscriber:
        session, _ = await gateway.begin(replayed("c1", reload=True))
        await until(lambda: listener.subscriber.connected)
        await listener.pass_time(180.0)
        probe = await session.read()
        assert probe.WhichOneof("frame") == "ping"
        await listener.pass_time(60.0)
        await listener.next_wait()
        await gateway.begin()


async def test_a_server_that_pings_is_not_left(gateway: ScriptedGateway) -> None:
    """A ping is answered and counts as a sign of life."""
    listener = Listener(gateway.url)
    async with listener.subscriber as subscriber:
        session, _ = await gateway.begin(replayed("c1", reload=True))
        for _ in range(3):
            await until(lambda: subscriber.connected)
            await listener.pass_time(120.0)
            await session.say(ConnectResponse(ping=Ping()))
            assert (await session.read()).WhichOneof("frame") == "pong"
        assert subscriber.connected


async def test_without_a_welcome_it_tries_another_time(gateway: ScriptedGateway) -> None:
    """A server that takes the connection and says nothing is left."""
    listener = Listener(gateway.url)
    async with listener.subscriber:
        session = await gateway.session()
        await session.read()
        await until(lambda: 10.0 in listener.clock.waiting)
        listener.clock.advance(10.0)
        assert await listener.next_wait() == 0.25
        await gateway.begin()


async def test_a_hello_that_was_too_late_is_said_again(gateway: ScriptedGateway) -> None:
    """A node with too much to do may close before it has read it; nobody stays away for that, and nobody hurries."""
    listener = Listener(gateway.url)
    async with listener.subscriber:
        for wait in (0.25, 0.5):
            session = await gateway.session()
            await session.close(4002)
            assert await listener.next_wait() == wait
        await gateway.begin()


async def test_a_fresh_token_is_sent_in_time(gateway: ScriptedGateway) -> None:
    """A minute before the old one ends, and again before the fresh one does, by its own claim."""
    now = 1_700_000_000.0
    tokens = [token_of("alice", now + 600), token_of("alice", now + 1_200)]
    listener = Listener(gateway.url, token=lambda: tokens.pop(0) if len(tokens) > 1 else tokens[0])
    async with listener.subscriber:
        session = await gateway.session()
        first = (await session.read()).hello.token
        await session.say(welcome(now=now, expires=now + 600, heartbeat=10_000))
        await until(lambda: listener.subscriber.connected)
        await listener.pass_time(539.0)
        assert len(tokens) == 1
        await listener.pass_time(1.0)
        frame = await session.read()
        await until(lambda: 600.0 in listener.clock.waiting)
    assert frame.reauthenticate.token != first
    assert frame.frame_number == 2


async def test_a_fixed_token_that_ended_stops_it(gateway: ScriptedGateway) -> None:
    """Connecting again with the same token could only fail."""
    listener = Listener(gateway.url)
    async with listener.subscriber:
        session, _ = await gateway.begin()
        await session.close(4003)
        failure = await listener.failure()
    assert isinstance(failure, Unauthenticated)
    assert failure.reason == "TOKEN_EXPIRED"


async def test_a_token_that_can_be_renewed_is_fetched_anew(gateway: ScriptedGateway) -> None:
    """After "token expired" the next hello has another one; a source that fails for a moment is asked again."""
    tokens: Iterator[str | OSError] = iter(["one", OSError("no network"), "two"])

    async def source() -> str:
        token = next(tokens)
        if isinstance(token, OSError):
            raise token
        return token

    listener = Listener(gateway.url, token=source)
    async with listener.subscriber:
        session, _ = await gateway.begin(replayed("c1", reload=True))
        await session.close(4003)
        await listener.next_wait()
        await until(lambda: len(listener.told(Disconnected)) == 2)
        listener.clock.advance(listener.told(Disconnected)[-1].retry_delay)
        _, hello = await gateway.begin()
    assert hello.hello.token == "two"


@pytest.mark.parametrize(("status", "kind"), [(403, PermissionDenied), (404, NotFound), (401, Unauthenticated)])
async def test_a_refused_opening_stops_it(gateway: ScriptedGateway, status: int, kind: type[Failure]) -> None:
    """A server that will never take it says so before the session: the reason stands in the answer's body."""
    gateway.refusals = [(status, {}, '{"reason":"ORIGIN_REFUSED","message":"not from there"}')]
    listener = Listener(gateway.url)
    async with listener.subscriber:
        failure = await listener.failure()
    assert isinstance(failure, kind)
    assert failure.reason == "ORIGIN_REFUSED"
    assert "not from there" in str(failure)


async def test_an_overloaded_opening_is_tried_again(gateway: ScriptedGateway) -> None:
    """The server's Retry-After counts, with full jitter, and the back-off on top."""
    gateway.refusals = [(503, {"Retry-After": "4"}, "busy")]
    listener = Listener(gateway.url)
    async with listener.subscriber:
        assert await listener.next_wait() == 2.25
        await gateway.begin()


async def test_a_server_that_is_not_there_is_tried_again(run_dir: Path) -> None:
    """It connects as soon as somebody listens."""
    listener = Listener(f"unix:{run_dir / 'gw.ws'}")
    async with listener.subscriber:
        await until(lambda: len(listener.told(Disconnected)) == 1)
        async with scripted_gateway(run_dir) as gateway:
            listener.clock.advance(1.0)
            await gateway.begin(notify(1))
            assert await listener.titles(1) == ["title 1"]


async def test_garbage_from_the_server_ends_the_connection_only(gateway: ScriptedGateway) -> None:
    """What is no frame is not interpreted: it connects again and goes on."""
    listener = Listener(gateway.url)
    async with listener.subscriber:
        session, _ = await gateway.begin()
        await session.connection.send(b"\xff\xff\xff")
        await listener.next_wait()
        await gateway.begin(notify(1))
        assert await listener.titles(1) == ["title 1"]


async def test_closing_ends_the_iteration(gateway: ScriptedGateway) -> None:
    """What had arrived is still shown; what was said leaves before the closing frame."""
    listener = Listener(gateway.url)
    async with listener.subscriber as subscriber:
        session, _ = await gateway.begin(notify(1))
        await until(lambda: subscriber.stats.shown == 1)
    shown = [notification.title async for notification in subscriber]
    ack = await session.read()
    assert shown == ["title 1"]
    assert [ref.notification_id for ref in ack.mark.refs] == [id_of(1)]
    await session.connection.wait_closed()
    assert session.connection.close_code == 1000
