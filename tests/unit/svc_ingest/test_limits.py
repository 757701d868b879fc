"""The table of limits is complete."""

from __future__ import annotations

from heliograph.type.v1 import refusal_pb2
from svc_ingest import limits


def test_every_limit_is_in_the_table() -> None:
    """A number that core reads is one that the documentation shows."""
    numbers = {value for name, value in vars(limits).items() if name.isupper() and isinstance(value, int | float)}
    shown = {limit.most for limit in limits.LIMITS}
    in_other_units = {limits.USEFUL_S, limits.LANE_S}
    assert numbers - in_other_units == shown


def test_every_reason_of_the_table_is_in_the_contract() -> None:
    """The last column is API."""
    for limit in limits.LIMITS:
        if limit.reason:
            refusal_pb2.ErrorReason.Value(f"ERROR_REASON_{limit.reason}")
