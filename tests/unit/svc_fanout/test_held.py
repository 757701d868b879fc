"""A lane whose prefs is away: what goes on, what is held, and that nothing is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heliograph.type.v1 import plan_pb2
from mesh.errors import Unavailable
from svc_fanout import worker as worker_module
from svc_fanout.wishes import OLDEST_S
from tests.support.dispatching import NOTHING, InProcessDelivery, everything, id_of
from tests.support.fanning import Fanout, fanning
from tests.support.far_ends import running
from tests.support.wait import until

_AWAY = Unavailable("no prefs", reason="PEER_UNAVAILABLE")


@pytest.fixture
async def fanout(tmp_path: Path, run_dir: Path) -> AsyncIterator[Fanout]:
    """An empty lane and a process that is not running yet; delivery takes everything."""
    async with fanning(tmp_path, run_dir) as made:
        made.delivery.reply = everything
        yield made


async def test_known_wishes_go_on_for_a_minute(fanout: Fanout) -> None:
    """Cached decisions serve sixty seconds; then an event waits until prefs is back."""
    fanout.prefs.others["bob"] = NOTHING
    async with running(fanout.run):
        await fanout.append(0, recipient_ids=["alice", "bob"])
        await fanout.committed()
        polls = len(fanout.prefs.polls)
        await until(lambda: len(fanout.prefs.polls) > polls + 1)
        fanout.prefs.failure = _AWAY
        fanout.clock.advance(OLDEST_S)
        await fanout.append(1, recipient_ids=["alice", "bob"])
        await fanout.committed()
        assert fanout.outcomes(id_of(1)) == {("alice", 0): 1, ("bob", plan_pb2.SUPPRESS_REASON_OPTED_OUT): 1}
        fanout.clock.advance(0.001)
        await fanout.append(2, recipient_ids=["alice", "bob"])
        await until(lambda: fanout.count("held_events", lane="normal") == 1)
        assert id_of(2) not in fanout.sent()
        assert (await fanout.lane.lag()).record_count == 1
        fanout.prefs.failure = None
        await fanout.committed()
    assert fanout.outcomes(id_of(2)) == {("alice", 0): 1, ("bob", plan_pb2.SUPPRESS_REASON_OPTED_OUT): 1}


async def test_essential_events_do_not_wait(fanout: Fanout) -> None:
    """They go by the default of their category, past those that are held before them; the position stays below."""
    fanout.prefs.failure = _AWAY
    await fanout.append(0, 1)
    await fanout.append(2, category="security", recipient_ids=["alice", "bob"])
    await fanout.append(3)
    await fanout.append(4, category="security")
    async with running(fanout.run):
        await until(lambda: set(fanout.sent()) == {id_of(2), id_of(4)})
        assert fanout.outcomes(id_of(2)) == {("alice", 0): 1, ("bob", 0): 1}
        await until(lambda: fanout.count("events_total", lane="normal") == 2)
        assert (await fanout.lane.lag()).record_count == 5
        fanout.prefs.failure = None
        await fanout.committed()
    assert fanout.sent() == [id_of(number) for number in (2, 4, 0, 1, 3)]


async def test_what_is_known_of_essential_events_still_counts(fanout: Fanout) -> None:
    """The default is only for those of whom nothing is remembered."""
    fanout.prefs.others["bob"] = NOTHING
    async with running(fanout.run):
        await fanout.append(0, category="security", recipient_ids=["bob"])
        await fanout.committed()
        fanout.prefs.failure = _AWAY
        await fanout.append(1, category="security", recipient_ids=["alice", "bob"])
        await fanout.committed()
    assert fanout.outcomes(id_of(1)) == {("alice", 0): 1, ("bob", plan_pb2.SUPPRESS_REASON_OPTED_OUT): 1}


async def test_topics_wait_for_prefs_even_if_essential(fanout: Fanout) -> None:
    """Nobody else knows the subscribers."""
    fanout.prefs.topics = {"t": ["bob"]}
    fanout.prefs.failure = _AWAY
    await fanout.append_topic(0, "t", recipient_ids=["alice"], category="security")
    await fanout.append(1, category="security")
    async with running(fanout.run):
        await until(lambda: fanout.sent() == [id_of(1)])
        fanout.prefs.failure = None
        await fanout.committed()
    assert fanout.outcomes(id_of(0)) == {("alice", 0): 1, ("bob", 0): 1}


async def test_too_many_held_events_stop_the_lane(fanout: Fanout) -> None:
    """Memory is bounded: beyond the limit even essential events are not read, until prefs is back."""
    await fanout.start_anew(held_limit=10, read_limit=5)
    fanout.prefs.failure = _AWAY
    await fanout.append(*range(30))
    await fanout.append(30, category="security")
    async with running(fanout.run):
        await until(lambda: fanout.count("held_events", lane="normal") == 10)
        polls = len(fanout.prefs.polls)
        await until(lambda: len(fanout.prefs.polls) >= polls + 5)
        assert fanout.count("held_events", lane="normal") == 10
        assert [event_id for step, event_id in fanout.steps if step == "read"] == [id_of(n) for n in range(10)]
        assert fanout.delivery.batches == []
        fanout.prefs.failure = None
        await fanout.committed()
    assert fanout.sent() == [id_of(number) for number in range(31)]


async def test_held_recipients_are_bounded_too(fanout: Fanout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few events with many recipients each stop the lane as well."""
    monkeypatch.setattr(worker_module, "LARGEST_HELD_RECIPIENTS", 100)
    await fanout.start_anew(read_limit=1)
    fanout.prefs.failure = _AWAY
    await fanout.append(*range(10), recipient_ids=[f"r{number}" for number in range(40)])
    async with running(fanout.run):
        await until(lambda: fanout.count("held_events", lane="normal") == 3)
        polls = len(fanout.prefs.polls)
        await until(lambda: len(fanout.prefs.polls) >= polls + 5)
        assert fanout.count("held_events", lane="normal") == 3
        fanout.prefs.failure = None
        await fanout.committed()


