"""Events, whom they are for, what prefs says, and the batches that follow: the pure parts of fanout in a row."""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.prefs.v1 import prefs_service_pb2
from svc_fanout import core
from svc_fanout.audience import Members, named
from svc_fanout.batching import Batch, batches
from svc_fanout.core import Decision, Way
from tests.support.dispatching import InProcessPrefs, make_envelope, make_record

NOW_US = 1_700_000_100_000_000
S_US = core.CLOCK_ALLOWANCE_US


def event(
    number: int, recipients: int | Sequence[str], *, content: bytes | None = None, expire_us: int | None = None
) -> core.Event:
    """Event `number` as decoded; recipients by name or by count."""
    names = [f"r{index}" for index in range(recipients)] if isinstance(recipients, int) else recipients
    record = make_record(make_envelope(number, content=content, expire_us=expire_us), names)
    return core.decode(number, record.value)


def parts(events: Sequence[core.Event]) -> list[tuple[core.Event, Members]]:
    """Events with those whom they name."""
    return [(one, named(one.recipient_ids, one.excluded)) for one in events]


def asked(events: Sequence[core.Event], now_us: int = NOW_US) -> list[prefs_service_pb2.BatchResolveRequest]:
    """What prefs is asked about events of which nothing is known."""
    return core.questions(core.wanted(parts(events), now_us))


def decided(events: Sequence[core.Event], prefs: InProcessPrefs, now_us: int = NOW_US) -> core.Decisions:
    """What prefs says about the events."""
    found: dict[Way, dict[str, Decision]] = {}
    for request in asked(events, now_us):
        for way, decisions in core.answers(request, prefs.decide(request)):
            found.setdefault(way, {}).update(decisions)
    return found


def planned(events: Sequence[core.Event], decisions: core.Decisions, now_us: int = NOW_US) -> list[core.Planned]:
    """The plans of events of which everything is known."""
    plans = [core.decide(one, members, decisions, now_us) for one, members in parts(events)]
    return [plan for plan in plans if plan is not None]


def cut(events: Sequence[core.Event], prefs: InProcessPrefs, now_us: int = NOW_US) -> list[Batch]:
    """The batches of events."""
    return list(batches(planned(events, decided(events, prefs, now_us), now_us)))


def recipients_of(batch: Batch) -> int:
    """How many recipients a batch names."""
    return sum(len(group.recipient_ids) for dispatch in batch.message.dispatches for group in dispatch.groups)
