"""Dead letters and explanations as operators call them, over gRPC."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from heliograph.delivery.v1 import dead_letter_service_pb2 as pb
from heliograph.delivery.v1 import dead_letter_service_pb2_grpc as pb_grpc
from heliograph.delivery.v1 import delivery_service_pb2, delivery_service_pb2_grpc
from heliograph.type.v1 import notification_pb2
from mesh.channel import Channels, call
from mesh.errors import Failure, InvalidArgument, NotFound, PermissionDenied, Unavailable
from mesh.ids import to_text
from svc_delivery import letters
from svc_delivery.ports import AckLevel, FollowUpWrite
from svc_delivery.ports_channels import Refused
from tests.support.far_ends import calling
from tests.support.inbox import make_id
from tests.support.retrying import FIRST, Retrying, envelope_of, id_of, plan_of, retrying, serving_operators

OPERATOR = (("x-heliograph-caller", "operator/dev"),)
UNKNOWN_ID = to_text(make_id(99))


class Operator:
    """Calls as an operator."""

    def __init__(self, delivery: Retrying, channels: Channels) -> None:
        self.delivery = delivery
        self.letters = pb_grpc.DeadLetterServiceStub(channels.unary("delivery"))
        self.deliveries = delivery_service_pb2_grpc.DeliveryServiceStub(channels.unary("delivery"))

    async def list(self, request: pb.ListDeadLettersRequest | None = None) -> pb.ListDeadLettersResponse:
        """Lists."""
        request = request or pb.ListDeadLettersRequest()
        return await call(self.letters.ListDeadLetters, request, timeout=5.0, metadata=OPERATOR)

    async def get(self, letter_id: str) -> pb.DeadLetter:
        """Gets one."""
        request = pb.GetDeadLetterRequest(dead_letter_id=letter_id)
        return (await call(self.letters.GetDeadLetter, request, timeout=5.0, metadata=OPERATOR)).dead_letter

    async def redrive(self, *letter_ids: str, validate_only: bool = False) -> pb.RedriveDeadLettersResponse:
        """Redrives."""
        request = pb.RedriveDeadLettersRequest(dead_letter_ids=letter_ids, validate_only=validate_only)
        return await call(self.letters.RedriveDeadLetters, request, timeout=5.0, metadata=OPERATOR)

    async def explain(
        self, event_id: str, tenant_id: str = "acme", recipient_id: str = "alice"
    ) -> delivery_service_pb2.ExplainResponse:
        """Explains."""
        request = delivery_service_pb2.ExplainRequest(event_id=event_id, tenant_id=tenant_id, recipient_id=recipient_id)
        return await call(self.deliveries.Explain, request, timeout=5.0, metadata=OPERATOR)

    async def bury(self, *numbers: int) -> None:
        """Lets a channel refuse events for good, one after the other."""
        for number in numbers:
            self.delivery.senders.clear()
            self.delivery.channel(FIRST, Refused("no address"))
            await self.delivery.dispatch(envelope_of(number), plan=plan_of(FIRST))
            await self.delivery.after(10.0)


@pytest.fixture
async def operator(tmp_path: Path, run_dir: Path) -> AsyncIterator[Operator]:
    """An operator's connection."""
    async with (
        retrying(tmp_path) as delivery,
        serving_operators(delivery, run_dir),
        calling(run_dir, "operator") as channels,
    ):
        yield Operator(delivery, channels)


async def test_a_list_has_no_bytes_and_one_letter_has_all(operator: Operator) -> None:
    """A page of five hundred contents would fit no answer; one letter shows what was to be delivered."""
    await operator.bury(1)
    (listed,) = (await operator.list()).dead_letters
    assert (listed.original, listed.envelope.notification) == (b"", b"")
    assert (listed.reason, listed.recipient_key) == (pb.DEAD_LETTER_REASON_TRIES_EXHAUSTED, "acme/alice")
    assert (listed.channel, listed.envelope.event_id, listed.envelope.category) == (FIRST, id_of(1), "general")
    assert [(attempt.attempt_number, attempt.outcome) for attempt in listed.attempts] == [(1, "refused: no address")]
    whole = await operator.get(listed.dead_letter_id)
    assert whole.envelope.notification == envelope_of(1).notification
    assert len(whole.original) > 0
    whole.ClearField("original")
    whole.envelope.ClearField("notification")
    assert whole == listed


async def test_pages_follow_each_other(operator: Operator) -> None:
    """Newest first, each once, filtered; letters that come or go in between disturb no page."""
    await operator.bury(1, 2, 3, 4, 5)
    first = await operator.list(pb.ListDeadLettersRequest(page_size=2, tenant_id="acme"))
    await operator.bury(6)
    await operator.redrive(first.dead_letters[-1].dead_letter_id)
    second = await operator.list(
        pb.ListDeadLettersRequest(page_size=3, tenant_id="acme", page_token=first.next_page_token)
    )
    seen = [letter.envelope.event_id for letter in (*first.dead_letters, *second.dead_letters)]
    assert seen == [id_of(number) for number in (5, 4, 3, 2, 1)]
    assert second.next_page_token == ""
    assert len((await operator.list(pb.ListDeadLettersRequest(tenant_id="nobody"))).dead_letters) == 0
    reason = pb.DEAD_LETTER_REASON_POISON
    assert len((await operator.list(pb.ListDeadLettersRequest(reason=reason))).dead_letters) == 0


