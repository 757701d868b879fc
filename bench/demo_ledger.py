"""The demo's accounts: what was published, who was due it, who was shown it and when the ack was stored.

Pure: times are arguments, in seconds of one monotonic clock. Must not know how anything is sent.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

# The rows an inbox serves: so many of high priority, so many of the rest.
WINDOW_ROWS = 100
HIGH_CATEGORIES = frozenset({"security"})
# What an operator must be told of the mute and of the dead letter.
MUTED, STORE_REFUSED = "muted", "store_refused"


class Phase(enum.Enum):
    """When a notification was on its way, as seen from the kill."""

    BEFORE = "before the kill"
    DURING = "during"
    AFTER = "after"


class Published(msgspec.Struct, frozen=True):
    """One event that was answered OK.

    Attributes:
        event_id: also the id of its notifications.
        category: of the registry.
        recipients: who is due it.
        intended: when it was to be published.
        way: "SDK" or "REST".
        by_topic: of the recipients, those whom topics alone lead to.
        suppressed: who would be due it, had they not muted it.
        excluded: whom its audience leaves out.
        timed: whether its latencies count; not those of what was held up on purpose.
    """

    event_id: str
    category: str
    recipients: tuple[str, ...]
    intended: float
    way: str
    by_topic: tuple[str, ...] = ()
    suppressed: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    timed: bool = True


class Evidence(msgspec.Struct, frozen=True):
    """What was seen beside the counts.

    Attributes:
        explained: the reason that Explain gave for one notification that a mute kept back.
        buried: the reason of the dead letter, as the list of them has it.
        redriven: the dead letter was redriven, and its notification arrived and was acked.
    """

    explained: str = ""
    buried: str = ""
    redriven: bool = False


class Counts(msgspec.Struct, frozen=True):
    """What the accounts come to.

    Attributes:
        published: events answered OK.
        by_way: of them, by the way they took.
        due: notifications that these make.
        due_by_topic: of them, those for subscribers whom the event does not name.
        suppressed: those that a mute kept back.
        excluded: those that an exclusion kept back.
        delivered: of them, those that were shown to their listener.
        acked: of them, those whose ack is stored.
        shown_twice: showings beyond the first.
        lost: due, and not shown.
        strangers: shown, and not due to that listener.
    """

    published: int
    by_way: Mapping[str, int]
    due: int
    due_by_topic: int
    suppressed: int
    excluded: int
    delivered: int
    acked: int
    shown_twice: int
    lost: int
    strangers: int


class Ledger:
    """Takes notes while the demo runs, and adds them up at the end."""

    def __init__(self) -> None:
        self._published: dict[str, Published] = {}
        self._shown: Counter[tuple[str, str]] = Counter()
        self._acked: dict[tuple[str, str], float] = {}
        self._due_count = 0

    def publish(self, event: Published) -> None:
        """Notes an event that was answered OK; a repeat of it changes nothing."""
        if event.event_id not in self._published:
            self._published[event.event_id] = event
            self._due_count += len(event.recipients)

    def show(self, listener: str, notification_id: str) -> None:
        """Notes that an application was handed a notification."""
        self._shown[listener, notification_id] += 1

    def ack(self, listener: str, notification_ids: Iterable[str], now: float) -> None:
        """Notes that acks are stored; the first time counts."""
        for notification_id in notification_ids:
            self._acked.setdefault((listener, notification_id), now)

    @property
    def published_count(self) -> int:
        """Events answered OK."""
        return len(self._published)

    def is_acked(self, listener: str, notification_id: str) -> bool:
        """Returns whether an ack is stored."""
        return (listener, notification_id) in self._acked

    def is_shown(self, listener: str, notification_id: str) -> bool:
        """Returns whether it was shown."""
        return (listener, notification_id) in self._shown

    def suppressed(self, listener: str) -> list[str]:
        """Returns the ids of the events that a mute kept from this listener."""
        return [event.event_id for event in self._published.values() if listener in event.suppressed]

    @property
    def shown_count(self) -> int:
        """Notifications shown at least once."""
        return len(self._shown)

    def outstanding(self) -> int:
        """Returns how many due notifications have no stored ack yet."""
        # The difference of the counts is enough until it is small, and then the sets decide.
        rough = self._due_count - len(self._acked)
        return rough if rough > self._due_count // 4 else len(self._due() - self._acked.keys())

    def counts(self) -> Counts:
        """Adds up."""
        due = self._due()
        ways = Counter(event.way for event in self._published.values())
        return Counts(
            published=len(self._published),
            by_way=dict(sorted(ways.items())),
            due=len(due),
            due_by_topic=sum(len(event.by_topic) for event in self._published.values()),
            suppressed=sum(len(event.suppressed) for event in self._published.values()),
            excluded=sum(len(event.excluded) for event in self._published.values()),
            delivered=len(due & self._shown.keys()),
            acked=len(due & self._acked.keys()),
            shown_twice=self._shown.total() - len(self._shown),
            lost=len(due - self._shown.keys()),
            strangers=len(self._shown.keys() - due),
        )

    def latencies(self, killed: float, recovered: float) -> dict[Phase, list[int]]:
        """Returns µs from the intended publish to the stored ack, by phase.

        Args:
            killed: when the node was killed.
            recovered: when the last of its listeners was back and had caught up.
        """
        found: dict[Phase, list[int]] = {phase: [] for phase in Phase}
        for (_, event_id), acked in self._acked.items():
            event = self._published.get(event_id)
            if event is not None and event.timed:
                phase = phase_of(event.intended, acked, killed, recovered)
                found[phase].append(round((acked - event.intended) * 1_000_000))
        return found

    def window_of(self, listener: str) -> set[str]:
        """Returns the ids that the listener's inbox must list: the newest of each kind of priority."""
        high = [one.event_id for one in self._published.values() if _is_due(one, listener) and _is_high(one)]
        rest = [one.event_id for one in self._published.values() if _is_due(one, listener) and not _is_high(one)]
        # Ids sort by time.
        return {*sorted(high)[-WINDOW_ROWS:], *sorted(rest)[-WINDOW_ROWS:]}

    def _due(self) -> set[tuple[str, str]]:
        return {(name, event.event_id) for event in self._published.values() for name in event.recipients}


