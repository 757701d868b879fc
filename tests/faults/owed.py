"""What devices are still to show, and what newer rows may have pushed out before they could. It must not judge."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from tests.faults.actors import Producer, Screen
from tests.faults.limits import Limits
from tests.faults.load import MUTED

_LIMITS = Limits()


class Owed:
    """The accepted events of a run against its screens.

    Args:
        producer: who published.
        screens: the devices.
        muted: the recipient who does not want the muted category.

    Attributes:
        screens_of: the devices by recipient.
    """

    def __init__(self, producer: Producer, screens: Sequence[Screen], muted: str) -> None:
        self._producer = producer
        self._muted = muted
        found: dict[str, list[Screen]] = defaultdict(list)
        for screen in screens:
            found[screen.device.recipient].append(screen)
        self.screens_of: Mapping[str, Sequence[Screen]] = found

    def is_shown(self, event_id: str) -> bool:
        """Whether everybody who is to see an event has seen it."""
        return not any(True for _screen in self.waiting(event_id))

    def waiting(self, event_id: str) -> Iterator[Screen]:
        """Yields the screens that are to show an event and did not; what has an end need not be shown."""
        sent = self._producer.sent[event_id]
        if sent.expire is not None:
            return
        for recipient in self._producer.accepted[event_id]:
            if sent.category == MUTED and recipient == self._muted:
                continue
            yield from (screen for screen in self.screens_of[recipient] if event_id not in screen.shown)

    def may_be_gone(self, recipient: str, event_id: str) -> bool:
        """Whether a row may have been pushed out: each device had it, or a whole window of newer ones of its class."""
        return all(self._went_by(screen, event_id) for screen in self.screens_of[recipient])

    def missing(self) -> Iterator[tuple[str, str, str]]:
        """Yields event, recipient and devices where no newer rows can be why an event was not shown."""
        for event_id in self._producer.accepted:
            names: dict[str, list[str]] = defaultdict(list)
            for screen in self.waiting(event_id):
                if not self._went_by(screen, event_id):
                    names[screen.device.recipient].append(screen.device.name)
            for recipient, devices in names.items():
                yield event_id, recipient, ", ".join(devices)

    def _went_by(self, screen: Screen, event_id: str) -> bool:
        if event_id in screen.received:
            return True
        is_high = self._is_high(event_id)
        sent = self._producer.sent
        newer = sorted(id_ for id_ in screen.received if id_ in sent and self._is_high(id_) == is_high)
        return len(newer) - bisect_right(newer, event_id) >= _LIMITS.window

    def _is_high(self, event_id: str) -> bool:
        return self._producer.sent[event_id].priority >= _LIMITS.high
