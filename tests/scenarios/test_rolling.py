"""An upgrade: every service is stopped in order and started again, by `up` if it is a process; nothing is lost."""

from __future__ import annotations

import re
import signal
from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio

from tests.support.audience import Audience, Load, audience, load
from tests.support.cluster import Cluster
from tests.support.ledger import Ledger
from tests.support.one_loop import LoopCluster
from tests.support.shapes import EVERY, name_of, running
from tests.support.wait import until

pytestmark = pytest.mark.timeout(240)

# Who is asked comes before who asks; ingest, whose answers are promises, comes last.
_ORDER: Final = ("presence", "prefs", "gateway-0", "gateway-1", "delivery", "fanout", "ingest")
# Events a second. Slow enough for the window to hold what comes while a client waits for its node: one of them gets
# two thirds; where nothing has to be loaded again, a node is back sooner.
_RATE: Final = 2.0
_LOOP_RATE: Final = 8.0
# The promise is 30 s; the rest is for a machine that is busy.
_SETTLE_LIMIT_S = 45.0
# `up` kills what does not end within 12 s.
_DRAIN_LIMIT_S = 11.0
# A step may cut off what was sent and not acked: at most the frames of the last seconds, once for each screen.
_MOST_REPEATED_SHARE = 0.25


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=EVERY)
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    """One cluster, in each shape."""
    # In one loop clients need no time to be spread over.
    settings = {"GATEWAY_DRAIN_GRACE": "1"} if request.param == "loop" else {}
    async with running(request.param, settings=settings) as cluster:
        yield cluster


def identity(cluster: Cluster, victim: str) -> tuple[int, int]:
    """Tells a process from its successors."""
    one = cluster.process(name_of(cluster, victim))
    return one.pid, one.restart_count


async def replace(cluster: Cluster, name: str) -> None:
    """Stops one process in order, and waits until its successor serves."""
    if isinstance(cluster, LoopCluster):
        await cluster.replace(name)
        return
    seen = len(cluster.output())
    before = cluster.send(name, signal.SIGTERM)
    ended = re.compile(rf"{re.escape(name)}\s+ended with exit code 0;")
    await until(lambda: ended.search(cluster.output(), seen) is not None, _DRAIN_LIMIT_S, f"{name} has ended with 0")
    await cluster.wait_restarted(before)


async def flow(events: Load, count: int) -> None:
    """Waits until so many more events were accepted, and shown to everybody, wherever they are."""
    accepted = events.ledger.accepted
    before = len(accepted)
    await until(lambda: len(accepted) >= before + count, 30.0, f"{count} more events are accepted")
    some = list(accepted)[before : before + count]
    await until(lambda: all(map(events.ledger.reached, some)), _SETTLE_LIMIT_S, f"{count} more events are shown")


async def roll(cluster: Cluster, listeners: Audience, events: Load) -> None:
    """Replaces all, each when the one before serves again and events flow to everybody."""
    for victim in _ORDER:
        await flow(events, 8)
        await replace(cluster, name_of(cluster, victim))
        await until(lambda: listeners.caught_up, 30.0, f"every listener is there after {victim}")
    await flow(events, 8)


async def test_a_rolling_restart_under_load_keeps_every_promise(cluster: Cluster) -> None:
    """Lost 0, shown twice 0, few frames come again, and every process that serves now is another one than before."""
    ledger = Ledger()
    recipients = {f"rolling-r{number}": number % 2 for number in range(6)}
    before = {victim: identity(cluster, victim) for victim in _ORDER}
    async with audience(cluster, ledger, recipients) as listeners:
        assert len(listeners.nodes) == 2
        rate = _LOOP_RATE if isinstance(cluster, LoopCluster) else _RATE
        async with load(cluster, ledger, list(recipients), rate=rate) as events:
            await roll(cluster, listeners, events)
        await until(ledger.settled, _SETTLE_LIMIT_S, "everything that was answered OK is shown")
        # A node that leaves is a client's business, the rest is not.
        moves = [len(screen.sessions) for screen in listeners.screens]
        assert all(2 <= count <= 4 for count in moves), moves
    verdict = ledger.verdict()
    assert verdict.kept, verdict
    assert verdict.due >= 120
    assert verdict.duplicates_on_wire <= verdict.due * _MOST_REPEATED_SHARE, verdict
    for victim, one in before.items():
        assert identity(cluster, victim) != one
    for recipient in recipients:
        items = [item.notification.notification_id for item in await cluster.inbox(recipient)]
        due = {event_id for event_id, named in ledger.accepted.items() if recipient in named}
        assert sorted(items) == sorted(set(items))
        assert set(sorted(due)[-100:]) <= set(items)
