"""Coming back: what was missed comes, and only that; nothing slips through between registering and reading."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from heliograph.type.v1.notification_pb2 import MarkKind, NotificationState
from heliograph_client import Publisher, Receipt
from tests.support.apps import Apps
from tests.support.device import Device, Seen, checksum, window
from tests.support.shapes import EVERY, running
from tests.support.wait import until

pytestmark = pytest.mark.timeout(60)

_NEW, _READ = NotificationState.NOTIFICATION_STATE_NEW, NotificationState.NOTIFICATION_STATE_READ
_HIDDEN = NotificationState.NOTIFICATION_STATE_HIDDEN
_SUPERSEDED = 4500


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=EVERY)
async def apps(request: pytest.FixtureRequest) -> AsyncIterator[Apps]:
    """One cluster for all tests here; each test has recipients of its own."""
    async with running(request.param) as cluster:
        yield Apps(cluster)


@pytest_asyncio.fixture(loop_scope="session")
async def publisher(apps: Apps) -> AsyncIterator[Publisher]:
    """A producer's connection."""
    async with apps.cluster.publisher() as publisher:
        yield publisher


async def publish(publisher: Publisher, recipient: str, count: int, *, category: str = "general") -> list[str]:
    """Publishes some events and returns their ids, oldest first."""
    fields = [publisher.prepare(category=category, to=recipient, title=f"{category} {n}") for n in range(count)]
    answers = await publisher.publish_batch(fields)
    receipts = [answer for answer in answers if isinstance(answer, Receipt)]
    assert len(receipts) == count, answers
    return [receipt.event_id for receipt in receipts]


async def listed(apps: Apps, recipient: str, *ids: str) -> None:
    """Waits until notifications are in the list."""

    async def there() -> bool:
        items = (await apps.list_inbox(recipient)).items
        return set(ids) <= {item.notification.notification_id for item in items}

    await until(there, 15.0, f"{len(ids)} notifications are listed")


def refs(copy: dict[str, Seen]) -> list[tuple[str, int]]:
    """Returns what a hello names of a copy."""
    return [(id_, seen.revision) for id_, seen in sorted(copy.items())][-500:]


def assert_equal(device: Device, copy: dict[str, Seen], number: int = -1) -> None:
    """The copy of a client is what the checkpoint says of the inbox: count, checksum and number."""
    replayed = device.checkpoints[number]
    shown = window(copy)
    assert (len(shown), checksum(shown)) == (replayed.item_count, replayed.checksum)
    assert sum(seen.state != _READ for seen in shown.values()) == replayed.unread.unread_count


async def test_only_what_is_missing_comes_to_a_device_that_was_away(apps: Apps, publisher: Publisher) -> None:
    """With the cursor of its last checkpoint it gets two notifications of five, then none, and its copy is complete."""
    first = await publish(publisher, "ada", 1)
    await listed(apps, "ada", *first)
    async with apps.device("ada") as phone:
        cursor = (await phone.ready()).cursor
        live = await publish(publisher, "ada", 2)
        await phone.has(*live)
        copy = phone.copy()
    missed = await publish(publisher, "ada", 2)
    await listed(apps, "ada", *missed)
    async with apps.device("ada", node=1, cursor=cursor, received=refs(copy)) as phone:
        replayed = await phone.ready()
        assert sorted(phone.ids) == sorted(missed)
        assert not replayed.reload
        cursor, copy = replayed.cursor, phone.copy(copy)
        assert set(copy) == {*first, *live, *missed}
        assert_equal(phone, copy)
    async with apps.device("ada", cursor=cursor, received=refs(copy)) as phone:
        await phone.ready()
        assert phone.ids == []
        assert_equal(phone, copy)


