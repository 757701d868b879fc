"""What delivery needs for channels beyond inbox and live: senders, the cells of their steps, and wishes.

Must not hold rules: which step comes next is in `steps`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec

from heliograph.prefs.v1 import prefs_service_pb2
from heliograph.type.v1 import envelope_pb2
from svc_delivery.ports import RowKey

# ---------------------------------------------------------------- senders


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One try to send one notification to one recipient over one channel.

    Attributes:
        attempt_id: lower-case UUID text; the same attempt has it again after a crash, so a provider can know it.
        collapse_id: lower-case UUID text; all attempts of a step share it, so a device shows one of them.
        attempt_number: from 1.
        channel: a `Channel`, perhaps one that this version has no name for.
    """

    attempt_id: str
    collapse_id: str
    attempt_number: int
    channel: int


class Sent(msgspec.Struct, frozen=True, gc=False):
    """The channel has taken it."""


class Retry(msgspec.Struct, frozen=True, gc=False):
    """The channel answered that it cannot now: again after `delay` seconds, or later where the schedule says so."""

    reason: str
    delay: float = 0.0


class Refused(msgspec.Struct, frozen=True, gc=False):
    """The channel will never take it."""

    reason: str


Outcome: TypeAlias = Sent | Retry | Refused


class ChannelSender(Protocol):
    """The way out over one channel. May be called again for an attempt whose outcome was lost."""

    async def send(self, envelope: envelope_pb2.Envelope, recipient_key: str, attempt: Attempt) -> Outcome:
        """Sends a notification and returns the channel's answer.

        Raises:
            mesh.errors.Failure: nobody answered (retriable: that was no try), or the call can never succeed.
        """
        ...


Senders: TypeAlias = Mapping[int, ChannelSender]

# ---------------------------------------------------------------- the cells of steps


class StepCell(msgspec.Struct, frozen=True, gc=False):
    """What a row says about one attempt at one step of its plan.

    Attributes:
        step_index: which step.
        attempt_number: which attempt at it, from 1; 0 for an order to take the step anew.
        time_us: when it was begun; with an outcome, when that came.
        outcome: empty while nobody answered; else one of the outcomes of `steps`.
        detail: the reason, for people.
        due_us: not tried again before; 0 where that means nothing.
    """

    step_index: int
    attempt_number: int
    time_us: int
    outcome: str = ""
    detail: str = ""
    due_us: int = 0


class Steps(Protocol):
    """The steps map of rows. Raises `mesh.errors.Unavailable` when the store cannot be asked."""

    async def note(self, cells: Sequence[tuple[RowKey, StepCell]]) -> None:
        """Stores cells; durable on return.

        An outcome replaces an empty one and is replaced by none that is empty. A cell of a row that is not there is
        dropped.
        """
        ...

    async def cells(self, keys: Sequence[RowKey]) -> Sequence[Sequence[StepCell]]:
        """Returns the cells of each row, in the order of steps and attempts; they go with their row."""
        ...

    async def forget(self, key: RowKey, step_index: int) -> None:
        """Removes the cells of a step: it is to be taken anew. Durable on return."""
        ...


# ---------------------------------------------------------------- peers


class Prefs(Protocol):
    """Wishes, already decided."""

    async def resolve(self, request: prefs_service_pb2.BatchResolveRequest) -> prefs_service_pb2.BatchResolveResponse:
        """Decides for a page of recipients; raises `mesh.errors.Failure`, Unavailable when prefs does not answer."""
        ...
