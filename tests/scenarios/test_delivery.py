"""What reaches whom, without faults: through all six services, in every form, over sessions and calls."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from heliograph.type.v1.notification_pb2 import MarkKind, NotificationState, Priority
from heliograph.type.v1.plan_pb2 import SuppressReason
from heliograph_client.publisher import Publisher
from mesh.ids import from_text
from tests.support.apps import Apps
from tests.support.cluster import TENANT
from tests.support.device import checksum, window
from tests.support.shapes import EVERY, running
from tests.support.stored import decisions
from tests.support.wait import until

pytestmark = pytest.mark.timeout(60)

_READ, _SEEN = NotificationState.NOTIFICATION_STATE_READ, NotificationState.NOTIFICATION_STATE_SEEN
_NEW, _RECEIVED = NotificationState.NOTIFICATION_STATE_NEW, NotificationState.NOTIFICATION_STATE_RECEIVED
_HIDDEN = NotificationState.NOTIFICATION_STATE_HIDDEN


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=EVERY)
async def apps(request: pytest.FixtureRequest) -> AsyncIterator[Apps]:
    """One installation for all tests here; each test has recipients of its own."""
    async with running(request.param) as cluster:
        yield Apps(cluster)


@pytest_asyncio.fixture(loop_scope="session")
async def publisher(apps: Apps) -> AsyncIterator[Publisher]:
    """A producer's connection."""
    async with apps.cluster.publisher() as publisher:
        yield publisher


async def test_one_publish_reaches_a_live_listener_and_its_ack_comes_home(apps: Apps, publisher: Publisher) -> None:
    """The frame says what was published, the ack is durable when it is confirmed, and the list knows of it."""
    async with apps.device("ada") as phone:
        assert (await phone.ready()).item_count == 0
        receipt = await publisher.publish(
            category="general",
            to="ada",
            title="Build 7 is green",
            body="all of it",
            link="/builds/7",
            data={"n": 7},
            ttl=600,
        )
        await phone.has(receipt.event_id)
        (notify,) = phone.notifies
        note = notify.notification
        assert (note.notification_id, note.revision, note.category) == (receipt.event_id, 1, "general")
        assert (note.content.title, note.content.body, note.content.link) == (
            "Build 7 is green",
            "all of it",
            "/builds/7",
        )
        assert (note.content.data_json, note.priority, note.producer_id) == (
            '{"n":7}',
            Priority.PRIORITY_NORMAL,
            "demo",
        )
        assert note.expire_time.ToMilliseconds() - note.event_time.ToMilliseconds() == 600_000
        # A live frame is the same for every recipient: nothing is said about a state.
        assert notify.state == 0
        number = await phone.mark(MarkKind.MARK_KIND_RECEIVED, receipt.event_id)
        await phone.has_confirmed(number)
        (item,) = (await apps.list_inbox("ada")).items
        assert (item.notification, item.state) == (note, _RECEIVED)
        await phone.has_confirmed(await phone.mark(MarkKind.MARK_KIND_SEEN, receipt.event_id))
        (item,) = (await apps.list_inbox("ada")).items
        assert item.state == _SEEN
        assert await apps.unread("ada") == 1
        assert phone.ids == [receipt.event_id]


async def test_every_device_of_every_recipient_gets_it_once(apps: Apps, publisher: Publisher) -> None:
    """On whichever node they are; nobody else gets anything."""
    async with (
        apps.device("bea", device_id="phone", node=0) as phone,
        apps.device("bea", device_id="tablet", node=1) as tablet,
        apps.device("ben", node=1) as other,
        apps.device("bob") as stranger,
    ):
        devices = (phone, tablet, other)
        for device in (*devices, stranger):
            await device.ready()
        receipts = [
            await publisher.publish(category="general", to=["bea", "ben", "bea"], title=f"to three {n}")
            for n in range(5)
        ]
        mine = await publisher.publish(category="general", to="bob", title="for bob")
        for device in devices:
            await device.has(*(receipt.event_id for receipt in receipts))
        await stranger.has(mine.event_id)
        for device in devices:
            # Events without an ordering key may overtake each other.
            assert sorted(device.ids) == sorted(receipt.event_id for receipt in receipts)
        assert stranger.ids == [mine.event_id]


