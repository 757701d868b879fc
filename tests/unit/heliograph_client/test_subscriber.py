"""The subscriber against a real WebSocket server: what it says, what it shows, when it comes back."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from heliograph.gateway.v1.client_frames_pb2 import ConnectRequest, ConnectResponse, Ping
from heliograph.type.v1.notification_pb2 import MarkKind, NotificationState
from heliograph_client import (
    Aborted,
    AckLevel,
    Connected,
    CursorStore,
    DeadlineExceeded,
    Disconnected,
    Failure,
    FileCursorStore,
    InvalidArgument,
    MarksConfirmed,
    NotFound,
    Notification,
    PermissionDenied,
    StateChanged,
    Subscriber,
    TokenSource,
    Unauthenticated,
    Update,
)
from tests.support.scripted_gateway import (
    ScriptedGateway,
    changed,
    confirmed,
    go_away,
    id_of,
    notify,
    replayed,
    scripted_gateway,
    unread,
    welcome,
)
from tests.support.stepped_clock import SteppedClock
from tests.support.wait import until

NEW, READ = NotificationState.NOTIFICATION_STATE_NEW, NotificationState.NOTIFICATION_STATE_READ


class Listener:
    """A subscriber with what it told."""

    def __init__(
        self,
        url: str,
        *,
        token: TokenSource = "token",
        encoding: Literal["proto", "json"] = "proto",
        store: CursorStore | None = None,
        auto_ack: bool = True,
        queue_limit: int = 1_000,
    ) -> None:
        self.clock = SteppedClock()
        self.updates: list[Update] = []
        self._ends = 0
        self.subscriber = Subscriber(
            url,
            token=token,
            device_id="laptop",
            encoding=encoding,
            store=store,
            auto_ack=auto_ack,
            queue_limit=queue_limit,
            on_update=self.updates.append,
            clock=self.clock,
            random=lambda: 0.5,
        )

    async def titles(self, count: int) -> list[str]:
        """The next notifications."""
        return [(await self.next()).title for _ in range(count)]

    async def next(self) -> Notification:
        """The next notification."""
        async with asyncio.timeout(5):
            return await anext(self.subscriber)

    async def next_wait(self) -> float:
        """The wait before the next connection, which is then over."""
        self._ends += 1
        await until(lambda: len(self.told(Disconnected)) >= self._ends)
        wait = self.told(Disconnected)[self._ends - 1].retry_delay
        self.clock.advance(wait)
        return wait

    async def pass_time(self, seconds: float) -> None:
        """Lets time pass from timer to timer."""
        while seconds > 0:
            await until(lambda: bool(self.clock.waiting))
            step = min(self.clock.waiting[0], seconds)
            self.clock.advance(step)
            seconds -= step

    def told(self, kind: type[Disconnected]) -> list[Disconnected]:
        """The ends of connections so far."""
        return [update for update in self.updates if isinstance(update, kind)]

    async def failure(self) -> BaseException:
        """What the iteration raises."""
        with pytest.raises(Failure) as raised:
            await self.next()
        return raised.value


@pytest.fixture
async def gateway(run_dir: Path) -> AsyncIterator[ScriptedGateway]:
    """A gateway that listens."""
    async with scripted_gateway(run_dir) as scripted:
        yield scripted


def _token(subject: str, expires: float | None = None) -> str:
    claims = {"sub": subject, "tenant": "acme"} | ({} if expires is None else {"exp": expires})
    head, body = ({"alg": "none"}, claims)
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in (head, body)]
    return ".".join([*parts, ""])


def _ids(frame: ConnectRequest) -> list[str]:
    return [ref.notification_id for ref in frame.mark.refs]


@pytest.mark.parametrize("encoding", ["proto", "json"])
async def test_a_live_notification_is_shown_and_acked(
    gateway: ScriptedGateway, encoding: Literal["proto", "json"]
) -> None:
    """Hello, welcome, checkpoint, a live frame, its ack and the confirmation, in both encodings."""
    listener = Listener(gateway.url, encoding=encoding)
    async with listener.subscriber as subscriber:
        session, hello = await gateway.begin(replayed("c1", reload=True))
        await session.say(notify(1))
        notification = await listener.next()
        ack = await session.read()
        await session.say(confirmed(ack.frame_number))
        await subscriber.settle()
    assert (hello.frame_number, hello.hello.token, hello.hello.device_id, hello.hello.cursor) == (
        1,
        "token",
        "laptop",
        "",
    )
    assert (notification.id, notification.revision, notification.title) == (id_of(1), 1, "title 1")
    assert (notification.state, notification.replayed, notification.priority) == ("new", False, "normal")
    assert (ack.frame_number, ack.mark.kind, _ids(ack)) == (2, MarkKind.MARK_KIND_RECEIVED, [id_of(1)])
    assert MarksConfirmed((id_of(1),)) in listener.updates
    assert Connected("s1", 1) in listener.updates


async def test_it_resumes_with_cursor_and_ids_after_a_break(gateway: ScriptedGateway) -> None:
    """The next hello names the checkpoint, what came since, and the ack that was not confirmed."""
    listener = Listener(gateway.url)
    async with listener.subscriber:
        session, _ = await gateway.begin(notify(1, state=NEW), replayed("c1", [(id_of(1), 1, False)], reload=True))
        await session.say(notify(2))
        assert await listener.titles(2) == ["title 1", "title 2"]
        session.connection.transport.abort()
        assert await listener.next_wait() == 0.25
        session, hello = await gateway.begin(notify(2, state=NEW), notify(3, state=NEW))
        window = [(id_of(number), 1, False) for number in (1, 2, 3)]
        await session.say(replayed("c2", window))
        third = await listener.next()
    assert hello.hello.cursor == "c1"
    assert [ref.notification_id for ref in hello.hello.received_refs] == [id_of(1), id_of(2)]
    assert {ref.notification_id for mark in hello.hello.unconfirmed_marks for ref in mark.refs} == {id_of(1), id_of(2)}
    assert (third.title, third.replayed) == ("title 3", True)
    stats = listener.subscriber.stats
    assert (stats.shown, stats.duplicates_on_wire, stats.mismatches, stats.connections) == (3, 1, 0, 2)


async def test_acks_of_one_burst_leave_in_one_frame(gateway: ScriptedGateway) -> None:
    """What arrives together is acked together."""
    listener = Listener(gateway.url)
    async with listener.subscriber:
        session, _ = await gateway.begin(*(notify(number, state=NEW) for number in range(50)))
        await listener.titles(50)
        acked: list[str] = []
        frames = 0
        while len(acked) < 50:
            acked += _ids(await session.read())
            frames += 1
    assert sorted(acked) == sorted(id_of(number) for number in range(50))
    assert frames < 25


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
    tokens = [_token("alice", now + 600), _token("alice", now + 1_200)]
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


async def test_a_copy_that_differs_is_loaded_anew_once(gateway: ScriptedGateway) -> None:
    """It reconnects without a cursor at once; what it has shown is not shown again; it does not go round in circles."""
    listener = Listener(gateway.url)
    window = [(id_of(1), 1, False), (id_of(2), 1, False)]
    async with listener.subscriber as subscriber:
        session, _ = await gateway.begin(notify(1, state=NEW), replayed("c1", window, reload=True))
        assert await listener.next_wait() == 0.0
        session, hello = await gateway.begin(notify(1, state=NEW), notify(2, state=NEW))
        await session.say(replayed("c2", [*window, (id_of(3), 1, False)], reload=True))
        assert await listener.titles(2) == ["title 1", "title 2"]
        await until(lambda: subscriber.stats.checkpoints == 2)
        await session.say(notify(4))
        assert await listener.titles(1) == ["title 4"]
    assert hello.hello.cursor == ""
    assert (subscriber.stats.mismatches, subscriber.stats.connections) == (2, 2)


async def test_marks_are_told_and_counted(gateway: ScriptedGateway) -> None:
    """Own marks show at once, those of other devices when they are told; the newer head wins."""
    listener = Listener(gateway.url, auto_ack=False)
    async with listener.subscriber as subscriber:
        rows = [notify(number, state=NEW) for number in (1, 2, 3)]
        window = [(id_of(number), 1, False) for number in (1, 2, 3)]
        session, _ = await gateway.begin(*rows, replayed("c1", window, reload=True, unread=3, head_s=10))
        first = await listener.next()
        assert (subscriber.unread, subscriber.server_unread) == (3, 3)
        subscriber.ack(first, AckLevel.SEEN)
        subscriber.mark_read(first)
        assert (subscriber.unread, subscriber.unconfirmed) == (2, 2)
        seen, read = await session.read(), await session.read()
        await session.say(confirmed(read.frame_number), changed(READ, 2), unread(1, 20), unread(3, 10))
        await subscriber.settle()
        await until(lambda: StateChanged((id_of(2),), "read") in listener.updates)
        await until(lambda: subscriber.server_unread == 1)
        assert subscriber.unread == 1
        subscriber.hide(id_of(3))
        subscriber.mark_unread(first)
        assert subscriber.unread == 1
    assert [(seen.mark.kind, _ids(seen)), (read.mark.kind, _ids(read))] == [
        (MarkKind.MARK_KIND_SEEN, [first.id]),
        (MarkKind.MARK_KIND_READ, [first.id]),
    ]


async def test_only_what_came_can_be_marked(gateway: ScriptedGateway) -> None:
    """An id that never came is refused at once, and nothing is sent."""
    listener = Listener(gateway.url)
    async with listener.subscriber as subscriber:
        with pytest.raises(NotFound):
            subscriber.mark_read(id_of(1))
        assert subscriber.unconfirmed == 0


async def test_settling_has_a_limit(gateway: ScriptedGateway) -> None:
    """What is not confirmed in time is named, and kept."""
    listener = Listener(gateway.url)
    async with listener.subscriber as subscriber:
        await gateway.begin(notify(1, state=NEW))
        await listener.next()
        with pytest.raises(DeadlineExceeded):
            await subscriber.settle(limit=0.01)
        assert subscriber.unconfirmed == 1


async def test_it_resumes_after_a_restart(gateway: ScriptedGateway, tmp_path: Path) -> None:
    """Cursor, ids, copy and unconfirmed marks come back from the file; what was shown is not shown again."""
    store = FileCursorStore(tmp_path / "alice.state")
    window = [(id_of(1), 1, False)]
    listener = Listener(gateway.url, token=_token("alice"), store=store)
    async with listener.subscriber:
        session, _ = await gateway.begin(notify(1, state=NEW), replayed("c1", window, reload=True))
        await listener.titles(1)
        await session.read()
        await session.say(notify(2))
        await until(lambda: listener.subscriber.stats.shown == 2)
    again = Listener(gateway.url, token=_token("alice"), store=store)
    async with again.subscriber:
        session, hello = await gateway.begin(notify(1, state=NEW), notify(2, state=NEW))
        await session.say(replayed("c2", [*window, (id_of(2), 1, False)]))
        # The second had arrived and was not taken, so it is shown now.
        assert await again.titles(1) == ["title 2"]
    assert hello.hello.cursor == "c1"
    assert [ref.notification_id for ref in hello.hello.received_refs] == [id_of(1)]
    assert {ref.notification_id for mark in hello.hello.unconfirmed_marks for ref in mark.refs} >= {id_of(1)}
    assert again.subscriber.stats.shown == 1


async def test_another_recipient_gets_nothing_of_the_file(gateway: ScriptedGateway, tmp_path: Path) -> None:
    """The state of one recipient is not used with the token of another."""
    store = FileCursorStore(tmp_path / "shared.state")
    listener = Listener(gateway.url, token=_token("alice"), store=store)
    async with listener.subscriber:
        await gateway.begin(notify(1, state=NEW), replayed("c1", [(id_of(1), 1, False)], reload=True))
        await listener.titles(1)
        await until(lambda: listener.subscriber.stats.checkpoints == 1)
    other = Listener(gateway.url, token=_token("bob"), store=store)
    async with other.subscriber:
        _, hello = await gateway.begin(notify(1, state=NEW))
        assert await other.titles(1) == ["title 1"]
    assert (hello.hello.cursor, len(hello.hello.received_refs), len(hello.hello.unconfirmed_marks)) == ("", 0, 0)


async def test_a_slow_application_slows_the_server(gateway: ScriptedGateway) -> None:
    """When as many wait as may, nothing more is read; afterwards everything comes, in order."""
    listener = Listener(gateway.url, queue_limit=5)
    async with listener.subscriber as subscriber:
        await gateway.begin(*(notify(number) for number in range(200)))
        await until(lambda: subscriber.stats.shown == 5)
        assert await listener.titles(200) == [f"title {number}" for number in range(200)]
    assert subscriber.stats.shown == 200


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
    assert _ids(ack) == [id_of(1)]
    await session.connection.wait_closed()
    assert session.connection.close_code == 1000


def _raise(update: Update) -> None:
    raise LookupError(type(update).__name__)


async def test_a_failing_callback_is_not_swallowed(gateway: ScriptedGateway) -> None:
    """A bug of the application's reaches the application."""
    callback: Callable[[Update], None] = _raise
    subscriber = Subscriber(gateway.url, token="t", device_id="d", on_update=callback, clock=SteppedClock())
    async with subscriber:
        await gateway.begin()
        with pytest.raises(LookupError, match="Connected"):
            await anext(subscriber)


@pytest.mark.parametrize("url", ["http://x", "localhost:1", "ws:"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    """The failure names what an address looks like."""
    with pytest.raises(InvalidArgument, match="wss://HOST:PORT"):
        Subscriber(url, token="t", device_id="d")