async def test_nothing_slips_through_between_registering_and_reading(apps: Apps, publisher: Publisher) -> None:
    """Devices that connect while events are being published miss none of them, and get each one once and at once."""
    ids: list[str] = []
    async with contextlib.AsyncExitStack() as stack:

        async def connect(worker: int) -> list[Device]:
            names = [f"device-{worker}-{number}" for number in range(16)]
            return [await stack.enter_async_context(apps.device("bea", device_id=name, node=worker)) for name in names]

        connecting = asyncio.gather(*(connect(worker) for worker in range(6)))
        # No more than the window shows.
        while len(ids) < 20 or (not connecting.done() and len(ids) < 95):
            ids += await publish(publisher, "bea", 1)
        devices = [device for found in await connecting for device in found]
        for device in devices:
            await device.ready()
            # A follow-up would bring after 10 s what was missed: it must not be needed.
            await until(lambda device=device: set(ids) <= set(device.ids), 8.0, "it has everything")  # type: ignore[misc] # a default's type is not inferred
        assert [sorted(device.ids) for device in devices] == [sorted(ids)] * len(devices)
    async with apps.device("bea", device_id="late") as late:
        await late.ready()
        assert_equal(late, late.copy())
        assert set(late.ids) == set(ids)


@pytest.mark.parametrize("strange", ["foreign", "future"])
async def test_a_cursor_that_is_none_of_this_inbox_means_reload(apps: Apps, publisher: Publisher, strange: str) -> None:
    """Of another store, or ahead of the clock: the whole window comes and replaces what the device had."""
    recipient = f"cat-{strange}"
    ids = await publish(publisher, recipient, 3)
    await listed(apps, recipient, *ids)
    async with apps.device(recipient) as phone:
        stamp, _, epoch = (await phone.ready()).cursor.partition(".")
    cursor = f"{stamp}.0123456789abcdef" if strange == "foreign" else f"{int(stamp) + 3_600_000_000}.{epoch}"
    stale = {"00000000-0000-8000-8000-000000000000": Seen(1, _NEW), ids[0]: Seen(1, _NEW)}
    async with apps.device(recipient, cursor=cursor, received=refs(stale)) as phone:
        replayed = await phone.ready()
        assert replayed.reload
        assert sorted(phone.ids) == sorted(ids)
        copy = phone.copy(stale)
        assert set(copy) == set(ids)
        assert_equal(phone, copy)
        assert replayed.cursor.partition(".")[2] == epoch


async def test_the_window_has_the_newest_hundred_of_each_class(apps: Apps, publisher: Publisher) -> None:
    """More rows than it shows: a new device gets the window, one that was away ends with the same, high ones stay."""
    early = await publish(publisher, "dan", 4, category="security")
    old = await publish(publisher, "dan", 30)
    await listed(apps, "dan", *early, *old)
    async with apps.device("dan", device_id="away") as away:
        cursor, copy = (await away.ready()).cursor, away.copy()
        assert_equal(away, copy)
    newer = [id_ for _ in range(2) for id_ in await publish(publisher, "dan", 100)]
    newest = await publish(publisher, "dan", 5, category="mention")
    await listed(apps, "dan", *newest)
    # Events of one batch have the same time, so their ids alone say which are newest.
    shown = {*early, *sorted([*old, *newer, *newest])[-100:]}
    async with apps.device("dan", device_id="new") as new:
        replayed = await new.ready()
        assert set(new.ids) == shown
        assert len(new.ids) == replayed.item_count == 104
        assert_equal(new, new.copy())
    async with apps.device("dan", device_id="away", cursor=cursor, received=refs(copy), node=1) as away:
        await away.ready()
        assert set(window(away.copy(copy))) == shown
        assert_equal(away, away.copy(copy))
        # What it had is not sent again.
        assert not set(away.ids) & {*early, *old}