async def test_every_form_says_the_same(apps: Apps, publisher: Publisher) -> None:
    """Text, binary and gRPC frames of one recipient differ in their form only, live and replayed."""
    async with (
        apps.device("cat", device_id="web", form="json", node=1) as web,
        apps.device("cat", device_id="app", form="proto", node=1) as app,
        apps.device("cat", device_id="tablet", form="grpc", node=1) as tablet,
    ):
        devices = (web, app, tablet)
        for device in devices:
            await device.ready()
        receipt = await publisher.publish(category="mention", to="cat", title="Grüße, “Cat” ☂", data={"a": [1, "ü"]})
        for device in devices:
            await device.has(receipt.event_id)
            await device.has_confirmed(await device.mark(MarkKind.MARK_KIND_RECEIVED, receipt.event_id))
        assert web.notifies == app.notifies == tablet.notifies
        assert await apps.mark("cat", MarkKind.MARK_KIND_READ, receipt.event_id) == []
        for device in devices:
            await device.is_told(receipt.event_id, _READ)
        changes = [[frame.changed for frame in device.frames if frame.HasField("changed")] for device in devices]
        assert changes[0] == changes[1] == changes[2]
    async with (
        apps.device("cat", device_id="web2", form="json") as web,
        apps.device("cat", device_id="app2", form="proto") as app,
        apps.device("cat", device_id="tablet2", form="grpc") as tablet,
    ):
        last = [await device.ready() for device in (web, app, tablet)]
        assert web.notifies == app.notifies == tablet.notifies
        assert [notify.state for notify in web.notifies] == [_READ]
        for replayed in last:
            replayed.cursor = ""
        assert last[0] == last[1] == last[2]


async def test_priorities_go_by_their_own_lanes_and_places(apps: Apps, publisher: Publisher) -> None:
    """The category's default is used when the producer names none; an id alone says whether it is of high priority."""
    async with apps.device("dan") as phone:
        await phone.ready()
        wanted = [
            (await publisher.publish(category="security", to="dan", title="high by default"), Priority.PRIORITY_HIGH),
            (await publisher.publish(category="newsletter", to="dan", title="bulk by default"), Priority.PRIORITY_BULK),
            (
                await publisher.publish(category="general", to="dan", title="high", priority="high"),
                Priority.PRIORITY_HIGH,
            ),
            (await publisher.publish(category="general", to="dan", title="normal"), Priority.PRIORITY_NORMAL),
        ]
        await phone.has(*(receipt.event_id for receipt, _ in wanted))
        got = {notify.notification.notification_id: notify.notification.priority for notify in phone.notifies}
        assert got == {receipt.event_id: priority for receipt, priority in wanted}
        for event_id, priority in got.items():
            assert from_text(event_id)[-1] & 1 == (priority == Priority.PRIORITY_HIGH)
    listed = [item.notification.notification_id for item in (await apps.list_inbox("dan")).items]
    assert listed == sorted(got, reverse=True)


async def test_who_opted_out_gets_nothing_and_a_record_says_why(apps: Apps, publisher: Publisher) -> None:
    """Neither list nor session has it; the decision is kept with its reason, and other categories still come."""
    await apps.choose("eva", "newsletter", enabled=False)
    async with apps.device("eva") as phone:
        await phone.ready()
        unwanted = await publisher.publish(category="newsletter", to=["eva", "emil"], title="weekly")
        wanted = await publisher.publish(category="newsletter", to="emil", title="weekly 2")
        marker = await publisher.publish(category="general", to="eva", title="something else")

        unwanted_id = from_text(unwanted.event_id)

        async def is_decided() -> bool:
            return bool(await decisions(apps.cluster, TENANT, unwanted_id))

        await until(is_decided, 10.0, "the decision is recorded")
        await phone.has(marker.event_id)
        assert await decisions(apps.cluster, TENANT, unwanted_id) == [
            (TENANT, SuppressReason.SUPPRESS_REASON_OPTED_OUT, "eva")
        ]
        assert phone.ids == [marker.event_id]
    assert [item.notification.notification_id for item in (await apps.list_inbox("eva")).items] == [marker.event_id]
    both = [wanted.event_id, unwanted.event_id]

    async def emil_has_both() -> bool:
        return [item.notification.notification_id for item in (await apps.list_inbox("emil")).items] == both

    await until(emil_has_both, 10.0, "the other recipient of the same event has it")


async def test_who_wants_the_list_only_is_not_disturbed(apps: Apps, publisher: Publisher) -> None:
    """With live switched off it is listed, unread and replayed, but no frame is pushed."""
    await apps.choose("fay", "general", live=False)
    async with apps.device("fay") as phone:
        await phone.ready()
        quiet = await publisher.publish(category="general", to="fay", title="for later")
        loud = await publisher.publish(category="mention", to="fay", title="for now")
        await phone.has(loud.event_id)

        async def listed() -> bool:
            return len((await apps.list_inbox("fay")).items) == 2

        await until(listed, 10.0, "both are listed")
        assert phone.ids == [loud.event_id]
        assert await apps.unread("fay") == 2
    async with apps.device("fay", device_id="tablet") as tablet:
        assert (await tablet.ready()).item_count == 2
        assert set(tablet.ids) == {quiet.event_id, loud.event_id}


