"""The ends a session can come to by itself: too slow, its token over, too old. None of them costs a notification."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from heliograph.type.v1.notification_pb2 import NotificationState
from heliograph_client import Publisher
from tests.support.apps import Apps
from tests.support.audience import audience, load
from tests.support.device import checksum, window
from tests.support.large_events import fill_sockets
from tests.support.ledger import Ledger
from tests.support.shapes import BOTH, running
from tests.support.wait import until

pytestmark = pytest.mark.timeout(90)

_TOO_SLOW, _TOKEN_EXPIRED, _BROKEN = 4002, 4003, 1006
_SETTLE_LIMIT_S = 40.0
# A session may be behind for 30 s, and lives for hours, unless told otherwise.
_SHORT = {"GATEWAY_BEHIND_LIMIT": "2", "GATEWAY_SESSION_AGE": "4"}


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=BOTH)
async def apps(request: pytest.FixtureRequest) -> AsyncIterator[Apps]:
    """A cluster with short limits."""
    async with running(request.param, settings=_SHORT) as cluster:
        yield Apps(cluster)


@pytest_asyncio.fixture(loop_scope="session")
async def publisher(apps: Apps) -> AsyncIterator[Publisher]:
    """A producer's connection."""
    async with apps.cluster.publisher() as publisher:
        yield publisher


def log_lines(apps: Apps, event: str) -> list[dict[str, object]]:
    """Returns what the gateway nodes logged under a name."""
    found = []
    for index in range(2):
        text = apps.cluster.process(apps.cluster.node(index)).log
        with open(text, encoding="utf-8") as lines:
            found += [json.loads(line) for line in lines if f'"event":"{event}"' in line]
    return found


async def test_a_slow_reader_is_caught_up_from_the_inbox(apps: Apps, publisher: Publisher) -> None:
    """While its socket is full nothing is kept for it; once it reads it gets the rest by replay, in this session."""
    async with apps.device("ada", narrow=True) as slow, apps.device("ben") as other:
        await slow.ready()
        await other.ready()
        slow.stop_reading()
        # The neighbour has it all before the slow one has read anything.
        ids = await fill_sockets(publisher, ["ada", "ben"], other)
        early = len(slow.ids)
        slow.go_on_reading()
        await slow.has(*ids)
        replayed = await slow.ready(2)
        assert early < len(ids)
        # It was behind: what it could not take came by replay, with a state; a live frame has none.
        assert NotificationState.NOTIFICATION_STATE_NEW in {notify.state for notify in slow.notifies}
        assert 0 in {notify.state for notify in slow.notifies}
        assert len(slow.ids) == len(set(slow.ids))
        # Behind the checkpoint may have come more, live: it was read while some were still being published.
        shown = window(slow.copy(checkpoint=2))
        assert (len(shown), checksum(shown)) == (replayed.item_count, replayed.checksum)
        assert slow.closed is None


async def test_a_reader_that_stays_behind_is_closed_and_loses_nothing(apps: Apps, publisher: Publisher) -> None:
    """Too slow for too long ends the session with its code; the next one brings the rest, and neighbours live on."""
    async with apps.device("cat", narrow=True) as slow, apps.device("dan") as other:
        cursor = (await slow.ready()).cursor
        await other.ready()
        slow.stop_reading()
        ids = await fill_sockets(publisher, ["cat", "dan"], other)

        def ended() -> list[object]:
            closed = log_lines(apps, "session_closed")
            return [line["code"] for line in closed if line["recipient_key"] == "acme/cat"]

        await until(lambda: bool(ended()), 20.0, "the session is over")
        assert ended() == [_TOO_SLOW]
        slow.go_on_reading()
        # What is in the socket may end before the closing frame: the node does not wait for those who do not read.
        assert await slow.is_closed() in (_TOO_SLOW, _BROKEN)
        had = [(id_, 1) for id_ in slow.ids]
        assert len(had) < len(ids)
        assert other.closed is None
    async with apps.device("cat", cursor=cursor, received=had) as again:
        await again.ready()
        assert sorted(again.ids) == sorted(set(ids) - {id_ for id_, _ in had})


async def test_a_token_ends_its_session_unless_a_fresh_one_comes(apps: Apps, publisher: Publisher) -> None:
    """4003 when it is over; a fresh token in time keeps the session, somebody else's does not."""
    short = 2.5
    async with (
        apps.device("eva", device_id="idle", token=apps.cluster.token("eva", lifetime=short)) as idle,
        apps.device("eva", device_id="wrong", token=apps.cluster.token("eva", lifetime=short)) as wrong,
        apps.device("eva", device_id="good", token=apps.cluster.token("eva", lifetime=short)) as good,
    ):
        for device in (idle, wrong, good):
            await device.ready()
        await wrong.reauthenticate(apps.cluster.token("fay"))
        await good.reauthenticate(apps.cluster.token("eva"))
        assert [await device.is_closed() for device in (idle, wrong)] == [_TOKEN_EXPIRED] * 2
        assert wrong.refusals == ["CALLER_NOT_ALLOWED"]
        receipt = await publisher.publish(category="general", to="eva", title="to whoever is left")
        await good.has(receipt.event_id)
        assert (good.refusals, good.closed) == ([], None)
        assert receipt.event_id not in idle.ids + wrong.ids


async def test_sessions_that_reach_their_age_come_back_without_loss(apps: Apps) -> None:
    """Each is told to go away and connects again, more than once, while events come: every screen shows each once."""
    ledger = Ledger()
    recipients = {f"aged-r{number}": number % 2 for number in range(6)}
    async with audience(apps.cluster, ledger, recipients) as listeners:
        async with load(apps.cluster, ledger, list(recipients)) as events:
            await until(
                lambda: all(len(screen.sessions) > 2 for screen in listeners.screens), 40.0, "all came back twice"
            )
            await events.flows()
        await until(ledger.settled, _SETTLE_LIMIT_S, "everything that was answered OK is shown")
        endings = {ending for screen in listeners.screens for ending in screen.endings}
    assert endings <= {"closed with 1000", "closed with 4000 SESSION_TOO_OLD"}
    verdict = ledger.verdict()
    assert verdict.kept, verdict
    # To be recycled is no fault: nothing comes twice over the wire either.
    assert verdict.duplicates_on_wire == 0
