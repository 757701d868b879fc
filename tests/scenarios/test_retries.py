"""After the ack window: rows written late, channels one after the other, dead letters and their way back.

The service's own objects in one loop, over in-process ports; time is the test's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from heliograph.delivery.v1 import dead_letter_service_pb2 as pb
from heliograph.type.v1 import plan_pb2
from mesh.ids import from_text
from svc_delivery.ports import AckLevel, RowsRefused
from svc_delivery.ports_channels import Refused, Retry, Sent
from tests.support.backends import SqlitePoison
from tests.support.delivering import store_down
from tests.support.dispatching import NOTHING
from tests.support.far_ends import running
from tests.support.retrying import FIRST, SECOND, Retrying, envelope_of, id_of, plan_of, retrying
from tests.support.wait import until

STORE_REFUSED = pb.DEAD_LETTER_REASON_STORE_REFUSED
TRIES_EXHAUSTED = pb.DEAD_LETTER_REASON_TRIES_EXHAUSTED


@pytest.fixture
async def delivery(tmp_path: Path) -> AsyncIterator[Retrying]:
    """A delivery whose loops are not running."""
    async with retrying(tmp_path) as made:
        yield made


@pytest.fixture
def poison(tmp_path: Path, delivery: Retrying) -> SqlitePoison:
    """What makes its store refuse rows of the category "poison"."""
    made = SqlitePoison(tmp_path / "inbox.db")
    made.refuse()
    return made


async def redriven(delivery: Retrying, *, validate_only: bool = False) -> tuple[int, int]:
    """Redrives every letter; how many went and how many did not."""
    listed = await delivery.letters.ListDeadLetters(pb.ListDeadLettersRequest(), None)  # type: ignore[arg-type]  # not used
    request = pb.RedriveDeadLettersRequest(
        dead_letter_ids=[letter.dead_letter_id for letter in listed.dead_letters], validate_only=validate_only
    )
    answer = await delivery.letters.RedriveDeadLetters(request, None)  # type: ignore[arg-type]  # not used
    return answer.redriven_count, len(answer.refused_dead_letter_ids)


async def test_a_refused_row_is_written_later(delivery: Retrying, poison: SqlitePoison) -> None:
    """Its neighbours are not held up, nobody is offered what is not durable, and once written it goes its usual way."""
    delivery.presence.where = {"acme/alice": ("n1",), "acme/bob": ("n1",)}
    stored = await delivery.dispatch(
        envelope_of(1), envelope_of(2, category="poison"), envelope_of(3), to=["alice", "bob"]
    )
    assert stored.refusals == []
    assert [offer.envelope.event_id for offer in stored.offers] == [id_of(1), id_of(3)]
    assert [await delivery.row(number) is not None for number in (1, 2, 3)] == [True, False, True]
    assert sorted(await delivery.waiting()) == [(10.0, "follow_ups"), (10.0, "row")]
    explained = await delivery.explained(2)
    assert [step.decision for step in explained.steps] == ["accepted", "retry"]
    poison.accept()
    await delivery.after(10.0)
    assert (await delivery.row(2), await delivery.row(2, "bob")) != (None, None)
    assert await delivery.buried() == []
    async with running(delivery.offers.run):
        await until(lambda: delivery.offers.waiting == 0)
    assert id_of(2) in [envelope.event_id for _, envelope, _ in delivery.nodes.offered]
    # Its own follow-up looks whether somebody acked it.
    assert (10.0, "follow_ups") in await delivery.waiting()


async def test_what_a_healthy_store_keeps_refusing_is_buried_and_comes_back(
    delivery: Retrying, poison: SqlitePoison
) -> None:
    """After 10 s, 1 min and 10 min each row is a dead letter of its own with four attempts; redriven it is written."""
    await delivery.dispatch(envelope_of(1, category="poison"), to=["alice", "bob"])
    for seconds in (10.0, 60.0):
        await delivery.after(seconds)
        assert await delivery.buried() == []
    await delivery.after(600.0)
    buried = await delivery.buried()
    assert [(letter.reason, letter.tenant_id) for letter in buried] == [(STORE_REFUSED, "acme")] * 2
    assert {letter.recipient_key for letter in buried} == {"acme/alice", "acme/bob"}
    assert await delivery.waiting() == []
    letter = await delivery.letters.GetDeadLetter(
        pb.GetDeadLetterRequest(dead_letter_id=(await delivery.explained(1)).steps[-1].detail.rpartition(" ")[2]),
        None,  # type: ignore[arg-type]  # not used
    )
    attempts = letter.dead_letter.attempts
    assert [attempt.attempt_number for attempt in attempts] == [1, 2, 3, 4]
    assert [round(attempt.attempt_time.seconds - attempts[0].attempt_time.seconds) for attempt in attempts] == [
        0, 10, 70, 670,
    ]  # fmt: skip
    assert all("poisoned" in attempt.outcome for attempt in attempts)
    assert letter.dead_letter.envelope == envelope_of(1, category="poison")
    # While the store refuses it still, it stays.
    assert await redriven(delivery) == (0, 2)
    poison.accept()
    assert await redriven(delivery, validate_only=True) == (2, 0)
    assert await delivery.row(1) is None
    assert await redriven(delivery) == (2, 0)
    assert await delivery.row(1) is not None
    assert await delivery.row(1, "bob") is not None
    assert await delivery.buried() == []
    assert await delivery.waiting() == [(10.0, "follow_ups")] * 2


async def test_a_store_that_is_down_brings_nothing_nearer_to_a_dead_letter(
    delivery: Retrying, poison: SqlitePoison
) -> None:
    """A try counts only when somebody answered: after an hour without the store the row has its tries still."""
    await delivery.dispatch(envelope_of(1, category="poison"))
    await delivery.after(10.0)
    delivery.inbox.failure = store_down()
    async with running(delivery.worker.run):
        before = delivery.inbox.calls["write"]
        delivery.clock.advance(3_600.0)
        await until(lambda: delivery.inbox.calls["write"] >= before + 5)
    delivery.inbox.failure = None
    assert await delivery.buried() == []
    assert [kind for _, kind in await delivery.waiting()] == ["row"]
    poison.accept()
    await delivery.after(0.0)
    assert await delivery.row(1) is not None


async def test_an_expired_or_unwanted_row_is_not_written_late(delivery: Retrying, poison: SqlitePoison) -> None:
    """Expiry and wishes are asked again; why nothing came is kept."""
    await delivery.dispatch(envelope_of(1, category="poison", expire_s=5.0), envelope_of(2, category="poison"))
    poison.accept()
    delivery.prefs.others["alice"] = NOTHING
    await delivery.after(10.0)
    assert [await delivery.row(number) for number in (1, 2)] == [None, None]
    reasons = [(await delivery.explained(number)).suppress_reason for number in (1, 2)]
    assert reasons == [plan_pb2.SUPPRESS_REASON_EXPIRED, plan_pb2.SUPPRESS_REASON_OPTED_OUT]
    assert await delivery.waiting() == []


async def test_an_unwanted_row_that_may_be_stored_is_written_and_shown_to_nobody(delivery: Retrying) -> None:
    """What a try without an answer left behind is under a stamp that no cursor finds: so that all devices have it."""
    delivery.presence.where = {"acme/alice": ("n1",)}
    delivery.inbox.failure = RowsRefused({0: "no quorum answered in time"}, [0])
    await delivery.dispatch(envelope_of(1))
    delivery.inbox.failure = None
    delivery.prefs.others["alice"] = NOTHING
    await delivery.after(10.0)
    assert await delivery.row(1) is not None
    assert delivery.offers.waiting == 0
    assert await delivery.waiting() == []


async def test_the_next_channel_has_its_turn_then_retries_then_a_dead_letter_comes_back(delivery: Retrying) -> None:
    """Unacked → first channel → its window → second channel, four tries → buried → redriven → sent."""
    first = delivery.channel(FIRST)
    second = delivery.channel(SECOND, *[Retry("busy")] * 4)
    delivery.presence.where = {"acme/alice": ("n1",)}
    await delivery.dispatch(envelope_of(1), plan=plan_of(FIRST, SECOND))
    await delivery.after(9.9)
    assert first.calls == []
    await delivery.after(0.1)
    ((recipient_key, attempt, envelope),) = first.calls
    assert (recipient_key, attempt.channel, attempt.attempt_number) == ("acme/alice", FIRST, 1)
    assert (envelope.event_id, envelope.category) == (id_of(1), "general")
    assert envelope.notification == envelope_of(1).notification
    await delivery.after(9.9)
    assert second.calls == []
    for seconds, attempts in ((0.1, 1), (9.9, 1), (0.1, 2), (60.0, 3)):
        await delivery.after(seconds)
        assert second.attempts == list(range(1, attempts + 1))
    assert await delivery.buried() == []
    await delivery.after(600.0)
    assert (second.attempts, first.attempts) == ([1, 2, 3, 4], [1])
    assert len({attempt.collapse_id for _, attempt, _ in second.calls}) == 1
    (letter,) = await delivery.buried()
    shown = pb.DeadLetter.FromString(letter.letter)
    assert (letter.reason, shown.channel, len(shown.attempts)) == (TRIES_EXHAUSTED, SECOND, 4)
    assert await delivery.waiting() == []
    assert [step.decision for step in (await delivery.explained(1)).steps][-1] == "dead letter"
    assert await redriven(delivery) == (1, 0)
    await delivery.after(0.0)
    assert (second.attempts, first.attempts) == ([1, 2, 3, 4, 1], [1])
    assert second.calls[-1][1].collapse_id == second.calls[0][1].collapse_id
    assert await delivery.buried() == []
    assert await delivery.waiting() == []


async def test_an_ack_in_time_cancels_the_next_channel(delivery: Retrying) -> None:
    """One that says "in the foreground" or more does; "a device has it" does not."""
    sender = delivery.channel(FIRST)
    await delivery.dispatch(envelope_of(1), envelope_of(2), envelope_of(3), plan=plan_of(FIRST))
    await delivery.ack(1, AckLevel.FOREGROUND)
    await delivery.ack(2, AckLevel.RECEIVED)
    delivery.settled.add(("acme/alice", from_text(id_of(2))))
    await delivery.ack(3, AckLevel.SEEN)
    await delivery.after(10.0)
    assert [envelope.event_id for _, _, envelope in sender.calls] == [id_of(2)]


async def test_an_ack_between_two_channels_ends_the_story(delivery: Retrying) -> None:
    """The second channel is not bothered when the first one's window brought an ack."""
    first, second = delivery.channel(FIRST), delivery.channel(SECOND)
    await delivery.dispatch(envelope_of(1), plan=plan_of(FIRST, SECOND))
    await delivery.after(10.0)
    assert first.attempts == [1]
    await delivery.ack(1, AckLevel.SEEN)
    await delivery.after(10.0)
    assert second.calls == []
    assert await delivery.waiting() == []