async def test_a_mark_of_one_session_reaches_the_others(apps: Apps, publisher: Publisher) -> None:
    """As a change of state and as a number, on every node, and not to the device that said it."""
    async with (
        apps.device("gus", device_id="phone", node=0) as phone,
        apps.device("gus", device_id="tablet", node=1) as tablet,
        apps.device("gus", device_id="web", node=0, form="json") as web,
    ):
        devices = (phone, tablet, web)
        for device in devices:
            await device.ready()
        first = await publisher.publish(category="general", to="gus", title="one")
        second = await publisher.publish(category="general", to="gus", title="two")
        for device in devices:
            await device.has(first.event_id, second.event_id)
        await phone.has_confirmed(await phone.mark(MarkKind.MARK_KIND_READ, first.event_id))
        for device in (tablet, web):
            await device.is_told(first.event_id, _READ)
            await device.counts_unread(1)
        await tablet.has_confirmed(await tablet.mark(MarkKind.MARK_KIND_UNREAD, first.event_id))
        for device in (phone, web):
            await device.counts_unread(2)
            assert device.states(first.event_id)[-1] != _READ
        await web.has_confirmed(await web.mark(MarkKind.MARK_KIND_HIDDEN, second.event_id))
        for device in (phone, tablet):
            await device.is_told(second.event_id, _HIDDEN)
        # Each heard what the two others said, and nothing of its own.
        assert phone.states(second.event_id) == tablet.states(second.event_id) == [_HIDDEN]
        assert web.states(second.event_id) == []
        assert tablet.states(first.event_id) == [_READ]
    (item,) = (await apps.list_inbox("gus")).items
    assert item.notification.notification_id == first.event_id


async def test_calls_reach_live_sessions(apps: Apps, publisher: Publisher) -> None:
    """A mark without a session is told to all devices; "mark all read" covers what is listed, and nothing later."""
    async with (
        apps.device("hal", device_id="phone", node=0) as phone,
        apps.device("hal", device_id="web", node=1) as web,
    ):
        await phone.ready()
        await web.ready()
        receipts = [await publisher.publish(category="general", to="hal", title=f"n{n}") for n in range(4)]
        ids = [receipt.event_id for receipt in receipts]
        for device in (phone, web):
            await device.has(*ids)
        assert await apps.mark("hal", MarkKind.MARK_KIND_READ, ids[0]) == []
        for device in (phone, web):
            await device.is_told(ids[0], _READ)
        assert await apps.unread("hal") == 3
        assert [
            item.notification.notification_id for item in (await apps.list_inbox("hal", unread_only=True)).items
        ] == (ids[:0:-1])
        assert await apps.mark_all_read("hal") == 0
        for device in (phone, web):
            for id_ in ids:
                await device.is_told(id_, _READ)
            await device.counts_unread(0)
        late = await publisher.publish(category="general", to="hal", title="late")
        await phone.has(late.event_id)
        assert await apps.unread("hal") == 1
        unknown = late.event_id[:-4] + "0000"
        assert await apps.mark("hal", MarkKind.MARK_KIND_READ, unknown, late.event_id) == [unknown]
        await phone.is_told(late.event_id, _READ)
        assert await apps.unread("hal") == 0


async def test_a_repeated_publish_changes_nothing(apps: Apps, publisher: Publisher) -> None:
    """The same request again, also as part of a batch, is answered with the same event and delivered once."""
    async with apps.device("ina") as phone:
        await phone.ready()
        prepared = publisher.prepare(category="general", to="ina", title="once")
        first = await publisher.publish(prepared)
        again = await publisher.publish(prepared)
        batch = await publisher.publish_batch([prepared])
        assert (first.replayed, again.replayed) == (False, True)
        assert {first.event_id} == {again.event_id, *(getattr(answer, "event_id", "") for answer in batch)}
        marker = await publisher.publish(category="general", to="ina", title="marker")
        await phone.has(marker.event_id)
        assert phone.ids == [first.event_id, marker.event_id]


async def test_a_new_device_gets_the_window_with_its_states(apps: Apps, publisher: Publisher) -> None:
    """The whole list comes as a reload, and count, number and checksum say that it is complete."""
    receipts = [await publisher.publish(category="general", to="jan", title=f"n{n}") for n in range(3)]
    ids = [receipt.event_id for receipt in receipts]

    async def listed() -> bool:
        return len((await apps.list_inbox("jan")).items) == 3

    await until(listed, 10.0, "all are listed")
    assert await apps.mark("jan", MarkKind.MARK_KIND_READ, ids[1]) == []
    assert await apps.mark("jan", MarkKind.MARK_KIND_HIDDEN, ids[2]) == []
    async with apps.device("jan") as phone:
        replayed = await phone.ready()
        copy = phone.copy()
        assert {id_: seen.state for id_, seen in copy.items()} == {ids[0]: _NEW, ids[1]: _READ}
        assert (replayed.reload, replayed.item_count, replayed.unread.unread_count) == (True, 2, 1)
        assert replayed.checksum == checksum(window(copy))
