"""What is remembered of prefs' decisions, for how long, and what ends it: `svc_fanout.wishes`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from heliograph.prefs.v1 import prefs_service_pb2
from heliograph.type.v1 import notification_pb2
from mesh.clock import ManualClock
from mesh.errors import Internal, Unavailable, Unimplemented
from mesh.telemetry import Telemetry
from mesh.times import set_micros
from svc_fanout import core
from svc_fanout.core import Decision, Way
from svc_fanout.metrics import Metrics
from svc_fanout.turns import RECIPIENTS_IN_A_ROW
from svc_fanout.wishes import LARGEST_WAYS, OLDEST_S, Wishes
from tests.support.dispatching import LIVE, MUTED, NOTHING, InProcessPrefs
from tests.support.far_ends import running
from tests.support.wait import until

_AWAY = Unavailable("no prefs", reason="PEER_UNAVAILABLE")
_GO, _OFF = core.decision_of(LIVE), core.decision_of(NOTHING)


def way(topic_id: str = "", *, tenant_id: str = "acme", category: str = "general") -> Way:
    """A way that leads to a recipient."""
    return Way(tenant_id, category, notification_pb2.PRIORITY_NORMAL, topic_id)


class Memory:
    """Wishes beside an in-process prefs."""

    def __init__(self, *, most_recipients: int = 1_000, poll_interval: float = 0.002) -> None:
        self.clock = ManualClock()
        self.prefs = InProcessPrefs()
        self.telemetry = Telemetry("fanout")
        self.wishes = Wishes(
            prefs=self.prefs,
            clock=self.clock,
            metrics=Metrics(self.telemetry),
            most_recipients=most_recipients,
            poll_interval=poll_interval,
        )

    async def ask(self, *recipient_ids: str, by: Way | None = None, remember: bool = True) -> dict[str, Decision]:
        """The decisions about these recipients."""
        asked = by or way()
        return dict((await self.wishes.ask({asked: recipient_ids}, remember=remember))[asked])

    def is_answering(self) -> bool:
        """Whether prefs counts as answering."""
        return self.wishes.answering

    def asked(self) -> list[Sequence[str]]:
        """Whom prefs was asked about, call by call."""
        return [[id_ for item in request.items for id_ in item.recipient_ids] for request in self.prefs.requests]


@pytest.fixture
def memory() -> Memory:
    """Nothing is remembered yet."""
    return Memory()


async def test_who_is_known_is_not_asked_about_again(memory: Memory) -> None:
    """In steady state no page asks prefs; only who is new does."""
    memory.prefs.others["b"] = NOTHING
    assert await memory.ask("a", "b") == {"a": _GO, "b": _OFF}
    for _ in range(10):
        assert await memory.ask("a", "b") == {"a": _GO, "b": _OFF}
    assert await memory.ask("a", "c") == {"a": _GO, "c": _GO}
    assert memory.asked() == [["a", "b"], ["c"]]


async def test_ways_tenants_and_categories_are_known_apart(memory: Memory) -> None:
    """A decision about one of them says nothing about another."""
    memory.prefs.muted.add(("t", "a"))
    assert await memory.ask("a", by=way("t")) == {"a": core.decision_of(MUTED)}
    assert await memory.ask("a") == {"a": _GO}
    for other in (way("u"), way(category="mention"), way(tenant_id="beta")):
        await memory.ask("a", by=other)
    assert len(memory.prefs.requests) == 5
    assert await memory.ask("a", by=way("t")) == {"a": core.decision_of(MUTED)}
    assert len(memory.prefs.requests) == 5


async def test_an_opt_out_counts_after_the_next_poll(memory: Memory) -> None:
    """Until then the old decision is used; afterwards only who changed is asked about."""
    await memory.ask("a", "b")
    memory.prefs.change("a", NOTHING)
    assert await memory.ask("a", "b") == {"a": _GO, "b": _GO}
    await memory.wishes.poll()
    assert await memory.ask("a", "b") == {"a": _OFF, "b": _GO}
    assert memory.asked() == [["a", "b"], ["a"]]


async def test_polling_goes_on_by_itself(memory: Memory) -> None:
    """The loop looks again and again, from where it was."""
    await memory.ask("a")
    async with running(memory.wishes.run):
        memory.prefs.change("a", NOTHING)
        await until(lambda: len(memory.prefs.polls) >= 3)
    assert await memory.ask("a") == {"a": _OFF}
    assert [poll.change_number for poll in memory.prefs.polls[:2]] == [7, 8]


async def test_many_changes_are_taken_in_one_poll(memory: Memory) -> None:
    """Page after page, until there are no more."""
    names = [f"r{number}" for number in range(2_500)]
    memory = Memory(most_recipients=10_000)
    await memory.ask(*names)
    for name in names:
        memory.prefs.change(name, NOTHING)
    await memory.wishes.poll()
    assert len(memory.prefs.polls) == 3
    assert set((await memory.ask(*names)).values()) == {_OFF}


async def test_nothing_older_than_a_minute_is_used(memory: Memory) -> None:
    """While prefs answers nothing the last look counts: sixty seconds, and not one more."""
    await memory.ask("a")
    memory.clock.advance(30.0)
    await memory.wishes.poll()
    memory.prefs.change("a", NOTHING)
    memory.prefs.failure = _AWAY
    memory.clock.advance(OLDEST_S)
    await memory.wishes.poll()
    assert await memory.ask("a") == {"a": _GO}
    memory.clock.advance(0.001)
    assert await memory.ask("a") == {}
    memory.prefs.failure = None
    await memory.wishes.poll()
    assert await memory.ask("a") == {"a": _OFF}


async def test_a_mute_that_runs_out_is_asked_about_again(memory: Memory) -> None:
    """A decision with an end is not used beyond it."""
    muted = prefs_service_pb2.Resolution.FromString(MUTED.SerializeToString())
    set_micros(muted.end_time, round((memory.clock.wall() + 10.0) * 1_000_000))
    memory.prefs.others["a"] = muted
    assert not (await memory.ask("a"))["a"].allows
    memory.clock.advance(9.999)
    assert not (await memory.ask("a"))["a"].allows
    assert len(memory.prefs.requests) == 1
    memory.prefs.others.clear()
    memory.clock.advance(0.001)
    assert await memory.ask("a") == {"a": _GO}
    assert len(memory.prefs.requests) == 2


async def test_an_answer_that_a_change_overtook_is_not_remembered(memory: Memory) -> None:
    """It was decided before a change that is known already; the next page asks again."""
    await memory.ask("b")
    decide = memory.prefs.decide

    def slow(request: prefs_service_pb2.BatchResolveRequest) -> prefs_service_pb2.BatchResolveResponse:
        response = decide(request)
        memory.prefs.change("a", NOTHING)
        return response

    memory.prefs.decide = slow  # type: ignore[method-assign]  # the change comes between the answer and its arrival
    resolve = memory.prefs.resolve

    async def overtaken(
        request: prefs_service_pb2.BatchResolveRequest,
    ) -> prefs_service_pb2.BatchResolveResponse:
        response = await resolve(request)
        await memory.wishes.poll()
        return response

    memory.prefs.resolve = overtaken  # type: ignore[method-assign]  # so does the poll that tells of it
    assert await memory.ask("a") == {"a": _GO}
    memory.prefs.decide, memory.prefs.resolve = decide, resolve  # type: ignore[method-assign]  # a quick peer again
    assert await memory.ask("a") == {"a": _OFF}


async def test_a_reset_forgets_everything(memory: Memory) -> None:
    """Another store knows nothing of the numbers of this one; nor do answers that were on their way."""
    await memory.ask("a")
    memory.prefs.change_number = 3
    memory.prefs.others["a"] = NOTHING
    memory.prefs.reset = True
    await memory.wishes.poll()
    memory.prefs.reset = False
    assert await memory.ask("a") == {"a": _OFF}
    await memory.wishes.poll()
    assert memory.prefs.polls[-1].change_number == 3


async def test_a_change_that_cannot_be_read_forgets_everything(memory: Memory) -> None:
    """Whoever it was about must not keep an old decision."""
    await memory.ask("a")
    memory.prefs.change("a", NOTHING)
    memory.prefs._changes.append((9, "no%key"))
    await memory.wishes.poll()
    assert await memory.ask("a") == {"a": _OFF}


async def test_while_prefs_is_away_nobody_waits_for_it(memory: Memory) -> None:
    """The first failure says so; then only the poll asks, until it is heard."""
    await memory.ask("a")
    memory.prefs.failure = _AWAY
    assert await memory.ask("a", "b") == {"a": _GO}
    assert not memory.is_answering()
    calls = len(memory.prefs.requests)
    assert await memory.ask("a", "c") == {"a": _GO}
    assert len(memory.prefs.requests) == calls
    await memory.wishes.poll()
    assert not memory.is_answering()
    memory.prefs.failure = None
    await memory.wishes.poll()
    assert memory.is_answering()
    assert await memory.ask("a", "b", "c") == {"a": _GO, "b": _GO, "c": _GO}


async def test_prefs_is_found_again_when_nothing_is_remembered(memory: Memory) -> None:
    """A process that never had an answer asks for something small until there is one."""
    memory.prefs.failure = _AWAY
    assert await memory.ask("a") == {}
    await memory.wishes.poll()
    memory.prefs.failure = None
    await memory.wishes.poll()
    assert memory.is_answering()
    assert [(poll.change_number, poll.page_size) for poll in memory.prefs.polls] == [(0, 1), (0, 1)]


async def test_without_anything_to_forget_nobody_polls(memory: Memory) -> None:
    """An idle process leaves prefs alone."""
    await memory.wishes.poll()
    assert memory.prefs.polls == []


async def test_a_senseless_answer_is_no_answer(memory: Memory) -> None:
    """Nothing of it is used or remembered."""
    decide = memory.prefs.decide
    memory.prefs.decide = lambda request: prefs_service_pb2.BatchResolveResponse()  # type: ignore[method-assign]  # a broken peer
    assert await memory.ask("a") == {}
    assert not memory.is_answering()
    memory.prefs.decide = decide  # type: ignore[method-assign]  # mended
    await memory.wishes.poll()
    assert await memory.ask("a") == {"a": _GO}


@pytest.mark.parametrize("failure", [Unimplemented("what?", reason=""), Internal("broken", reason="INTERNAL")])
async def test_a_prefs_that_cannot_list_changes_is_asked_every_minute(
    memory: Memory, failure: Unimplemented | Internal
) -> None:
    """What it decides is still used for a minute, and it still counts as answering if it is only older."""
    list_changes = memory.prefs.list_changes

    async def refuse(request: prefs_service_pb2.ListWishChangesRequest) -> prefs_service_pb2.ListWishChangesResponse:
        await list_changes(request)
        raise failure

    memory.prefs.list_changes = refuse  # type: ignore[method-assign]  # an older or broken peer
    await memory.ask("a")
    memory.clock.advance(OLDEST_S)
    await memory.wishes.poll()
    assert await memory.ask("a") == {"a": _GO}
    assert len(memory.prefs.requests) == 1
    memory.clock.advance(1.0)
    assert await memory.ask("a") == {"a": _GO}
    assert len(memory.prefs.requests) == 2
    memory.wishes.lose(_AWAY)
    await memory.wishes.poll()
    assert memory.is_answering() is isinstance(failure, Unimplemented)


async def test_those_not_needed_for_longest_are_forgotten() -> None:
    """Memory is bounded by recipients; using one keeps him."""
    memory = Memory(most_recipients=3)
    await memory.ask("a", "b", "c")
    await memory.ask("a")
    await memory.ask("d")
    assert len(memory.prefs.requests) == 2
    await memory.ask("a", "c", "d")
    assert len(memory.prefs.requests) == 2
    await memory.ask("b")
    assert memory.asked()[-1] == ["b"]


async def test_more_than_can_be_remembered_is_still_decided() -> None:
    """A page larger than the memory gets all its answers."""
    memory = Memory(most_recipients=3)
    names = [f"r{number}" for number in range(10)]
    assert len(await memory.ask(*names)) == 10


async def test_few_ways_of_one_recipient_are_remembered(memory: Memory) -> None:
    """Those first learnt go first, so that a recipient of many topics does not fill memory."""
    for number in range(LARGEST_WAYS + 1):
        await memory.ask("a", by=way(f"t{number}"))
    calls = len(memory.prefs.requests)
    await memory.ask("a", by=way("t1"))
    assert len(memory.prefs.requests) == calls
    await memory.ask("a", by=way("t0"))
    assert len(memory.prefs.requests) == calls + 1


async def test_a_large_audience_pushes_nobody_out(memory: Memory) -> None:
    """Its decisions are used and not remembered."""
    assert await memory.ask("a", remember=False) == {"a": _GO}
    assert await memory.ask("a") == {"a": _GO}
    assert len(memory.prefs.requests) == 2


async def test_questions_at_once_are_answered_at_once(memory: Memory) -> None:
    """Lanes share what is remembered, and none waits for another's answer."""
    found = await asyncio.gather(memory.ask("a"), memory.ask("b"), memory.ask("a", "c"))
    assert list(found) == [{"a": _GO}, {"b": _GO}, {"a": _GO, "c": _GO}]
    calls = len(memory.prefs.requests)
    await memory.ask("a", "b", "c")
    assert len(memory.prefs.requests) == calls


async def test_a_large_audience_is_looked_up_a_piece_at_a_time() -> None:
    """Others get their turn in between, and everybody is found."""
    memory = Memory(most_recipients=3 * RECIPIENTS_IN_A_ROW)
    recipient_ids = [f"r{index}" for index in range(3 * RECIPIENTS_IN_A_ROW)]
    assert dict.fromkeys(recipient_ids, _GO) == await memory.ask(*recipient_ids)
    assert [len(one) for one in memory.asked()] == [core.LARGEST_PAGE] * 3
    asking = asyncio.ensure_future(memory.ask(*recipient_ids))
    turns = 0
    while not asking.done():
        turns += 1
        await asyncio.sleep(0)
    assert len(asking.result()) == 3 * RECIPIENTS_IN_A_ROW
    assert turns > 3
    assert len(memory.asked()) == 3