def phase_of(intended: float, acked: float, killed: float, recovered: float) -> Phase:
    """Returns the phase of one notification: "during" if any moment of its way lies between kill and recovery."""
    if acked < killed:
        return Phase.BEFORE
    return Phase.AFTER if intended > recovered else Phase.DURING


def verdict(counts: Counts, evidence: Evidence, *, missing_rows: int, refused: int) -> Sequence[str]:
    """Returns what is wrong, in words; nothing when all is as promised.

    Args:
        counts: of the ledger.
        evidence: what was seen of a mute and a dead letter.
        missing_rows: notifications that an inbox should list and does not.
        refused: events that got no OK.
    """
    faults = []
    if not counts.due:
        faults.append("nothing was published, so nothing is shown")
    if counts.lost:
        faults.append(f"{counts.lost} notifications were lost")
    if counts.shown_twice:
        faults.append(f"{counts.shown_twice} notifications were shown twice")
    if counts.strangers:
        faults.append(f"{counts.strangers} notifications were shown to somebody they were not for")
    if counts.acked < counts.delivered:
        faults.append(f"the acks of {counts.delivered - counts.acked} notifications were not stored in time")
    if missing_rows:
        faults.append(f"{missing_rows} notifications are not in the inbox")
    if refused:
        faults.append(f"{refused} events were not accepted")
    if counts.due and not (counts.due_by_topic and counts.excluded):
        faults.append("no event went to a topic and left somebody out")
    if not counts.suppressed or evidence.explained != MUTED:
        answer = evidence.explained or "nothing"
        faults.append(f"a mute kept {counts.suppressed} notifications back, and Explain says {answer}")
    if evidence.buried != STORE_REFUSED or not evidence.redriven:
        faults.append("no dead letter was redriven to its listener")
    return faults


def _is_due(event: Published, listener: str) -> bool:
    return listener in event.recipients


def _is_high(event: Published) -> bool:
    return event.category in HIGH_CATEGORIES
