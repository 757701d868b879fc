"""DeadLetterService: shows operators what was given up, and tries it again.

Path step 9. No rules here: they are in `letters` and `redrive`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import grpc.aio

from heliograph.delivery.v1 import dead_letter_service_pb2 as pb
from heliograph.delivery.v1 import dead_letter_service_pb2_grpc as pb_grpc
from mesh.ids import to_text
from svc_delivery import letters
from svc_delivery.ports_dead_letters import DeadLetters
from svc_delivery.redrive import Redriver

# Any: no method reads requests or writes answers through its context.
_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class DeadLetterService(pb_grpc.DeadLetterServiceServicer):
    """Serves operators."""

    def __init__(self, *, dead_letters: DeadLetters, redriver: Redriver) -> None:
        self._dead_letters = dead_letters
        self._redriver = redriver

    async def ListDeadLetters(
        self, request: pb.ListDeadLettersRequest, context: _Context
    ) -> pb.ListDeadLettersResponse:
        """Lists dead letters, newest first."""
        size = letters.page_size_of(request.page_size)
        found = await self._dead_letters.page(
            tenant_id=request.tenant_id,
            reason=request.reason,
            start=letters.read_token(request.page_token),
            limit=size + 1,
        )
        response = pb.ListDeadLettersResponse(
            dead_letters=[letters.show(letter, whole=False) for letter in found[:size]]
        )
        if len(found) > size:
            response.next_page_token = letters.write_token(found[size - 1])
        return response

    async def GetDeadLetter(self, request: pb.GetDeadLetterRequest, context: _Context) -> pb.GetDeadLetterResponse:
        """Returns one with its bytes and history."""
        letter_id = letters.id_of(request.dead_letter_id)
        (found,) = [None] if letter_id is None else await self._dead_letters.get([letter_id])
        if found is None:
            raise letters.unknown(request.dead_letter_id)
        return pb.GetDeadLetterResponse(dead_letter=letters.show(found, whole=True))

    async def RedriveDeadLetters(
        self, request: pb.RedriveDeadLettersRequest, context: _Context
    ) -> pb.RedriveDeadLettersResponse:
        """Tries dead letters again."""
        ids, strange = letters.ids_of(request.dead_letter_ids)
        refusals = await self._redriver.redrive(ids, validate_only=request.validate_only) if ids else []
        return pb.RedriveDeadLettersResponse(
            redriven_count=len(ids) - len(refusals),
            refused_dead_letter_ids=[*strange, *(to_text(refusal.letter_id) for refusal in refusals)],
            refusals=[
                *(pb.RedriveRefusal(dead_letter_id=text, message="there is no such id") for text in strange),
                *(pb.RedriveRefusal(dead_letter_id=to_text(one.letter_id), message=one.why) for one in refusals),
            ],
        )