async def test_wishes_that_changed_before_the_late_send_are_obeyed(delivery: Retrying) -> None:
    """Suppressed with a decision that explains it; the row that was shown before stays."""
    sender = delivery.channel(FIRST)
    await delivery.dispatch(envelope_of(1), to=["alice", "bob"], plan=plan_of(FIRST))
    delivery.prefs.others["alice"] = NOTHING
    await delivery.after(10.0)
    assert [recipient_key for recipient_key, _, _ in sender.calls] == ["acme/bob"]
    explained = await delivery.explained(1)
    assert ("suppressed", "opted_out") in [(step.decision, step.detail) for step in explained.steps]
    assert await delivery.waiting() == []


async def test_a_dead_letter_that_is_not_wanted_any_more_stays(delivery: Retrying) -> None:
    """Redrive judges under today's wishes, expiry and row; what cannot be delivered is answered as refused."""
    delivery.channel(FIRST, *[Refused("no address")] * 4)
    await delivery.dispatch(
        envelope_of(1), envelope_of(2), envelope_of(3, expire_s=60.0), to=["a"], plan=plan_of(FIRST)
    )
    await delivery.dispatch(envelope_of(4), to=["alice"], plan=plan_of(FIRST))
    await delivery.after(10.0)
    assert len(await delivery.buried()) == 4
    delivery.prefs.others["alice"] = NOTHING
    await delivery.ack(2, AckLevel.SEEN, "a")
    delivery.clock.advance(100.0)
    assert await redriven(delivery, validate_only=True) == (1, 3)
    assert await redriven(delivery) == (1, 3)
    assert len(await delivery.buried()) == 3


