"""What svc_prefs needs from a store: the choices of recipients with the log of their changes, and subscriptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec


class Stored(msgspec.Struct, frozen=True, gc=False):
    """What one recipient chose.

    Attributes:
        tenant_id: owner, compared by whoever reads it.
        recipient_id: owner, compared by whoever reads it.
        version: rises by one with each change, from 1.
        preferences: a serialised `heliograph.prefs.v1.Preferences` with the chosen categories and the mutes only.
    """

    tenant_id: str
    recipient_id: str
    version: int
    preferences: bytes


class Found(msgspec.Struct, frozen=True, gc=False):
    """Choices as they were at one moment.

    Attributes:
        rows: the choices.
        change_number: a change that the rows surely know of, and all before it: it is read before they are.
    """

    rows: Sequence[Stored]
    change_number: int


class Changes(msgspec.Struct, frozen=True, gc=False):
    """Who changed after a number.

    Attributes:
        owners: tenant and recipient, each once, in the order of their newest change.
        change_number: every change up to here is covered.
        more: there are more.
        reset: the number is not of this store, or what followed it was forgotten; nobody is named.
    """

    owners: Sequence[tuple[str, str]]
    change_number: int
    more: bool = False
    reset: bool = False


class LogLimits(msgspec.Struct, frozen=True, gc=False):
    """How much of the log of changes is kept: the newest so many, none older than so many microseconds."""

    count: int = 100_000
    age_us: int = 7 * 24 * 3600 * 1_000_000


class PrefsStore(Protocol):
    """The choices of recipients. Raises Unavailable (STORE_UNAVAILABLE) when it does not answer.

    Each change has a number, larger than those of all changes before it. Numbers of one store are never taken for those
    of another one: a store that is made anew begins above them or is above nothing that was asked for.
    """

    async def get_many(self, tenant_id: str, recipient_ids: Sequence[str]) -> Found:
        """Returns those of the recipients who ever chose, in no order. Sees every replace that returned before."""
        ...

    async def replace(self, stored: Stored, now_us: int) -> bool:
        """Writes a recipient's choices and logs the change, durably and both or neither.

        Only if the stored version is `stored.version - 1` (0: none yet); returns False, and changes nothing, when
        another change came between.

        Args:
            stored: the choices.
            now_us: the time, by which old changes are forgotten.
        """
        ...

    async def list_changes(self, change_number: int, limit: int) -> Changes:
        """Returns whose choices changed after a number, at most so many; sees every replace that returned before."""
        ...


class Subscription(msgspec.Struct, frozen=True, gc=False):
    """One standing interest, and when it began."""

    topic_id: str
    create_us: int


class TopicStore(Protocol):
    """Who subscribed to what, found from both ends. Raises Unavailable (STORE_UNAVAILABLE) when it does not answer.

    Ids sort by their bytes. A page costs the same wherever it lies.
    """

    async def subscribe(
        self, tenant_id: str, recipient_id: str, topic_ids: Sequence[str], *, now_us: int, most: int
    ) -> Sequence[Subscription] | None:
        """Subscribes durably and returns these subscriptions in topic order; those that are there stay as they are.

        Returns None, and changes nothing, when the recipient would have more than `most`.
        """
        ...

    async def unsubscribe(self, tenant_id: str, recipient_id: str, topic_ids: Sequence[str]) -> int:
        """Ends subscriptions durably and returns how many there were; what is not subscribed is no error."""
        ...

    async def list_subscriptions(
        self, tenant_id: str, recipient_id: str, *, after: str, limit: int
    ) -> Sequence[Subscription]:
        """Returns a recipient's subscriptions with topics after this one, in topic order; "" begins."""
        ...

    async def list_subscribers(self, tenant_id: str, topic_id: str, *, after: str, limit: int) -> Sequence[str]:
        """Returns a topic's subscribers after this one, in recipient order; "" begins.

        Sees every subscription that was answered before the call. Whoever is subscribed while pages are walked is on
        exactly one of them, whatever happens to others meanwhile.
        """
        ...
