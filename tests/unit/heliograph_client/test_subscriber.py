"""The subscriber against a real WebSocket server: what it says, what it shows, what it keeps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Literal

import pytest

from heliograph.gateway.v1.client_frames_pb2 import ConnectRequest
from heliograph.type.v1.notification_pb2 import MarkKind, NotificationState
from heliograph_client import (
    AckLevel,
    Connected,
    DeadlineExceeded,
    FileCursorStore,
    InvalidArgument,
    MarksConfirmed,
    NotFound,
    StateChanged,
    Subscriber,
    Update,
)
from tests.support.listening import Listener, token_of
from tests.support.scripted_gateway import (
    ScriptedGateway,
    changed,
    confirmed,
    id_of,
    notify,
    replayed,
    scripted_gateway,
    unread,
)
from tests.support.stepped_clock import SteppedClock
from tests.support.wait import until

NEW, READ = NotificationState.NOTIFICATION_STATE_NEW, NotificationState.NOTIFICATION_STATE_READ


@pytest.fixture
async def gateway(run_dir: Path) -> AsyncIterator[ScriptedGateway]:
    """A gateway that listens."""
    async with scripted_gateway(run_dir) as scripted:
        yield scripted


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
    listener = Listener(gateway.url, token=token_of("alice"), store=store)
    async with listener.subscriber:
        session, _ = await gateway.begin(notify(1, state=NEW), replayed("c1", window, reload=True))
        await listener.titles(1)
        await session.read()
        await session.say(notify(2))
        await until(lambda: listener.subscriber.stats.shown == 2)
    again = Listener(gateway.url, token=token_of("alice"), store=store)
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
    listener = Listener(gateway.url, token=token_of("alice"), store=store)
    async with listener.subscriber:
        await gateway.begin(notify(1, state=NEW), replayed("c1", [(id_of(1), 1, False)], reload=True))
        await listener.titles(1)
        await until(lambda: listener.subscriber.stats.checkpoints == 1)
    other = Listener(gateway.url, token=token_of("bob"), store=store)
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
