"""The calls of InboxService on a real store, as callers see them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from heliograph.delivery.v1 import inbox_service_pb2 as pb
from heliograph.gateway.v1 import gateway_service_pb2
from heliograph.type.v1 import notification_pb2 as types
from mesh.clock import ManualClock, Stamper
from mesh.context import CallContext, Caller, serving
from mesh.errors import InvalidArgument, PermissionDenied
from mesh.ids import to_text
from mesh.times import micros_of, timestamp_of
from svc_delivery.counts import Counts
from svc_delivery.marks import Marks
from svc_delivery.ports import MarkWrite, RowWrite, Window
from svc_delivery.service_inbox import InboxService
from svc_delivery.store import InboxStore, open_store
from svc_delivery.writes import FreshWriter
from tests.support.inbox import ALICE, BOB, NOW_US, make_id, make_key

# No method of the service uses it.
NO_CONTEXT = cast(Any, None)
ALICE_HERSELF = Caller("recipient", "alice", "acme")
GATEWAY = Caller("gateway", "gateway")
SECOND_US = 1_000_000


class Sink:
    """Keeps the changes that it is offered."""

    def __init__(self) -> None:
        self.changes: list[gateway_service_pb2.Change] = []

    def offer(self, changes: Sequence[gateway_service_pb2.Change]) -> None:
        """See `ports.ChangeSink`."""
        self.changes += changes


class Bench:
    """The service on an open store."""

    def __init__(self, store: InboxStore) -> None:
        self.store = store
        self.inbox = store.inbox
        self.clock = ManualClock(wall=NOW_US / 1e6)
        self.sink = Sink()
        self.reloads: list[str] = []
        self.stored: list[MarkWrite] = []
        stamper = Stamper(self.clock)
        self.writer = FreshWriter(inbox=self.inbox, stamper=stamper, limit=5.0, late=lambda: None)
        self.counts = Counts(inbox=self.inbox, clock=self.clock, limit=2)
        self.marks = Marks(writer=self.writer, counts=self.counts, changes=self.sink, stored=self.stored.extend)
        self.service = InboxService(
            inbox=self.inbox,
            marks=self.marks,
            counts=self.counts,
            stamper=stamper,
            reloaded=self.reloads.append,
        )

    async def put(self, *numbers: int, key: str = ALICE, revision: int = 1) -> None:
        """Writes notifications."""
        await self.writer.write([real_row(number, key=key, revision=revision) for number in numbers])

    async def listed(self, *, caller: Caller = ALICE_HERSELF, **fields: Any) -> pb.ListInboxResponse:
        """Calls ListInbox."""
        with serving(CallContext(caller, None, "", "")):
            return await self.service.ListInbox(pb.ListInboxRequest(**fields), NO_CONTEXT)

    async def unread(self, *, caller: Caller = ALICE_HERSELF, **fields: Any) -> types.Unread:
        """Calls GetUnread."""
        with serving(CallContext(caller, None, "", "")):
            return (await self.service.GetUnread(pb.GetUnreadRequest(**fields), NO_CONTEXT)).unread

    async def mark(
        self, kind: types.MarkKind.ValueType, *numbers: int, caller: Caller = ALICE_HERSELF, key: str = ""
    ) -> list[str]:
        """Calls BatchMark with one mark; returns the unknown ids."""
        refs = [types.NotificationRef(notification_id=text(number)) for number in numbers]
        mark = types.Mark(recipient_key=key, device_id="phone", kind=kind, refs=refs)
        with serving(CallContext(caller, None, "", "")):
            response = await self.service.BatchMark(pb.BatchMarkRequest(marks=[mark]), NO_CONTEXT)
        return [ref.notification_id for ref in response.unknown_refs]

    async def mark_all_read(self) -> types.Unread:
        """Calls MarkAllRead."""
        with serving(CallContext(ALICE_HERSELF, None, "", "")):
            return (await self.service.MarkAllRead(pb.MarkAllReadRequest(), NO_CONTEXT)).unread

    async def replay(self, cursor: types.Cursor | None = None, **fields: Any) -> pb.ReplayInboxResponse:
        """Calls ReplayInbox for Alice."""
        with serving(CallContext(GATEWAY, None, "", "")):
            request = pb.ReplayInboxRequest(recipient_key=ALICE, cursor=cursor, **fields)
            return await self.service.ReplayInbox(request, NO_CONTEXT)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    """The service on an empty store."""
    store = open_store("sqlite:///inbox.db", tmp_path)
    await store.open()
    yield Bench(store)
    await store.close()


def text(number: int) -> str:
    """The id of a notification as clients see it."""
    return to_text(make_id(number))


def notification(number: int, revision: int = 1) -> types.Notification:
    """A notification's message."""
    content = types.Content(title=f"number {number}")
    return types.Notification(notification_id=text(number), revision=revision, category="general", content=content)


