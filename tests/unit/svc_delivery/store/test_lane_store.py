"""A store with retry lanes: what waited in the file of the inboxes before, URLs that cannot be, parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh.clock import ManualClock
from mesh.errors import StartError
from mesh.sqlite import StoreUrlError
from svc_delivery.ports import FollowUpWrite
from svc_delivery.store import open_store, store_admins
from tests.support.follow_ups import EMBEDDED
from tests.support.inbox import NOW_US, make_row


async def test_what_waited_in_the_file_moves_onto_the_lanes(tmp_path: Path, run_dir: Path) -> None:
    """Once, with its time; nothing that was accepted is forgotten because a setting was changed."""
    before = open_store("sqlite:///inbox.db", tmp_path)
    await before.open()
    for number in range(600):
        follow_up = FollowUpWrite(NOW_US + number * 1_000_000, b"%d" % number, expire_us=NOW_US + 10**12)
        await before.inbox.write([make_row(number % 50)], stamp=NOW_US + number, follow_up=follow_up)
    await before.close()
    clock = ManualClock(wall=NOW_US / 1e6)
    for _ in range(2):
        after = open_store("sqlite:///inbox.db", tmp_path, follow_ups_url=EMBEDDED, run_dir=run_dir, clock=clock)
        await after.open()
        found = await after.follow_ups.due(NOW_US + 10**10, 1_000)
        assert [int(record.record) for record in found] == list(range(600))
        assert {record.due_us - int(record.record) * 1_000_000 for record in found} == {NOW_US}
        assert {record.expire_us for record in found} == {NOW_US + 10**12}
        await after.close()
    back = open_store("sqlite:///inbox.db", tmp_path)
    await back.open()
    assert await back.follow_ups.next_due() is None
    await back.close()


@pytest.mark.parametrize(
    ("url", "follow_ups_url", "says"),
    [
        ("mongodb://x", "", "store_url: 'mongodb://x'.*sqlite:///path.*cassandra://"),
        ("mongodb://me:secret@x", "", "store_url: 'mongodb'"),
        ("inbox.db", "", "store_url: 'inbox.db'"),
        ("sqlite:///inbox.db", "redis://x", "follow_ups_url: 'redis://x'.*kafka://"),
        ("cassandra://x/inboxes", "", "follow_ups_url: must name lanes.*kafka://"),
        ("cassandra://x/Inboxes", "kafka://x/y", "store_url: .*keyspace"),
        ("sqlite:///inbox.db", "kafka://x", "^follow_ups_url: "),
    ],
)
def test_a_url_that_cannot_be_is_refused_in_one_line(tmp_path: Path, url: str, follow_ups_url: str, says: str) -> None:
    """With its setting and the known forms, by the start and by the upkeep; never with a password."""
    for call in (
        lambda: open_store(url, tmp_path, follow_ups_url=follow_ups_url),
        lambda: store_admins(url, follow_ups_url),
    ):
        with pytest.raises((StartError, StoreUrlError), match=says) as refused:
            call()
        assert "secret" not in str(refused.value)
        assert "\n" not in str(refused.value)


def test_each_part_is_known_by_its_setting(tmp_path: Path) -> None:
    """So that health and the log can say what is where; embedded stores need no upkeep."""
    file = open_store("sqlite:///inbox.db", tmp_path)
    assert [(part.setting, part.url) for part in file.parts] == [("store_url", "sqlite:///inbox.db")]
    both = open_store("sqlite:///inbox.db", tmp_path, follow_ups_url=EMBEDDED)
    assert [(part.setting, part.url) for part in both.parts] == [
        ("store_url", "sqlite:///inbox.db"),
        ("follow_ups_url", EMBEDDED),
    ]
    assert list(store_admins("sqlite:///inbox.db", EMBEDDED)) == []
