"""The accounts of a scenario: what was answered OK and for whom, and what every screen showed.

It judges only when told to, and says everything that is wrong at once. Must not know how anything is published or
received, nor which fault was made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeAlias

import msgspec

# Recipient, screen, event.
_Key: TypeAlias = tuple[str, str, str]


class Verdict(msgspec.Struct, frozen=True):
    """What the accounts come to.

    Attributes:
        due: showings that the accepted events make, one a screen of each recipient.
        lost: due and missing, as "recipient/screen: event".
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
        self._screens: dict[str, list[str]] = {}
        self._shown: Counter[_Key] = Counter()
        self._due: set[_Key] = set()
        self._duplicates: Counter[tuple[str, str]] = Counter()

    def open(self, recipient: str, screen: str) -> None:
        """Notes a screen: from now on it must show everything that its recipient is due."""
        self._screens.setdefault(recipient, []).append(screen)

    def publish(self, event_id: str, recipients: Iterable[str]) -> None:
        """Notes an event that was answered OK; noting it again changes nothing."""
        self.accepted[event_id] = frozenset(recipients)
        self._due.update(self._due_of(event_id))

    def show(self, recipient: str, screen: str, event_id: str) -> None:
        """Notes that a screen showed a notification to its recipient."""
        self._shown[recipient, screen, event_id] += 1

    def count_duplicates(self, recipient: str, screen: str, count: int) -> None:
        """Notes how many frames a screen dropped because it had them."""
        self._duplicates[recipient, screen] = count

    def reached(self, event_id: str) -> bool:
        """Tells whether every screen that must show an event has shown it."""
        return all(key in self._shown for key in self._due_of(event_id))

    def shown_on(self, screens: Iterable[tuple[str, str]], event_id: str) -> bool:
        """Tells whether each of these screens, named by recipient and screen, that must show an event has shown it."""
        due = set(self._due_of(event_id))
        return all((*screen, event_id) in self._shown for screen in screens if (*screen, event_id) in due)

    def outstanding(self) -> int:
        """Returns how many showings are missing."""
        # The sets are compared only when the counts say that it may be worth it.
        rough = len(self._due) - len(self._shown)
        return rough if rough > len(self._due) // 4 else len(self._due - self._shown.keys())

    def settled(self) -> bool:
        """Tells whether everything that is due was shown."""
        return self.outstanding() == 0

    def verdict(self) -> Verdict:
        """Adds up."""
        return Verdict(
            due=len(self._due),
            lost=_named(self._due - self._shown.keys()),
            shown_twice=_named(key for key, count in self._shown.items() if count > 1),
            strangers=_named(self._shown.keys() - self._due),
            duplicates_on_wire=self._duplicates.total(),
        )

    def _due_of(self, event_id: str) -> list[_Key]:
        return [
            (recipient, screen, event_id)
            for recipient in self.accepted[event_id]
            for screen in self._screens.get(recipient, ())
        ]


def _named(keys: Iterable[_Key]) -> tuple[str, ...]:
    return tuple(f"{recipient}/{screen}: {event_id}" for recipient, screen, event_id in sorted(keys))
