"""Asks prefs again before a late send: what a recipient wants may have changed since the plan was made.

Rule 10 of what Heliograph promises: mutes and opt-outs are asked again before a send that comes more than 5 s after the
first. Must not remember anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from heliograph.prefs.v1 import prefs_service_pb2 as pb
from heliograph.type.v1 import envelope_pb2, plan_pb2
from mesh.errors import Internal
from svc_delivery.ports_channels import Prefs

_LARGEST_ITEMS: Final = 50
_LARGEST_RECIPIENTS: Final = 10_000


class Question(msgspec.Struct, frozen=True):
    """Whether and how recipients of one event want it now."""

    envelope: envelope_pb2.Envelope
    topic_id: str
    recipient_ids: Sequence[str]


class Answer(msgspec.Struct, frozen=True):
    """What prefs decided about a question."""

    item: pb.ItemResolution

    def of(self, recipient_id: str) -> pb.Resolution:
        """The decision for a recipient."""
        for group in self.item.groups:
            if recipient_id in group.recipient_ids:
                return group.resolution
        return self.item.default_resolution


def suppressed(resolution: pb.Resolution) -> plan_pb2.SuppressReason.ValueType:
    """Returns why the recipient gets nothing; unspecified when something is wanted."""
    if not resolution.suppress_reason and not resolution.channels:
        return plan_pb2.SUPPRESS_REASON_OPTED_OUT
    return resolution.suppress_reason


class Wishes:
    """Today's wishes."""

    def __init__(self, prefs: Prefs) -> None:
        self._prefs = prefs

    async def ask(self, questions: Sequence[Question]) -> list[Answer]:
        """Answers questions, in their order, in as few calls as possible.

        Raises:
            mesh.errors.Failure: prefs does not answer, or not what it was asked.
        """
        answers: dict[int, Answer] = {}
        for tenant_id, indexes in _calls(questions):
            items = [_item(questions[index]) for index in indexes]
            response = await self._prefs.resolve(pb.BatchResolveRequest(tenant_id=tenant_id, items=items))
            if len(response.items) != len(items):
                raise Internal(
                    f"prefs answered {len(response.items)} of {len(items)} items",
                    reason="INTERNAL",
                    metadata={"asked": str(len(items)), "answered": str(len(response.items))},
                )
            answers.update({index: Answer(item) for index, item in zip(indexes, response.items, strict=True)})
        return [answers[index] for index in range(len(questions))]


def _calls(questions: Sequence[Question]) -> Iterator[tuple[str, list[int]]]:
    """Groups questions by tenant into calls that prefs takes."""
    by_tenant: dict[str, list[int]] = {}
    for index, question in enumerate(questions):
        by_tenant.setdefault(question.envelope.tenant_id, []).append(index)
    for tenant_id, indexes in by_tenant.items():
        call: list[int] = []
        count = 0
        for index in indexes:
            size = len(questions[index].recipient_ids)
            if call and (len(call) == _LARGEST_ITEMS or count + size > _LARGEST_RECIPIENTS):
                yield tenant_id, call
                call, count = [], 0
            call.append(index)
            count += size
        yield tenant_id, call


def _item(question: Question) -> pb.ResolveItem:
    return pb.ResolveItem(
        category=question.envelope.category,
        priority=question.envelope.priority,
        recipient_ids=question.recipient_ids,
        topic_id=question.topic_id,
    )