def real_row(number: int, *, key: str = ALICE, revision: int = 1) -> RowWrite:
    """A row with that message."""
    return RowWrite(key, make_id(number), revision, "general", notification(number, revision).SerializeToString())


def entries(response: pb.ReplayInboxResponse) -> list[tuple[int, bool, types.NotificationState.ValueType]]:
    """Number, whether a body is there, and state of each entry."""
    by_text = {text(number): number for number in range(300)}
    return [(by_text[entry.ref.notification_id], entry.notification != b"", entry.state) for entry in response.entries]


NEW = types.NOTIFICATION_STATE_NEW
READ = types.NOTIFICATION_STATE_READ
HIDDEN = types.NOTIFICATION_STATE_HIDDEN


# ---------------------------------------------------------------- the list


async def test_the_list_has_notifications_with_state_and_number(bench: Bench) -> None:
    """Newest first, in pages; the number is of the whole window on each of them."""
    await bench.put(1, 2, 3)
    await bench.mark(types.MARK_KIND_READ, 2)
    first = await bench.listed(page_size=2)
    assert [(item.notification, item.state) for item in first.items] == [
        (notification(3), NEW),
        (notification(2), READ),
    ]
    rest = await bench.listed(page_size=2, page_token=first.next_page_token)
    assert [item.notification for item in rest.items] == [notification(1)]
    assert rest.next_page_token == ""
    assert first.unread == rest.unread == await bench.unread()
    assert first.unread.unread_count == 2
    assert [item.notification for item in (await bench.listed(unread_only=True)).items] == [
        notification(3),
        notification(1),
    ]


async def test_nobody_lists_another_inbox(bench: Bench) -> None:
    """A recipient is refused, an operator may when it says whose."""
    await bench.put(1)
    with pytest.raises(PermissionDenied):
        await bench.listed(caller=Caller("recipient", "bob", "acme"), recipient_id="alice")
    operator = Caller("operator", "ann")
    assert len((await bench.listed(caller=operator, tenant_id="acme", recipient_id="alice")).items) == 1
    assert (await bench.unread(caller=operator, tenant_id="acme", recipient_id="alice")).unread_count == 1
    with pytest.raises(InvalidArgument):
        await bench.unread(caller=operator)


@pytest.mark.parametrize("fields", [{"page_size": -1}, {"page_token": "guess"}])
async def test_a_bad_page_is_refused(bench: Bench, fields: dict[str, Any]) -> None:
    """With the field named."""
    with pytest.raises(InvalidArgument) as caught:
        await bench.listed(**fields)
    assert [violation.field for violation in caught.value.violations] == list(fields)


async def test_an_empty_inbox_has_no_head(bench: Bench) -> None:
    """Nothing was ever counted there."""
    unread = await bench.unread()
    assert (unread.unread_count, unread.HasField("head_time")) == (0, False)


async def test_the_number_follows_writes_marks_and_expiries(bench: Bench) -> None:
    """What is remembered never outlives what it says."""
    await bench.put(1, 2)
    assert (await bench.unread()).unread_count == 2
    await bench.writer.write([RowWrite(ALICE, make_id(3), 1, "general", b"", NOW_US + 9 * SECOND_US)])
    before = await bench.unread()
    assert before.unread_count == 3
    bench.clock.advance(9.5)
    assert (await bench.unread()).unread_count == 2
    await bench.mark(types.MARK_KIND_HIDDEN, 1)
    after = await bench.unread()
    assert after.unread_count == 1
    assert micros_of(after.head_time) > micros_of(before.head_time)


# ---------------------------------------------------------------- marks