async def test_held_events_far_behind_stop_the_lane_and_not_for_good(fanout: Fanout) -> None:
    """Essential events go on only so far above one that is held; when prefs is back everything goes."""
    await fanout.start_anew(largest_span=20, read_limit=5)
    fanout.prefs.failure = _AWAY
    await fanout.append(0)
    await fanout.append(*range(1, 60), category="security")
    async with running(fanout.run):
        await until(lambda: len(fanout.sent()) >= 20)
        polls = len(fanout.prefs.polls)
        await until(lambda: len(fanout.prefs.polls) >= polls + 5)
        assert len(fanout.sent()) <= 25
        fanout.prefs.failure = None
        await fanout.committed()
    assert set(fanout.sent()) == {id_of(number) for number in range(60)}


async def test_a_drain_does_not_wait_for_what_is_held(fanout: Fanout) -> None:
    """Held events are read again by the next process; those behind them go twice, which is harmless."""
    fanout.prefs.failure = _AWAY
    await fanout.append(0)
    await fanout.append(1, category="security")
    async with running(fanout.run) as process:
        await until(lambda: fanout.sent() == [id_of(1)])
        await fanout.drain()
        await until(process.done)
    assert (await fanout.lane.lag()).record_count == 2
    fanout.prefs.failure = None
    await fanout.start_anew()
    async with running(fanout.run):
        await fanout.committed()
    assert fanout.sent() == [id_of(1), id_of(0), id_of(1)]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kinds=st.lists(st.sampled_from(["general", "security", "topic"]), min_size=1, max_size=25),
    outages=st.lists(st.booleans(), min_size=1, max_size=6),
    held_limit=st.integers(3, 30),
    crash=st.booleans(),
)
async def test_nothing_is_lost_and_essential_events_do_not_wait(
    fanout: Fanout, kinds: list[str], outages: list[bool], held_limit: int, crash: bool
) -> None:
    """Whatever goes away when: every event is sent in the end, essential ones while fewer are held than the limit."""
    fanout.delivery = InProcessDelivery()
    fanout.delivery.reply = everything
    fanout.prefs.topics = {"t": ["carol"]}
    fanout.prefs.failure = None
    await fanout.start_anew(held_limit=held_limit, read_limit=3)
    share = -(-len(kinds) // len(outages))
    for round_, is_away in enumerate(outages):
        fanout.prefs.failure = _AWAY if is_away else None
        fanout.clock.advance(2 * OLDEST_S)
        here = list(enumerate(kinds))[round_ * share : (round_ + 1) * share]
        for number, kind in here:
            if kind == "topic":
                await fanout.append_topic(number, "t")
            else:
                await fanout.append(number, category=kind)
        async with running(fanout.run) as process:
            waiting = sum(kind != "security" for kind in kinds[: (round_ + 1) * share])
            if not is_away:
                await fanout.committed()
            elif waiting < held_limit:
                essential = {id_of(number) for number, kind in here if kind == "security"}
                await until(lambda essential=essential: essential <= set(fanout.sent()))  # type: ignore[misc] # a default's type is not inferred
            if not crash:
                await fanout.drain()
                await until(process.done)
        await fanout.start_anew()
    fanout.prefs.failure = None
    async with running(fanout.run):
        await fanout.committed()
    assert set(fanout.sent()) == {id_of(number) for number in range(len(kinds))}
