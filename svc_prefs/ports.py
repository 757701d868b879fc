"""What svc_prefs needs from a store."""

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
        preferences: a serialised `heliograph.prefs.v1.Preferences` with the chosen categories only.
    """

    tenant_id: str
    recipient_id: str
    version: int
    preferences: bytes


class PrefsStore(Protocol):
    """The choices of recipients. Raises Unavailable (STORE_UNAVAILABLE) when it does not answer."""

    async def open(self) -> None:
        """Opens the store; before any other call."""
        ...

    async def get_many(self, tenant_id: str, recipient_ids: Sequence[str]) -> Sequence[Stored]:
        """Returns those of the recipients who ever chose, in no order. Sees every replace that returned before."""
        ...

    async def replace(self, stored: Stored) -> bool:
        """Writes a recipient's choices durably, if the stored version is `stored.version - 1` (0: none yet).

        Returns False, and changes nothing, when another change came between.
        """
        ...

    async def close(self) -> None:
        """Closes the store."""
        ...
