"""The accounts of a scenario: what was answered OK and for whom, and what every screen showed.

It judges only when told to, and says everything that is wrong at once. Must not know how anything is published or
received, nor which fault was made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec


class Verdict(msgspec.Struct, frozen=True):
    """What the accounts come to.

    Attributes:
        due: notifications that the accepted events make, one a recipient.
        lost: due, and shown on no screen of their recipient, as "recipient: event".
        shown_twice: shown more often than once on one screen.
        strangers: shown to somebody whom they were not for.
        duplicates_on_wire: frames that a screen had received before; allowed under faults only.
    """

    due: int
    lost: tuple[str, ...]
    shown_twice: tuple[str, ...]
    strangers: tuple[str, ...]
    duplicates_on_wire: int

    @property
    def kept(self) -> bool:
        """Every promise that holds under faults too was kept, and there was something to keep."""
        return bool(self.due) and not (self.lost or self.shown_twice or self.strangers)


class Ledger:
    """Takes notes while a scenario runs.

    Attributes:
        accepted: recipients of each event that was answered OK, by event id.
    """

    def __init__(self) -> None:
        self.accepted: dict[str, frozenset[str]] = {}
        # What was published without an answer may be delivered all the same.
        self._sent: dict[str, frozenset[str]] = {}
        self._shown: Counter[tuple[str, str, str]] = Counter()
        self._duplicates: Counter[tuple[str, str]] = Counter()
        self._reached: set[tuple[str, str]] = set()
        self._due: set[tuple[str, str]] = set()

    def publish(self, event_id: str, recipients: Iterable[str]) -> None:
        """Notes an event that was answered OK; noting it again changes nothing."""
        self.accepted[event_id] = frozenset(recipients)
        self._due.update((recipient, event_id) for recipient in self.accepted[event_id])

    def show(self, recipient: str, screen: str, event_id: str) -> None:
        """Notes that a screen showed a notification to its recipient."""
        self._shown[recipient, screen, event_id] += 1
        self._reached.add((recipient, event_id))

    def count_duplicates(self, recipient: str, screen: str, count: int) -> None:
        """Notes how many frames a screen dropped because it had them."""
        self._duplicates[recipient, screen] = count

    @property
    def shown_count(self) -> int:
        """Notifications that reached their recipient."""
        return len(self._reached)

    def reached(self, event_id: str) -> bool:
        """Tells whether an event reached everybody whom it was for."""
        return all((recipient, event_id) in self._reached for recipient in self.accepted[event_id])

    def outstanding(self) -> int:
        """Returns how many due notifications were shown nowhere yet."""
        # The sets are compared only when the counts say that it may be worth it.
        rough = len(self._due) - len(self._reached)
        return rough if rough > len(self._due) // 4 else len(self._due - self._reached)

    def settled(self) -> bool:
        """Tells whether everything that is due was shown."""
        return self.outstanding() == 0

    def verdict(self) -> Verdict:
        """Adds up."""
        return Verdict(
            due=len(self._due),
            lost=_named(self._due - self._reached),
            shown_twice=_named((key[0], key[2]) for key, count in self._shown.items() if count > 1),
            strangers=_named(self._reached - self._due),
            duplicates_on_wire=self._duplicates.total(),
        )


def _named(pairs: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(f"{recipient}: {event_id}" for recipient, event_id in sorted(pairs))
