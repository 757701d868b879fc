"""How a refusal must look, whoever refuses and however it travels."""

from __future__ import annotations

from collections.abc import Awaitable

from heliograph.type.v1.refusal_pb2 import ErrorReason
from mesh.errors import Failure


async def refusal_of(attempt: Awaitable[object]) -> Failure:
    """Returns what an attempt was refused with.

    Raises:
        AssertionError: it was not refused.
    """
    try:
        answer = await attempt
    except Failure as failure:
        return failure
    raise AssertionError(f"not refused: {str(answer)[:200]}")


def judge(failure: Failure, kind: type[Failure], reason: str, field: str = "") -> None:
    """Checks a refusal: its category, a reason of the contract, one line for people, and the field that is wrong."""
    assert (type(failure), failure.reason) == (kind, reason), repr(failure)
    assert f"ERROR_REASON_{reason}" in ErrorReason.keys()  # noqa: SIM118  (an enum wrapper, not a dictionary)
    assert failure.message.strip(), "says nothing"
    assert "\n" not in failure.message
    if field:
        assert field in [violation.field for violation in failure.violations], failure.violations
