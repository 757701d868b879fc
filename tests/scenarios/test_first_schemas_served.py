"""A whole Heliograph that is started on the files of the first release: it serves, and everything in them counts."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from heliograph.prefs.v1 import prefs_service_pb2 as prefs_pb
from heliograph.type.v1.notification_pb2 import Content, Notification
from mesh.errors import AlreadyExists
from mesh.ids import derive_id, to_text
from tests.support.apps import Apps
from tests.support.cluster import Shape
from tests.support.dispatching import make_envelope, make_record
from tests.support.first_schemas import STORES, version_of, write_first
from tests.support.publishing import publish_request, request_id
from tests.support.recipient_calls import calls_of
from tests.support.refusals import judge, refusal_of
from tests.support.shapes import EVERY, kind_of, way_of
from tests.support.site import Site
from tests.support.wait import until

pytestmark = pytest.mark.timeout(60)

RECIPIENT, OWNER = "alice", "acme/alice"
DAY_US = 86_400_000_000


def _notification(number: int, title: str, now: float) -> Notification:
    """What was accepted an hour before now."""
    id_ = to_text(derive_id(round((now - 3_600.0) * 1_000) + number, [title.encode()], False))
    return Notification(
        notification_id=id_, revision=1, category="general", producer_id="demo", content=Content(title=title)
    )


async def _leave_behind(data: Path, now: float) -> None:
    """Writes what the first release had: a list, wishes, an answered request, and an event that nobody has read yet."""
    kept, waiting = _notification(1, "In the list", now), _notification(2, "On its way", now)
    now_us = round(now * 1_000_000)
    id_ = bytes.fromhex(kept.notification_id.replace("-", ""))
    row = (OWNER, 0, id_, 1, now_us, 0, now_us + 80 * DAY_US, "general", kept.SerializeToString())
    columns = "recipient, high, id, revision, stamp, mark_stamp, expire_us, category, content"
    await write_first(
        data,
        "inbox.db",
        (f"insert into inbox({columns}) values (?, ?, ?, ?, ?, ?, ?, ?, ?)", row),
        ("insert into recipient(key, head) values (?, ?)", (OWNER, now_us)),
    )
    off = prefs_pb.Preferences(categories=[prefs_pb.CategoryPreference(category="mention", enabled=False)])
    wishes = ("acme", RECIPIENT, 1, off.SerializeToString())
    await write_first(data, "prefs.db", ("insert into preferences values (?, ?, ?, ?)", wishes))
    asked = bytes.fromhex(request_id(1, now).replace("-", ""))
    done = ("acme/demo", asked, b"d" * 32, round(now * 1_000), now_us, id_, now_us)
    columns = "producer_key, request_id, digest, id_time_ms, begin_micros, event_id, accept_micros"
    await write_first(data, "requests.db", (f"insert into request({columns}) values (?, ?, ?, ?, ?, ?, ?)", done))
    envelope = make_envelope(2, content=waiting.SerializeToString())
    envelope.event_id = envelope.notification_id = waiting.notification_id
    record = make_record(envelope, [RECIPIENT])
    await write_first(
        data,
        "lanes/normal.db",
        ("update lane set epoch = ?", (77,)),
        ("insert into records values (?, ?, ?, ?)", (1, now - 60.0, b"k", b"was read, and would be parked")),
        ("insert into records values (?, ?, ?, ?)", (2, now, OWNER.encode(), record.value)),
    )
    await write_first(data, "positions.db", ("insert into positions values (?, ?, ?)", ("normal", 77, 1)))


@pytest.mark.parametrize("shape", EVERY)
async def test_a_cluster_serves_what_the_first_release_left_behind(shape: Shape, run_dir: Path) -> None:
    """Old rows are listed, wishes and answered requests count, and the lane is read on from where it was left."""
    now = time.time()
    cluster = kind_of(shape)(run_dir, shape=way_of(shape), gateways=1)
    # The first release had files only.
    cluster.on_engines = False
    await _leave_behind(cluster.place.data, now)
    async with cluster:
        site = Site(cluster, ())
        calls = calls_of(site, RECIPIENT)
        again = publish_request("Other content", to=[RECIPIENT], id_=request_id(1, now))
        judge(await refusal_of(site.publish(again)), AlreadyExists, "REQUEST_ID_REUSED")
        answer = await calls.get_preferences(prefs_pb.GetPreferencesRequest())
        enabled = {one.category: one.enabled for one in answer.preferences.categories}
        assert (enabled["mention"], enabled["general"]) == (False, True)
        event_id = (await site.publish(publish_request("Of today", to=[RECIPIENT]))).event_id
        async with Apps(cluster).device(RECIPIENT) as device:
            await device.has(event_id)
            await until(lambda: len(set(device.ids)) == 3, 10.0, "the whole list has come")
        assert set(device.titles) == {"In the list", "On its way", "Of today"}
        assert len((await site.inbox(RECIPIENT)).items) == 3
        await site.has_nothing_left()
        await site.close()
    for name, migrations in STORES.items():
        assert version_of(cluster.place.data / name) == len(migrations), name