async def test_changes_are_offered_to_other_sessions(bench: Bench) -> None:
    """State, refs, number and the device that said it; acks and repeated marks are no news."""
    await bench.put(1, 2)
    assert await bench.mark(types.MARK_KIND_SEEN, 1) == []
    assert bench.sink.changes == []
    await bench.mark(types.MARK_KIND_READ, 1)
    await bench.mark(types.MARK_KIND_READ, 1)
    (change,) = bench.sink.changes
    assert (change.recipient_key, change.state, change.origin_device_id) == (ALICE, READ, "phone")
    assert [(ref.notification_id, ref.revision) for ref in change.refs] == [(text(1), 1)]
    assert change.unread == await bench.unread()
    assert change.unread.unread_count == 1
    assert len(bench.stored) == 3


async def test_taking_read_back_shows_how_far_it_was(bench: Bench) -> None:
    """UNREAD leaves the ack that READ implied."""
    await bench.put(1)
    await bench.mark(types.MARK_KIND_READ, 1)
    await bench.mark(types.MARK_KIND_UNREAD, 1)
    assert [change.state for change in bench.sink.changes] == [READ, types.NOTIFICATION_STATE_SEEN]
    assert (await bench.unread()).unread_count == 1


async def test_unknown_refs_are_told_and_only_a_gateways_are_kept(bench: Bench) -> None:
    """A recipient's guess is dropped; a gateway's mark may precede its row."""
    assert await bench.mark(types.MARK_KIND_READ, 1) == [text(1)]
    assert await bench.mark(types.MARK_KIND_READ, 2, caller=GATEWAY, key=ALICE) == [text(2)]
    assert bench.sink.changes == []
    await bench.put(1, 2)
    assert [item.state for item in (await bench.listed()).items] == [READ, NEW]


async def test_a_refused_call_stores_nothing(bench: Bench) -> None:
    """A recipient that marks for another one changes nobody's row."""
    await bench.put(1)
    await bench.put(1, key=BOB)
    with pytest.raises(PermissionDenied):
        await bench.mark(types.MARK_KIND_HIDDEN, 1, key=BOB)
    states = await bench.inbox.states([make_key(1), make_key(1, recipient_key=BOB)])
    assert [state is not None and state.hidden for state in states] == [False, False]


async def test_marks_of_a_link_are_kept_without_the_malformed(bench: Bench) -> None:
    """One bad mark does not hold up the others, however many come at once."""
    await bench.put(*range(600))
    marks = [
        types.Mark(
            recipient_key=ALICE if number else "nobody",
            kind=types.MARK_KIND_READ,
            refs=[types.NotificationRef(notification_id=text(number))],
        )
        for number in range(600)
    ]
    await bench.marks.keep(marks)
    states = await bench.inbox.states([make_key(number) for number in (598, 599)])
    assert [state is not None and state.read for state in states] == [True, True]
    assert len(bench.stored) == 599
    await bench.marks.keep([types.Mark()])


async def test_marking_all_read_covers_what_is_listed(bench: Bench) -> None:
    """The number is 0 afterwards; what comes later is unread; repeating it changes nothing."""
    await bench.put(*range(3))
    assert (await bench.mark_all_read()).unread_count == 0
    await bench.put(7)
    assert (await bench.unread()).unread_count == 1
    assert (await bench.mark_all_read()).unread_count == 0
    changed = len(bench.sink.changes)
    assert (await bench.mark_all_read()).unread_count == 0
    assert len(bench.sink.changes) == changed


# ---------------------------------------------------------------- replays


async def test_without_a_cursor_the_whole_window_is_sent(bench: Bench) -> None:
    """As a reload, with the bytes that were stored and the cursor to go on from."""
    await bench.put(1, 2)
    answer = await bench.replay()
    assert entries(answer) == [(1, True, NEW), (2, True, NEW)]
    assert answer.entries[0].notification == notification(1).SerializeToString()
    assert (answer.reload, answer.item_count, answer.unread.unread_count) == (True, 2, 2)
    assert answer.cursor.epoch == bench.inbox.epoch
    assert bench.reloads == ["ABSENT"]
    # The same wire as the list's items: a gateway may read one as the other.
    assert pb.InboxItem.FromString(answer.entries[0].SerializeToString()).notification == notification(1)


async def test_a_replay_sends_only_what_is_new(bench: Bench) -> None:
    """New rows with their bytes, rows that the client has with their new state only, hidden ones as hidden."""
    await bench.put(1, 2, 3)
    bench.clock.advance(10)
    cursor = (await bench.replay()).cursor
    bench.clock.advance(10)
    await bench.mark(types.MARK_KIND_HIDDEN, 1)
    await bench.mark(types.MARK_KIND_READ, 2)
    await bench.put(4, 5)
    received = [types.NotificationRef(notification_id=text(number), revision=1) for number in (2, 5)]
    answer = await bench.replay(cursor, received_refs=received)
    assert entries(answer) == [(1, False, HIDDEN), (2, False, READ), (4, True, NEW)]
    assert (answer.reload, answer.item_count, answer.unread.unread_count) == (False, 4, 3)
    assert bench.reloads == ["ABSENT"]