async def test_marks_that_were_made_while_it_was_away_come_with_the_replay(apps: Apps, publisher: Publisher) -> None:
    """As changes of state, without the content it has; the copy is equal at every checkpoint."""
    ids = await publish(publisher, "eva", 4)
    await listed(apps, "eva", *ids)
    assert await apps.mark("eva", MarkKind.MARK_KIND_READ, ids[3]) == []
    async with apps.device("eva") as phone:
        cursor, copy = (await phone.ready()).cursor, phone.copy()
        assert_equal(phone, copy)
    assert await apps.mark("eva", MarkKind.MARK_KIND_READ, ids[0]) == []
    assert await apps.mark("eva", MarkKind.MARK_KIND_HIDDEN, ids[1]) == []
    assert await apps.mark("eva", MarkKind.MARK_KIND_UNREAD, ids[3]) == []
    async with apps.device("eva", cursor=cursor, received=refs(copy)) as phone:
        cursor = (await phone.ready()).cursor
        assert phone.ids == []
        assert (phone.states(ids[0]), phone.states(ids[1])) == ([_READ], [_HIDDEN])
        copy = phone.copy(copy)
        assert {id_ for id_, seen in window(copy).items() if seen.state == _READ} == {ids[0]}
        assert set(window(copy)) == {ids[0], ids[2], ids[3]}
        assert_equal(phone, copy)
    assert await apps.mark_all_read("eva") == 0
    fresh = await publish(publisher, "eva", 1)
    await listed(apps, "eva", *fresh)
    async with apps.device("eva", cursor=cursor, received=refs(copy)) as phone:
        await phone.ready()
        copy = phone.copy(copy)
        assert phone.ids == fresh
        assert {id_ for id_, seen in window(copy).items() if seen.state != _READ} == set(fresh)
        assert_equal(phone, copy)


@pytest.mark.parametrize("node", [0, 1])
async def test_a_device_that_comes_again_takes_the_place_of_its_older_session(
    apps: Apps, publisher: Publisher, node: int
) -> None:
    """On the same node or another: the older one is closed for good, the newer one and other devices live on."""
    recipient = f"fay-{node}"
    async with (
        apps.device(recipient, device_id="phone") as older,
        apps.device(recipient, device_id="tablet") as other,
    ):
        await older.ready()
        await other.ready()
        async with apps.device(recipient, device_id="phone", node=node) as newer:
            await newer.ready()
            assert await older.is_closed() == _SUPERSEDED
            ids = await publish(publisher, recipient, 2)
            for device in (newer, other):
                await device.has(*ids)
                assert (device.ids, device.closed) == (ids, None)
            assert older.ids == []


async def test_acks_that_were_not_confirmed_are_said_again_in_the_hello(apps: Apps, publisher: Publisher) -> None:
    """They are durable when the hello's number is confirmed, although the session that got them is gone."""
    ids = await publish(publisher, "gus", 2)
    await listed(apps, "gus", *ids)
    async with apps.device("gus") as phone:
        await phone.ready()
        phone.cut()
        await phone.is_closed()
    async with apps.device("gus", unconfirmed=[(MarkKind.MARK_KIND_SEEN, ids)]) as phone:
        await phone.has_confirmed(1)
        await phone.ready()
    states = {item.notification.notification_id: item.state for item in (await apps.list_inbox("gus")).items}
    assert states == dict.fromkeys(ids, NotificationState.NOTIFICATION_STATE_SEEN)


async def test_frames_after_a_checkpoint_and_a_cut_are_not_lost(apps: Apps, publisher: Publisher) -> None:
    """A connection that breaks again and again while events come: at the end the copy is complete, by cursor alone."""
    copy: dict[str, Seen] = {}
    cursor = ""
    ids: list[str] = []
    for turn in range(8):
        async with apps.device("hal", cursor=cursor, received=refs(copy), node=turn) as phone:
            ids += await publish(publisher, "hal", 3)
            cursor = (await phone.ready()).cursor
            late = await publish(publisher, "hal", 3)
            ids += late
            # Of the others some are on the wire when it breaks.
            await phone.has(late[0])
            copy = phone.copy(copy)
            phone.cut()
    await listed(apps, "hal", *ids)
    async with apps.device("hal", cursor=cursor, received=refs(copy)) as phone:
        await phone.ready()
        copy = phone.copy(copy)
        assert set(copy) == set(ids)
        assert_equal(phone, copy)
