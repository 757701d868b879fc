"""Orders that make no sense: for what is gone, for nobody, for nothing, and beyond a quota of zero.

Each is answered for what it is, and a neighbour gets what is its own.
"""

from __future__ import annotations

from heliograph.delivery.v1 import dead_letter_service_pb2 as letters_pb2
from heliograph.delivery.v1 import dead_letter_service_pb2_grpc as letters_grpc
from heliograph_cli.connection import OPERATOR, Actor
from mesh.errors import InvalidArgument, NotFound, PermissionDenied, ResourceExhausted, Unauthenticated, Unimplemented
from tests.support.publishing import publish_request
from tests.support.refusals import judge, refusal_of
from tests.support.site import Site

UNKNOWN = "00000000-0000-4000-8000-000000000001"
REASONS = [value for value in letters_pb2.DeadLetterReason.values() if value]


async def _redrive(site: Site, *ids: str, validate_only: bool = False) -> letters_pb2.RedriveDeadLettersResponse:
    request = letters_pb2.RedriveDeadLettersRequest(dead_letter_ids=ids, validate_only=validate_only)
    async with site.cluster.connection() as connection:
        answer: letters_pb2.RedriveDeadLettersResponse = await connection.call(
            "delivery",
            lambda channel: letters_grpc.DeadLetterServiceStub(channel).RedriveDeadLetters,
            request,
            Actor("operator", OPERATOR),
        )
    return answer


async def _list(site: Site, **fields: object) -> letters_pb2.ListDeadLettersResponse:
    # Any keyword of the message; the message refuses what it does not have.
    request = letters_pb2.ListDeadLettersRequest(**fields)  # type: ignore[arg-type] # checked by the message
    async with site.cluster.connection() as connection:
        answer: letters_pb2.ListDeadLettersResponse = await connection.call(
            "delivery",
            lambda channel: letters_grpc.DeadLetterServiceStub(channel).ListDeadLetters,
            request,
            Actor("operator", OPERATOR),
        )
    return answer


async def test_redriving_what_is_gone_redrives_nothing(site: Site) -> None:
    """Ids that were never there, and such as are none, are told back; with or without a rehearsal."""
    async with site.undisturbed():
        for validate_only in (True, False):
            answer = await _redrive(site, UNKNOWN, "nonsense", validate_only=validate_only)
            assert answer.redriven_count == 0
            assert sorted(answer.refused_dead_letter_ids) == [UNKNOWN, "nonsense"]
        judge(await refusal_of(_redrive(site)), InvalidArgument, "FIELD_INVALID", "dead_letter_ids")
        many = _redrive(site, *[UNKNOWN] * 10_000)
        judge(await refusal_of(many), InvalidArgument, "FIELD_INVALID", "dead_letter_ids")


async def test_a_filter_that_matches_nothing_shows_an_empty_page(site: Site) -> None:
    """An unknown tenant has no dead letters, and a page that nobody gave is refused."""
    async with site.undisturbed():
        for reason in REASONS:
            answer = await _list(site, tenant_id="initech", reason=reason)
            assert (list(answer.dead_letters), answer.next_page_token) == ([], "")
        judge(await refusal_of(_list(site, page_token="next")), InvalidArgument, "FIELD_INVALID", "page_token")
        judge(await refusal_of(_list(site, page_size=-1)), InvalidArgument, "FIELD_INVALID", "page_size")


async def test_dead_letters_are_an_operators(site: Site) -> None:
    """Neither a recipient nor a producer lists, reads or redrives them, whatever it calls itself."""
    redriving = letters_pb2.RedriveDeadLettersRequest(dead_letter_ids=[UNKNOWN])
    async with site.undisturbed():
        for role in ("recipient", "producer"):
            attempt = site.call(
                "delivery",
                lambda door: letters_grpc.DeadLetterServiceStub(door).RedriveDeadLetters,
                redriving,
                site.bearer(role, "demo"),
            )
            failure = await refusal_of(attempt)
            # At the edge there is no way to it at all.
            assert isinstance(failure, Unimplemented if site.mesh else PermissionDenied | Unauthenticated), failure


async def test_a_letter_that_is_gone_is_not_found(site: Site) -> None:
    """By an id that nobody has, and by what is no id."""
    async with site.undisturbed(), site.cluster.connection() as connection:
        for letter_id in (UNKNOWN, "", "nonsense"):
            reading = connection.call(
                "delivery",
                lambda channel: letters_grpc.DeadLetterServiceStub(channel).GetDeadLetter,
                letters_pb2.GetDeadLetterRequest(dead_letter_id=letter_id),
                Actor("operator", OPERATOR),
            )
            judge(await refusal_of(reading), NotFound, "DEAD_LETTER_UNKNOWN")


async def test_a_quota_of_zero_lets_nothing_through(site: Site) -> None:
    """It is refused without a time to wait, alone and in a batch; other producers of the tenant go on."""
    silenced = site.bearer("producer", "silenced")
    request = publish_request("Never", to=["alice"])
    async with site.undisturbed():
        failure = await refusal_of(site.publish(request, silenced))
        judge(failure, ResourceExhausted, "QUOTA_EXCEEDED")
        assert failure.retry_delay is None
        for result in (await site.batch([request, request], silenced)).results:
            assert (result.refused.code, result.refused.reason) == (ResourceExhausted.code, "QUOTA_EXCEEDED")


async def test_an_event_for_a_topic_of_nobody_reaches_nobody(site: Site) -> None:
    """It is accepted, becomes no row, and holds nothing up."""
    request = publish_request("To whom", to=[])
    request.event.audience.topic_ids.append("nobody/listens")
    async with site.undisturbed(stored=1):
        assert (await site.publish(request)).event_id
    await site.has_nothing_left()