async def test_a_current_client_gets_a_checkpoint_only(bench: Bench) -> None:
    """No entries, the same checksum, a younger cursor: nineteen times from memory, then from the window again."""
    await bench.put(1)
    bench.clock.advance(10)
    answer = await bench.replay()
    for _ in range(25):
        bench.clock.advance(1)
        later = await bench.replay(answer.cursor)
        assert (list(later.entries), later.next_page_token) == ([], "")
        assert (later.checksum, later.item_count) == (answer.checksum, answer.item_count)
        assert micros_of(later.cursor.stamp_time) > micros_of(answer.cursor.stamp_time)
        answer = later


async def test_a_replay_comes_in_pages(bench: Bench) -> None:
    """Checkpoint on the last page only, reload on each; every row once."""
    await bench.put(*range(5))
    pages = [await bench.replay(page_size=2)]
    while pages[-1].next_page_token:
        assert not pages[-1].HasField("cursor")
        pages.append(await bench.replay(page_size=2, page_token=pages[-1].next_page_token))
    assert [len(page.entries) for page in pages] == [2, 2, 1]
    assert sorted(number for page in pages for number, _, _ in entries(page)) == list(range(5))
    assert all(page.reload for page in pages)
    assert pages[-1].HasField("cursor")
    assert bench.reloads == ["ABSENT"]


async def test_the_cursor_of_a_paged_replay_is_from_its_first_page(bench: Bench) -> None:
    """What became visible while pages were fetched is not skipped by the next replay."""
    await bench.put(*range(3))
    bench.clock.advance(20)
    first = await bench.replay(page_size=2)
    bench.clock.advance(20)
    last = await bench.replay(page_size=2, page_token=first.next_page_token)
    assert micros_of(last.cursor.stamp_time) <= NOW_US + 15 * SECOND_US


@pytest.mark.parametrize(
    ("epoch", "ahead", "reason"), [("foreign", -10, "FOREIGN"), (None, 10, "FUTURE"), (None, -91 * 86_400, "OLD")]
)
async def test_an_unusable_cursor_reloads(bench: Bench, epoch: str | None, ahead: int, reason: str) -> None:
    """Of another store, of the future, or older than the inbox: the whole window comes, and the reason is counted."""
    await bench.put(1)
    stamp_time = timestamp_of(NOW_US + ahead * SECOND_US)
    answer = await bench.replay(types.Cursor(epoch=epoch or bench.inbox.epoch, stamp_time=stamp_time))
    assert (entries(answer), answer.reload) == ([(1, True, NEW)], True)
    assert bench.reloads == [reason]


async def test_a_page_of_another_replay_is_refused(bench: Bench) -> None:
    """A token of a reload does not go on with a cursor, nor a list's token with a replay."""
    await bench.put(*range(3))
    cursor = (await bench.replay()).cursor
    reload_token = (await bench.replay(page_size=1)).next_page_token
    list_token = (await bench.listed(page_size=1)).next_page_token
    for token in (reload_token, list_token, "x"):
        with pytest.raises(InvalidArgument):
            await bench.replay(cursor, page_token=token)


async def replays(bench: Bench, *requests: pb.ReplayInboxRequest) -> list[pb.ReplayInboxResult]:
    """Calls BatchReplayInbox."""
    with serving(CallContext(GATEWAY, None, "", "")):
        response = await bench.service.BatchReplayInbox(pb.BatchReplayInboxRequest(requests=requests), NO_CONTEXT)
    return list(response.results)


async def test_many_replays_are_answered_like_one_each(bench: Bench) -> None:
    """In their order; one that is refused is refused alone."""
    await bench.put(*range(3))
    one = await bench.replay(page_size=2)
    bad = pb.ReplayInboxRequest(recipient_key=ALICE, page_token="x")
    results = await replays(
        bench,
        pb.ReplayInboxRequest(recipient_key=ALICE, page_size=2),
        bad,
        pb.ReplayInboxRequest(recipient_key=BOB),
    )
    assert [result.WhichOneof("result") for result in results] == ["page", "refused", "page"]
    assert entries(results[0].page) == entries(one)
    assert results[1].refused.reason == "FIELD_INVALID"
    assert results[2].page.item_count == 0