@pytest.mark.parametrize(
    "request_",
    [
        pb.ListDeadLettersRequest(page_size=-1),
        pb.ListDeadLettersRequest(page_token="nonsense"),
        pb.ListDeadLettersRequest(page_token="ü"),
        pb.ListDeadLettersRequest(page_token="AAAA"),
    ],
    ids=["negative size", "no token", "not ascii", "short"],
)
async def test_a_bad_page_is_refused(operator: Operator, request_: pb.ListDeadLettersRequest) -> None:
    """With the field's name."""
    with pytest.raises(InvalidArgument) as caught:
        await operator.list(request_)
    assert caught.value.reason == "FIELD_INVALID"


async def test_a_letter_that_is_not_there_is_not_found(operator: Operator) -> None:
    """Also for what is no id."""
    for letter_id in (UNKNOWN_ID, "", "nonsense"):
        with pytest.raises(NotFound) as caught:
            await operator.get(letter_id)
        assert caught.value.reason == "DEAD_LETTER_UNKNOWN"


async def test_redriving_says_what_does_not_go(operator: Operator) -> None:
    """Gone, unknown and malformed ids are refused beside those that go; a repetition finds nothing left."""
    await operator.bury(1, 2)
    first, second = [letter.dead_letter_id for letter in (await operator.list()).dead_letters]
    answer = await operator.redrive(first, UNKNOWN_ID, "nonsense", second, first, validate_only=True)
    assert (answer.redriven_count, sorted(answer.refused_dead_letter_ids)) == (2, sorted([UNKNOWN_ID, "nonsense"]))
    assert len((await operator.list()).dead_letters) == 2
    answer = await operator.redrive(first)
    assert (answer.redriven_count, list(answer.refused_dead_letter_ids)) == (1, [])
    answer = await operator.redrive(first, second)
    assert (answer.redriven_count, list(answer.refused_dead_letter_ids)) == (1, [first])
    assert operator.delivery.telemetry.registry.get_sample_value("heliograph_delivery_redriven_total") == 2


async def test_what_cannot_be_read_is_not_redriven(operator: Operator) -> None:
    """It stays with its bytes for a version that can."""
    broken = FollowUpWrite(operator.delivery.now_us(), b"\xff\xff")
    await operator.delivery.store.inbox.write([], stamp=1, follow_up=broken)
    await operator.delivery.after(0.0)
    (listed,) = (await operator.list()).dead_letters
    assert (listed.reason, listed.lane_position) == (pb.DEAD_LETTER_REASON_UNDECODABLE, "follow_ups/1")
    answer = await operator.redrive(listed.dead_letter_id)
    assert (answer.redriven_count, list(answer.refused_dead_letter_ids)) == (0, [listed.dead_letter_id])
    assert (await operator.get(listed.dead_letter_id)).original == b"\xff\xff"


async def test_what_is_too_large_is_buried_without_its_bytes(operator: Operator) -> None:
    """How many there were and their hash stay, with the place; it is not redriven, and not given up again and again."""
    large = b"\xff" * (letters.LARGEST_LETTER + 1)
    await operator.delivery.store.inbox.write([], stamp=1, follow_up=FollowUpWrite(operator.delivery.now_us(), large))
    await operator.delivery.after(0.0)
    assert await operator.delivery.waiting() == []
    (listed,) = (await operator.list()).dead_letters
    assert (listed.reason, listed.lane_position) == (pb.DEAD_LETTER_REASON_UNDECODABLE, "follow_ups/1")
    whole = await operator.get(listed.dead_letter_id)
    assert (whole.original, whole.left_out.size_bytes) == (b"", len(large))
    assert whole.left_out.sha256 == hashlib.sha256(large).digest()
    answer = await operator.redrive(listed.dead_letter_id)
    assert (answer.redriven_count, list(answer.refused_dead_letter_ids)) == (0, [listed.dead_letter_id])
    (refusal,) = answer.refusals
    assert refusal.dead_letter_id == listed.dead_letter_id
    assert f"{len(large)} bytes were too large to be kept" in refusal.message


def test_a_row_that_is_too_large_keeps_its_event() -> None:
    """Also where its content, or whatever else it names, is what is too large."""
    attempts = [pb.Attempt(attempt_number=1, outcome="refused: too large")]
    for field in ("notification", "category"):
        envelope = envelope_of(1)
        setattr(envelope, field, b"x" * (2 << 20) if field == "notification" else "x" * (2 << 20))
        letter = letters.store_refused(envelope, "alice", plan_of(FIRST), attempts, 5)
        shown = letters.show(letter, whole=True)
        assert len(letter.letter) + len(letter.original) <= letters.LARGEST_LETTER
        assert (shown.envelope.event_id, shown.recipient_key) == (id_of(1), "acme/alice")
        assert shown.left_out.size_bytes > 2 << 20
        assert list(shown.attempts) == attempts
    small = letters.store_refused(envelope_of(1), "alice", plan_of(FIRST), attempts, 5)
    assert not letters.show(small, whole=True).HasField("left_out")
    assert small.original


