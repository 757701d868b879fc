"""Producers that publish more than they may, and callers whose time is over: refused with what to do, not stored."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator

import grpc
import grpc.aio

from heliograph.ingest.v1 import ingest_service_pb2
from mesh import status
from mesh.errors import DeadlineExceeded, Failure, ResourceExhausted
from mesh.identity import TOKEN_HEADER
from tests.support.cluster import PRODUCER
from tests.support.publishing import publish_request, random_id
from tests.support.refusals import judge, refusal_of
from tests.support.site import IN_A_MESH, IN_EVERY_SHAPE, Site
from tests.support.wait import until

PUBLISH = "/heliograph.ingest.v1.IngestService/Publish"
EVENT = {"category": "general", "audience": {"recipientIds": ["olivia"]}, "content": {"title": "Much"}}
# At 0.01 events a second the next one is 100 s away.
LONGEST_S = 100.1


def _much(*recipients: str, id_: str = "") -> ingest_service_pb2.PublishRequest:
    return publish_request("Much", to=recipients or ("olivia",), id_=id_)


def _is_used_up(failure: Failure, owner: str, what: str = "events") -> None:
    """Checks that a refusal says which quota is used up, and when to come again."""
    judge(failure, ResourceExhausted, "QUOTA_EXCEEDED")
    assert failure.metadata == {"quota": f"{what}_per_second", "of": owner}
    assert failure.retry_delay is not None
    assert 0.0 < failure.retry_delay <= LONGEST_S


# ---------------------------------------------------------------- quotas


@IN_EVERY_SHAPE
async def test_who_has_used_up_its_quota_is_told_when_to_come_again(site: Site) -> None:
    """What the quota lets through is accepted, what is beyond it is not; a repeat of what was accepted is free."""
    measured = site.bearer("producer", "measured")
    async with site.undisturbed(stored=2):
        for number in (1, 2):
            assert (await site.publish(_much(id_=random_id(number)), measured)).event_id
        _is_used_up(await refusal_of(site.publish(_much(), measured)), "producer")
        assert (await site.publish(_much(id_=random_id(1)), measured)).replayed
        for result in (await site.batch([_much(), _much()], measured)).results:
            assert (result.refused.code, result.refused.reason) == (ResourceExhausted.code, "QUOTA_EXCEEDED")
            assert 0 < result.refused.retry_delay.seconds <= LONGEST_S


@IN_EVERY_SHAPE
async def test_what_was_refused_is_accepted_once_the_time_has_passed(site: Site) -> None:
    """Of three in one batch the first is let through; the second follows as soon as the quota has room again."""
    hasty = site.bearer("producer", "hasty")

    async def accepted() -> bool:
        (result,) = (await site.batch([_much(id_=random_id(7))], hasty)).results
        return result.HasField("accepted")

    async with site.undisturbed(stored=2):
        first, *others = (await site.batch([_much(), _much(), _much()], hasty)).results
        assert first.HasField("accepted")
        for result in others:
            assert result.refused.reason == "QUOTA_EXCEEDED"
            assert (result.refused.retry_delay.seconds, result.refused.retry_delay.nanos > 0) == (0, True)
        await until(accepted, 10.0, "the quota to have room again")


@IN_EVERY_SHAPE
async def test_a_quota_of_recipients_counts_those_that_an_event_names(site: Site) -> None:
    """An event of more than fit at once is never let through, and is not told to come again."""
    wordy = site.bearer("producer", "wordy")
    async with site.undisturbed(stored=1):
        never = await refusal_of(site.publish(_much("ada", "ben", "cid", "dan"), wordy))
        judge(never, ResourceExhausted, "QUOTA_EXCEEDED")
        assert never.retry_delay is None
        assert (await site.publish(_much("ada", "ben"), wordy)).event_id
        _is_used_up(await refusal_of(site.publish(_much("ada", "ben"), wordy)), "producer", "recipients")


@IN_EVERY_SHAPE
async def test_a_tenants_quota_is_shared_by_its_producers(site: Site) -> None:
    """What one of them uses up, the other one lacks; producers of other tenants do not notice."""
    first, second = (site.bearer("producer", name, "umbrella") for name in ("first", "second"))
    async with site.undisturbed(stored=2):
        for producer in (first, second):
            assert (await site.publish(_much(), producer)).event_id
        for producer in (first, second):
            _is_used_up(await refusal_of(site.publish(_much(), producer)), "tenant")


@IN_A_MESH
async def test_a_used_up_quota_says_the_delay_over_rest(site: Site) -> None:
    """429 with the delay in a header and among the details; in a batch it stands in the item."""
    headers = {TOKEN_HEADER: f"Bearer {site.cluster.token('metered', role='producer')}"}
    several = {"requests": [{"event": EVENT}] * 3}
    async with site.undisturbed(stored=2), site.rest() as client:
        batch = await client.post("/v1/events:batchPublish", json=several, headers=headers)
        answer = await client.post("/v1/events", json={"event": EVENT}, headers=headers)
    *accepted, refused = batch.json()["results"]
    assert [list(one) for one in accepted] == [["accepted"], ["accepted"]]
    assert refused["refused"]["reason"] == "QUOTA_EXCEEDED"
    assert answer.status_code == 429, answer.text
    details = {detail["@type"].rpartition(".")[2]: detail for detail in answer.json()["details"]}
    assert details["ErrorInfo"]["reason"] == "QUOTA_EXCEEDED"
    for delay in (refused["refused"]["retryDelay"], details["RetryInfo"]["retryDelay"]):
        assert 0.0 < float(delay.removesuffix("s")) <= LONGEST_S
    assert int(answer.headers["retry-after"]) == math.ceil(float(details["RetryInfo"]["retryDelay"].removesuffix("s")))
    assert "retry-after" not in batch.headers


# ---------------------------------------------------------------- deadlines


class Tries:
    """Calls that say that no time is left, and what they came to as far as their caller knows.

    Attributes:
        accepted: so many were answered with a receipt.
        refused: so many were told that it was not worth beginning.
        unknown: so many ended without a word of the service about their time.
    """

    def __init__(self, site: Site) -> None:
        self.accepted = self.refused = self.unknown = 0
        self._raw: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = site.door("ingest").unary_unary(PUBLISH)
        # Written by hand, so that they are sent all the same.
        self._headers = (*site.bearer("producer", PRODUCER), ("grpc-timeout", "0m"))

    async def publish(self, request: ingest_service_pb2.PublishRequest) -> None:
        """Makes one call."""
        try:
            await self._raw(request.SerializeToString(), metadata=self._headers)
        except grpc.aio.AioRpcError as error:
            failure = status.from_call(error)
            # A call that was cut off holds its request id for a while.
            assert isinstance(failure, DeadlineExceeded) or failure.reason == "REQUEST_PENDING", failure
            if failure.reason == "DEADLINE_EXPIRED":
                self.refused += 1
            else:
                self.unknown += 1
        else:
            self.accepted += 1


@IN_EVERY_SHAPE
async def test_a_call_whose_time_is_over_is_not_begun(site: Site) -> None:
    """What is refused for it is not stored, and no append is begun for nobody."""
    before, tries = await site.appended_count(), Tries(site)
    # Time is counted in whole milliseconds: a call may have one left, and a quick machine needs no more.
    # With a mesh the edge knows the time as well, and ends a call by itself.
    for _ in range(200):
        await tries.publish(_much("walter"))
        if tries.refused >= 5 or tries.unknown >= 20:
            break
    assert tries.refused or site.mesh, vars(tries)
    appended = await site.appended_count() - before
    assert tries.accepted <= appended <= tries.accepted + tries.unknown, vars(tries)


@IN_EVERY_SHAPE
async def test_what_had_no_time_is_sent_again_and_there_once(site: Site) -> None:
    """Whatever came of the calls without time, one with time is answered, and the recipient has the event once."""
    request, tries = _much("xenia", id_=random_id(4_711)), Tries(site)
    for _ in range(20):
        await tries.publish(request)

    async def published() -> bool:
        (result,) = (await site.batch([request])).results
        return result.HasField("accepted")

    await until(published, 20.0, "the request to be let through")
    receipt = await site.publish(request)
    assert receipt.replayed
    async with site.undisturbed():
        pass
    assert [item.notification.notification_id for item in (await site.inbox("xenia")).items] == [receipt.event_id]


@IN_EVERY_SHAPE
async def test_a_request_that_comes_too_late_stores_nothing(site: Site) -> None:
    """A call is ended when its time is over, and does not wait for a request that is still on its way."""
    over = asyncio.Event()

    async def late() -> AsyncIterator[bytes]:
        await over.wait()
        yield _much("yves").SerializeToString()

    raw: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = site.door("ingest").stream_unary(PUBLISH)
    async with site.undisturbed():
        call = raw(late(), metadata=(*site.bearer("producer", PRODUCER), ("grpc-timeout", "50m")))
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        over.set()