async def test_replays_of_a_call_are_read_beside_each_other(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """No session waits for the reads of all before it: each read goes on only when seven others have begun."""
    read, together = bench.inbox.window, asyncio.Barrier(8)

    async def read_with_others(recipient_key: str, now_us: int) -> Window:
        await together.wait()
        return await read(recipient_key, now_us)

    monkeypatch.setattr(bench.inbox, "window", read_with_others)
    await bench.put(1, key="acme/3")
    results = await replays(bench, *[pb.ReplayInboxRequest(recipient_key=f"acme/{number}") for number in range(16)])
    assert [result.page.item_count for result in results] == [int(number == 3) for number in range(16)]


async def test_an_answer_ends_where_it_is_large(bench: Bench) -> None:
    """It has at least one page, and stays far below what a call may carry."""
    large = types.Notification(notification_id=text(1), revision=1, content=types.Content(body="x" * 600_000))
    await bench.writer.write([RowWrite(ALICE, make_id(1), 1, "general", large.SerializeToString())])
    results = await replays(bench, *[pb.ReplayInboxRequest(recipient_key=ALICE)] * 3)
    assert [result.WhichOneof("result") for result in results] == ["page"]


@pytest.mark.parametrize("count", [0, 101])
async def test_no_and_too_many_replays_are_refused(bench: Bench, count: int) -> None:
    """A call asks for 1 to 100."""
    with pytest.raises(InvalidArgument, match="requests"):
        await replays(bench, *[pb.ReplayInboxRequest(recipient_key=ALICE)] * count)


async def test_a_replay_of_no_recipient_is_refused(bench: Bench) -> None:
    """Keys are checked, also in batches of heads."""
    with serving(CallContext(GATEWAY, None, "", "")):
        with pytest.raises(InvalidArgument):
            await bench.service.ReplayInbox(pb.ReplayInboxRequest(recipient_key="alice"), NO_CONTEXT)
        with pytest.raises(InvalidArgument):
            await bench.service.BatchGetHeads(pb.BatchGetHeadsRequest(), NO_CONTEXT)


async def test_heads_come_in_the_order_asked(bench: Bench) -> None:
    """An inbox without rows has no stamp; a changed one has a larger."""
    await bench.put(1)
    with serving(CallContext(GATEWAY, None, "", "")):
        request = pb.BatchGetHeadsRequest(recipient_keys=[BOB, ALICE])
        nobody, first = (await bench.service.BatchGetHeads(request, NO_CONTEXT)).heads
        await bench.mark(types.MARK_KIND_READ, 1)
        _, second = (await bench.service.BatchGetHeads(request, NO_CONTEXT)).heads
    assert not nobody.HasField("stamp_time")
    assert micros_of(first.stamp_time) < micros_of(second.stamp_time)
    assert first.epoch == bench.inbox.epoch


async def test_a_client_on_the_store_keeps_an_equal_copy(bench: Bench) -> None:
    """Random writes, marks and trimming on the real store: replays keep a copy equal without a reload."""
    source = random.Random(11)
    copy: dict[str, types.NotificationState.ValueType] = {}
    cursor: types.Cursor | None = None
    youngest = 0
    for _ in range(60):
        written = [youngest + source.randint(-150, 5) for _ in range(8)]
        youngest = max(youngest, *written)
        await bench.put(*(max(0, number) for number in written))
        if copy and source.random() < 0.5:
            kind = source.choice([types.MARK_KIND_READ, types.MARK_KIND_UNREAD, types.MARK_KIND_HIDDEN])
            await bench.mark(kind, source.choice([number for number in range(youngest + 1) if text(number) in copy]))
        bench.clock.advance(source.choice([1, 8]))
        answer = await bench.replay(cursor, page_size=200)
        assert answer.reload == (cursor is None)
        for entry in answer.entries:
            copy[entry.ref.notification_id] = entry.state
            if entry.state == HIDDEN:
                del copy[entry.ref.notification_id]
        copy = dict(sorted(copy.items(), reverse=True)[:100])
        items = (await bench.listed(page_size=200)).items
        assert list(copy.items()) == [(item.notification.notification_id, item.state) for item in items]
        assert answer.unread.unread_count == sum(state != READ for state in copy.values())
        cursor = answer.cursor