async def test_a_poisonous_record_that_can_be_read_goes_back_to_the_lane(operator: Operator) -> None:
    """After a correction of the program it is worked like any other."""
    await operator.delivery.dispatch(envelope_of(1))
    (record,) = await operator.delivery.store.follow_ups.due(operator.delivery.now_us() + 10**10, 1)
    letter = letters.unreadable(
        record, "it killed", reason=pb.DEAD_LETTER_REASON_POISON, epoch="e", now_us=operator.delivery.now_us()
    )
    await operator.delivery.store.follow_ups.finish([record.record_id], (), [letter])
    answer = await operator.redrive(to_text(letter.letter_id))
    assert answer.redriven_count == 1
    assert await operator.delivery.waiting() == [(0.0, "follow_ups")]


@pytest.mark.parametrize("count", [0, 501])
async def test_a_call_has_a_bounded_number_of_ids(operator: Operator, count: int) -> None:
    """1 to 500."""
    with pytest.raises(InvalidArgument):
        await operator.redrive(*[UNKNOWN_ID] * count)


async def test_without_wishes_nothing_is_redriven(operator: Operator) -> None:
    """Nobody could say whether it is wanted: the call fails and may be repeated."""
    await operator.bury(1)
    (listed,) = (await operator.list()).dead_letters
    operator.delivery.prefs.failure = Unavailable("no prefs", reason="PEER_UNAVAILABLE")
    with pytest.raises(Unavailable):
        await operator.redrive(listed.dead_letter_id)
    operator.delivery.prefs.failure = None
    assert (await operator.redrive(listed.dead_letter_id)).redriven_count == 1


async def test_only_operators_may_call(operator: Operator) -> None:
    """Neither a service nor a recipient sees or moves dead letters."""
    requests = [
        (operator.letters.ListDeadLetters, pb.ListDeadLettersRequest()),
        (operator.letters.GetDeadLetter, pb.GetDeadLetterRequest(dead_letter_id=UNKNOWN_ID)),
        (operator.letters.RedriveDeadLetters, pb.RedriveDeadLettersRequest(dead_letter_ids=[UNKNOWN_ID])),
        (operator.deliveries.Explain, delivery_service_pb2.ExplainRequest(event_id=id_of(1))),
    ]
    for caller in ("svc/fanout", "svc/gateway", "producer/acme/demo"):
        for method, request in requests:
            with pytest.raises(PermissionDenied):
                await call(method, request, timeout=5.0, metadata=(("x-heliograph-caller", caller),))  # type: ignore[arg-type]  # of one service each


async def test_an_explanation_follows_the_notification(operator: Operator) -> None:
    """From inboxed over acked and read to hidden, each with the time that is kept."""
    delivery = operator.delivery
    await delivery.dispatch(envelope_of(1))
    told = await operator.explain(id_of(1))
    assert told.state == notification_pb2.NOTIFICATION_STATE_NEW
    assert [step.decision for step in told.steps] == ["accepted", "inboxed", "follow-up"]
    assert [step.HasField("step_time") for step in told.steps] == [False, True, True]
    await delivery.ack(1, AckLevel.SEEN)
    told = await operator.explain(id_of(1))
    assert told.state == notification_pb2.NOTIFICATION_STATE_SEEN
    assert ("acked", "seen") in [(step.decision, step.detail) for step in told.steps]


@pytest.mark.parametrize(
    ("asked", "kind", "reason"),
    [
        ((id_of(1), "acme", "nobody"), NotFound, "NOTIFICATION_UNKNOWN"),
        ((id_of(2), "acme", "alice"), NotFound, "NOTIFICATION_UNKNOWN"),
        ((id_of(1), "other", "alice"), NotFound, "NOTIFICATION_UNKNOWN"),
        (("nonsense", "acme", "alice"), InvalidArgument, "FIELD_INVALID"),
        ((id_of(1), "", "alice"), InvalidArgument, "FIELD_INVALID"),
        ((id_of(1), "acme", ""), InvalidArgument, "FIELD_INVALID"),
    ],
    ids=["recipient", "event", "tenant", "no id", "no tenant", "no recipient"],
)
async def test_nothing_is_told_of_what_is_not_known(
    operator: Operator, asked: tuple[str, str, str], kind: type[Failure], reason: str
) -> None:
    """And a question that names nobody is refused."""
    await operator.delivery.dispatch(envelope_of(1))
    with pytest.raises(kind) as caught:
        await operator.explain(*asked)
    assert caught.value.reason == reason