async def test_a_channel_without_a_sender_is_passed_over(delivery: Retrying) -> None:
    """With its reason in the row; the one behind it has its turn at once."""
    sender = delivery.channel(SECOND)
    delivery.prefs.default.channels.append(FIRST)  # type: ignore[arg-type]  # a channel of tests
    await delivery.dispatch(envelope_of(1), plan=plan_of(FIRST, SECOND))
    await delivery.after(10.0)
    assert sender.attempts == [1]
    assert await delivery.steps(1) == [(2, 1, "skipped"), (3, 1, "sent")]
    assert any("no sender" in step.detail for step in (await delivery.explained(1)).steps)


async def test_a_crash_between_call_and_cell_repeats_the_same_attempt(tmp_path: Path) -> None:
    """The heir makes it again under the same id; an outcome that was noted is not called for twice."""
    async with retrying(tmp_path) as first:
        sender = first.channel(FIRST, Sent())
        await first.dispatch(envelope_of(1), envelope_of(2), plan=plan_of(FIRST))
        note = first.walker._cells.note
        calls = 0

        async def dies(cells: object) -> None:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise KeyboardInterrupt
            await note(cells)  # type: ignore[arg-type]  # passed through

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(first.walker._cells, "note", dies)
            with pytest.raises(KeyboardInterrupt):
                await first.after(10.0)
        before = [attempt.attempt_id for _, attempt, _ in sender.calls]
    async with retrying(tmp_path) as heir:
        sender = heir.channel(FIRST)
        await heir.after(10.0)
        assert [attempt.attempt_id for _, attempt, _ in sender.calls] == before
        await heir.dispatch(envelope_of(1), envelope_of(2), plan=plan_of(FIRST))
        await heir.after(10.0)
        assert len(sender.calls) == 2


