"""What was given up or put aside, and the channel behind live: what breaks the promises about them.

A channel may be called again for what it has: that is one notification, shown once, as its attempts share a name. It
must not know how a channel works.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from tests.faults.index import Delivery, Index, overlapping
from tests.faults.limits import Limits, Violation
from tests.faults.wanted import due, muted

# A fault that has no record read again: it is why rows are given up.
ROWS_REFUSED = "rows refused"
_IN_THE_LIST = frozenset({"acked", "inboxed"})


def dead_letters(index: Index, limits: Limits) -> Iterator[Violation]:
    """I15: a dead letter says why, and has what it is about; it is delivered only after it was sent again by hand.

    A record that nobody can read is one, not nothing.
    """
    aside = sum(not letter.tenant for letter in index.letters)
    if aside < len(index.poisoned):
        yield Violation("I15", f"{len(index.poisoned)} records could not be read, {aside} were put aside")
    for letter in index.letters:
        lacks = [
            name
            for name, there in (("reason", letter.reason), ("bytes", letter.size), ("source", letter.source))
            if not there
        ]
        if lacks:
            names = (letter.notification_id,) if letter.notification_id else ()
            yield Violation("I15", f"a dead letter has no {', '.join(lacks)}: {letter}", names)
    yield from _came_all_the_same(index, limits)


def _came_all_the_same(index: Index, limits: Limits) -> Iterator[Violation]:
    """A step of a channel that was given up is not taken, and a row that was given up comes to no device.

    A row may have two records, where the request log did not know a repeat or where a fault had one read again: then
    each is given up or delivered by itself.
    """
    came: Mapping[tuple[Delivery, bool], list[float]] = defaultdict(list)
    for device, _session, one in index.received:
        came[(device.tenant, device.recipient, one.notification_id), False].append(one.at)
    for delivery, calls in index.calls.items():
        came[delivery, True] += [call.at for call in calls]
    again: dict[tuple[Delivery, bool], float] = {}
    for letter in index.letters:
        if letter.redriven:
            place = letter.delivery, bool(letter.channel)
            again[place] = min(again.get(place, float("inf")), letter.redrive or letter.at)
    for letter in index.letters:
        place = letter.delivery, bool(letter.channel)
        # Buried by the clock of another process.
        begin, end = letter.at + limits.clock, again.get(place, float("inf"))
        content = index.by_id.get(letter.notification_id)
        if not letter.channel and content is not None:
            others = [one for one in index.faults_of(device=False) if one.begin.fault != ROWS_REFUSED]
            if content.records > 1 or overlapping(others, content.first.at, min(end, index.end)):
                continue
        if any(begin < at < end for at in came.get(place, ())):
            yield Violation("I15", f"{letter.notification_id} was given up and delivered", (letter.notification_id,))


def not_sent(index: Index, limits: Limits) -> Iterator[Violation]:
    """I1, of the channel behind live: what nobody has marked as read came to it, or stands among the dead letters."""
    if not index.has_channel:
        return
    left = {letter.delivery for letter in index.letters if letter.channel and letter.left}
    for content in index.contents.values():
        first = content.first
        if content.outcome != "ok" or first.expire is not None:
            continue
        for notification_id in content.ids:
            for recipient, surely in due(index, content, limits):
                delivery = first.tenant, recipient, notification_id
                terminal = index.terminals.get(delivery)
                # A late send is judged by the wishes of that time.
                changed = any(muted(index, delivery[:2], first.category, first.at, index.end, limits))
                there = terminal is not None and terminal.state in _IN_THE_LIST
                if not surely or changed or not there or delivery in index.marks or delivery in left:
                    continue
                if not any(call.outcome == "taken" for call in index.calls.get(delivery, ())):
                    text = f"{notification_id} for {first.tenant}/{recipient} never came to the channel behind live"
                    yield Violation("I1", text, (content.nonce, notification_id))


def sent_twice(index: Index) -> Iterator[Violation]:
    """I7, of the channel behind live: it has a notification once, and once more for each fault of its life.

    Also for each time but the first that an operator tries its step again: nobody knows what came of those before.
    """
    faults = list(index.faults.values())
    orders = Counter(letter.delivery for letter in index.letters if letter.channel and letter.redriven)
    for delivery, calls in index.calls.items():
        tenant, recipient, notification_id = delivery
        taken = [call for call in calls if call.outcome == "taken"]
        content = index.by_id.get(notification_id)
        if not taken or content is None:
            continue
        bound = max(1, content.records) + overlapping(faults, content.first.at, taken[-1].at)
        bound += max(0, orders[delivery] - 1)
        if len(taken) > bound:
            text = f"{notification_id} for {tenant}/{recipient} came to the channel {len(taken)} times"
            yield Violation("I7", f"{text}, {bound} are allowed", (content.nonce, notification_id))
        # A device shows one of those that share it.
        if len({call.collapse_id for call in taken}) > 1:
            text = f"{notification_id} for {tenant}/{recipient} was sent as something else the second time"
            yield Violation("I7", text, (content.nonce, notification_id))