# ---------------------------------------------------------------- nobody there


async def test_nobody_there_means_the_next_channel_at_once(delivery: Retrying) -> None:
    """Who has no session is not waited for; who has one has the ack window, and each channel is used once."""
    first = delivery.channel(FIRST)
    delivery.presence.where = {"acme/bob": ("n1",)}
    stored = await delivery.dispatch(envelope_of(1), to=["alice", "bob"], plan=plan_of(FIRST))
    async with running(delivery.offers.run), running(delivery.elsewhere.run):
        delivery.offers.add(stored.offers)
        await until(lambda: delivery.metrics.follow_ups["nobody_there"]._value.get() == 1, what="followed up")
        await delivery.after(0.0)
        assert [recipient_key for recipient_key, _, _ in first.calls] == ["acme/alice"]
        assert await delivery.steps(1, "bob") == []
        await delivery.after(10.0)
        assert [recipient_key for recipient_key, _, _ in first.calls] == ["acme/alice", "acme/bob"]
        await delivery.after(600.0)
    assert len(first.calls) == 2
    assert await delivery.waiting() == []


async def test_a_session_that_has_gone_means_the_next_channel_at_once(delivery: Retrying) -> None:
    """Presence still names two nodes; when the last of them finds nobody, the ack window is not waited for."""
    first = delivery.channel(FIRST)
    delivery.presence.where = {"acme/alice": ("n1", "n2"), "acme/bob": ("n1",)}
    stored = await delivery.dispatch(envelope_of(1), to=["alice", "bob"], plan=plan_of(FIRST))
    async with running(delivery.offers.run), running(delivery.elsewhere.run):
        delivery.offers.add(stored.offers)
        await until(lambda: len(delivery.nodes.offered) == 2, what="offered to both nodes")
        delivery.elsewhere.absent("n1", id_of(1), ["acme/alice"])
        await delivery.after(0.0)
        assert first.calls == []
        delivery.elsewhere.absent("n2", id_of(1), ["acme/alice"])
        await until(lambda: delivery.metrics.follow_ups["nobody_there"]._value.get() == 1, what="followed up")
        await delivery.after(0.0)
        assert [recipient_key for recipient_key, _, _ in first.calls] == ["acme/alice"]
        await delivery.after(10.0)
    assert [recipient_key for recipient_key, _, _ in first.calls] == ["acme/alice", "acme/bob"]
    assert await delivery.waiting() == []


async def test_two_follow_ups_of_one_delivery_make_each_attempt_once(delivery: Retrying) -> None:
    """The early one and that of the ack window meet: retries, a second channel and the end are those of one."""
    first, second = delivery.channel(FIRST, Retry("busy"), Retry("busy")), delivery.channel(SECOND)
    stored = await delivery.dispatch(envelope_of(1), plan=plan_of(FIRST, SECOND))
    async with running(delivery.offers.run), running(delivery.elsewhere.run):
        delivery.offers.add(stored.offers)
        await until(lambda: delivery.metrics.follow_ups["nobody_there"]._value.get() == 1, what="followed up")
        for _ in range(100):
            await delivery.after(10.0)
    assert first.attempts == [1, 2, 3]
    assert second.attempts == [1]
    assert await delivery.waiting() == []


async def test_an_ack_in_between_ends_both(delivery: Retrying) -> None:
    """A client that came right after the look, and acked on screen, is not called on another channel."""
    first = delivery.channel(FIRST)
    stored = await delivery.dispatch(envelope_of(1), plan=plan_of(FIRST))
    async with running(delivery.offers.run), running(delivery.elsewhere.run):
        delivery.offers.add(stored.offers)
        await until(lambda: delivery.metrics.follow_ups["nobody_there"]._value.get() == 1, what="followed up")
        await delivery.ack(1, AckLevel.FOREGROUND)
        await delivery.after(0.0)
        await delivery.after(10.0)
    assert first.calls == []
    assert await delivery.waiting() == []
