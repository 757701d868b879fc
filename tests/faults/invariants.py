"""The invariants of a run, as far as its events show them: each a function from the joined events to what breaks it.

Numbered as in the catalogue of faults. Those about provider calls, the audit trail and erasure have nothing to look at
until these parts exist; `NOT_JUDGED` names them, and the report says so.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations, pairwise

from tests.faults import aside, history, recovery
from tests.faults.history import Device
from tests.faults.index import Content, Index, Session, overlapping
from tests.faults.limits import Limits, Violation
from tests.faults.wanted import due, muted

NOT_JUDGED = ("I16", "I18")

# A state after which nothing more happens, and those of them that need a reason.
TERMINAL_STATES = frozenset({"acked", "inboxed", "trimmed", "expired", "suppressed", "dead", "withdrawn"})
_WITH_REASON = frozenset({"suppressed", "dead"})
_SHOWN_STATES = frozenset({"acked", "inboxed"})


def no_loss(index: Index, limits: Limits) -> Iterator[Violation]:
    """I1: what was accepted is terminal for everybody it was due to, and there where that says so."""
    rows = {owner: {row.notification_id for row in found} for owner, found in index.rows.items()}
    full = _full(index, limits)
    for content in index.contents.values():
        if content.outcome != "ok":
            continue
        tenant = content.first.tenant
        for notification_id in content.ids:
            for recipient, surely in due(index, content, limits):
                terminal = index.terminals.get((tenant, recipient, notification_id))
                names = (content.nonce, notification_id)
                about = f"{notification_id} for {tenant}/{recipient}"
                if terminal is None or terminal.state not in TERMINAL_STATES:
                    if surely:
                        state = "nothing" if terminal is None else terminal.state
                        yield Violation("I1", f"{about} was accepted and is not terminal: {state}", names)
                elif terminal.state in _WITH_REASON and not terminal.reason:
                    yield Violation("I1", f"{about} is {terminal.state} without a reason", names)
                elif surely and terminal.state == "suppressed":
                    yield Violation("I1", f"{about} was due and is suppressed: {terminal.reason}", names)
                elif terminal.state in _SHOWN_STATES and notification_id not in rows.get((tenant, recipient), ()):
                    yield Violation("I1", f"{about} is {terminal.state} and not in the list", names)
                elif terminal.state == "expired" and content.first.expire is None:
                    yield Violation("I1", f"{about} is expired, though it has no end", names)
                elif terminal.state == "trimmed" and (tenant, recipient, _is_high(content, limits)) not in full:
                    yield Violation("I1", f"{about} is trimmed, though the list has room", names)
    yield from _not_received(index, limits)
    yield from aside.not_sent(index, limits)
    yield from _late_after_a_crash(index, limits)


def _full(index: Index, limits: Limits) -> set[tuple[str, str, bool]]:
    """The lists, by owner and class, that have no room: what is older than theirs may be trimmed."""
    found = {owner: [index.contents.get(row.nonce) for row in rows] for owner, rows in index.rows.items()}
    return {
        (*owner, high)
        for owner, contents in found.items()
        for high in (True, False)
        if sum(_is_high(content, limits) == high for content in contents) >= limits.window
    }


def _is_high(content: Content | None, limits: Limits) -> bool:
    return content is not None and content.first.priority >= limits.high


def _not_received(index: Index, limits: Limits) -> Iterator[Violation]:
    """A device that stayed connected long enough after the last fault has everything that is in the list."""
    for device, sessions in index.sessions.items():
        last = sessions[-1]
        if last.closed is not None or last.reloaded:
            continue
        had = {one.notification_id for session in sessions for one in session.received}
        had |= {notification_id for session in sessions for notification_id in session.connected.known}
        healthy_since = max(last.connected.at, index.healed)
        for row in index.rows.get((device.tenant, device.recipient), ()):
            content = index.contents.get(row.nonce)
            accept = content.accept if content is not None else None
            if accept is None or max(accept, healthy_since) + limits.receive > index.end:
                continue
            if row.notification_id not in had:
                text = f"{row.notification_id} is in the list of {device.tenant}/{device.recipient} and never came to"
                yield Violation("I1", f"{text} {device.name}", (row.nonce, row.notification_id))


def _late_after_a_crash(index: Index, limits: Limits) -> Iterator[Violation]:
    """What was under way when a process died is at all devices in time, unless something else was wrong as well."""
    others = [fault for fault in index.faults.values() if not fault.begin.crash]
    for fault, arrival in recovery.under_way(index):
        if not fault.begin.crash:
            continue
        # What was accepted only afterwards has its time from then on.
        begin = max(fault.begin.at, arrival.content.accept or 0.0)
        if arrival.at > begin + limits.crash and not overlapping(others, begin, arrival.at):
            text = f"{arrival.notification_id} came to {arrival.device.name} {arrival.at - begin:.1f} s after"
            names = (arrival.content.nonce, arrival.notification_id)
            yield Violation("I1", f"{text} {fault.begin.target} had died", names)


def no_phantom(index: Index, _: Limits) -> Iterator[Violation]:
    """I2: what arrives or is listed was published, and not surely refused."""
    for device, _session, one in index.received:
        yield from _phantom(index, one.nonce, one.notification_id, f"came to {device.name}")
    for (tenant, recipient), rows in index.rows.items():
        for row in rows:
            yield from _phantom(index, row.nonce, row.notification_id, f"is in the list of {tenant}/{recipient}")


def _phantom(index: Index, nonce: str, notification_id: str, where: str) -> Iterator[Violation]:
    content = index.contents.get(nonce)
    if content is None:
        yield Violation("I2", f"{notification_id} {where} and was never published", (nonce, notification_id))
    elif content.outcome == "fail":
        yield Violation("I2", f"{notification_id} {where} and was refused", (nonce, notification_id))


def no_leak(index: Index, _: Limits) -> Iterator[Violation]:
    """I3: nobody gets what is not theirs."""
    for device, _session, one in index.received:
        content = index.contents.get(one.nonce)
        meant = content is not None and (
            device.recipient in content.first.recipients and device.tenant == content.first.tenant
        )
        if content is not None and not (meant and one.canary):
            text = f"{one.notification_id} is not for {device.tenant}/{device.recipient} and came to {device.name}"
            yield Violation("I3", text, (one.nonce, one.notification_id))


def integrity(index: Index, _: Limits) -> Iterator[Violation]:
    """I4: contents arrive as they were sent."""
    for device, _session, one in index.received:
        content = index.contents.get(one.nonce)
        if content is not None and one.digest not in {attempt.invoke.digest for attempt in content.attempts}:
            names = (one.nonce, one.notification_id)
            yield Violation("I4", f"{one.notification_id} came to {device.name} with another content", names)


def order(index: Index, _: Limits) -> Iterator[Violation]:
    """I5: lists are in the order of ids and equal everywhere; without faults one key keeps its order in a session."""
    for (tenant, recipient), rows in index.rows.items():
        ids = [row.notification_id for row in rows]
        if ids != sorted(ids, reverse=True):
            yield Violation("I5", f"the list of {tenant}/{recipient} is not in the order of ids")
    for device, final in index.lists.items():
        rows = index.rows.get((device.tenant, device.recipient), [])
        if list(final.notification_ids) != [row.notification_id for row in rows]:
            there, here = {row.notification_id for row in rows}, set(final.notification_ids)
            names = tuple(sorted(there ^ here))[:5]
            text = f"the list of {device.name} of {device.tenant}/{device.recipient} is not the server's"
            yield Violation("I5", f"{text}: {len(there - here)} are missing, {len(here - there)} too many", names)
    if not index.faults:
        yield from _keys_in_order(index)


def _keys_in_order(index: Index) -> Iterator[Violation]:
    """Of one key what was accepted before another began comes first; of what was published at once no order is right.

    But all devices of a recipient see the same one, since there is one order of rows. Ids are not looked at: two of one
    millisecond are in the order of their hashes, in whatever order they were published.
    """
    arrivals: dict[tuple[str, str, str, int], list[tuple[Device, list[history.Received]]]] = defaultdict(list)
    for device, sessions in index.sessions.items():
        had: set[str] = set()
        for session in sessions:
            for key, found in _first_of_keys(index, session, had).items():
                yield from _begun_before(index, device, key[0], found)
                arrivals[device.tenant, device.recipient, *key].append((device, found))
    for (_tenant, _recipient, ordering_key, _priority), lists in arrivals.items():
        for (one, here), (other, there) in combinations(lists, 2):
            if one != other:
                yield from _same_order(one, here, other, there, ordering_key)


def _first_of_keys(index: Index, session: Session, had: set[str]) -> dict[tuple[str, int], list[history.Received]]:
    """Returns what came live to a device for the first time in this session, by key and priority."""
    had |= set(session.connected.known)
    found: dict[tuple[str, int], list[history.Received]] = defaultdict(list)
    for one in session.received:
        content = index.contents.get(one.nonce)
        if content is not None and content.first.ordering_key and one.live and one.notification_id not in had:
            found[content.first.ordering_key, content.first.priority].append(one)
        had.add(one.notification_id)
    return found


def _begun_before(index: Index, device: Device, key: str, found: list[history.Received]) -> Iterator[Violation]:
    latest: tuple[float, str] = (float("-inf"), "")
    for one in found:
        content = index.contents[one.nonce]
        if content.accept is not None and content.accept < latest[0]:
            text = f"{one.notification_id} of key {key!r} came to {device.name} after {latest[1]}, which began later"
            yield Violation("I5", text, (one.notification_id, latest[1]))
        latest = max(latest, (content.first.at, one.notification_id))


def _same_order(
    one: Device, here: list[history.Received], other: Device, there: list[history.Received], key: str
) -> Iterator[Violation]:
    places = {received.notification_id: place for place, received in enumerate(here)}
    common = [received.notification_id for received in there if received.notification_id in places]
    for first, second in pairwise(common):
        if places[second] < places[first]:
            text = f"{first} of key {key!r} came to {other.name} before {second}, and to {one.name} after it"
            yield Violation("I5", text, (first, second))


def resume(index: Index, limits: Limits) -> Iterator[Violation]:
    """I6: after the first replay of a session the device has every row from before it, or was told to reload."""
    for device, sessions in index.sessions.items():
        had: set[str] = set()
        for session in sessions:
            had |= set(session.connected.known)
            if session.replayed is not None and not session.reloaded:
                here = had | {one.notification_id for one in session.received if one.at <= session.replayed}
                yield from _gaps(index, device, session, here, limits)
            had |= {one.notification_id for one in session.received}


def _gaps(index: Index, device: Device, session: Session, here: set[str], limits: Limits) -> Iterator[Violation]:
    for row in index.rows.get((device.tenant, device.recipient), ()):
        content = index.contents.get(row.nonce)
        accept = content.accept if content is not None else None
        terminal_before = accept is not None and accept + limits.write + limits.skew < session.connected.at
        # A row that waited out a fault was not there yet.
        waited = overlapping(index.faults_of(device=False), accept or 0.0, session.connected.at) > 0
        if terminal_before and not waited and row.notification_id not in here:
            text = f"session {session.number} of {device.name} replayed without {row.notification_id}"
            yield Violation("I6", text, (row.nonce, row.notification_id))


def duplicates(index: Index, _: Limits) -> Iterator[Violation]:
    """I7: a copy too many needs a fault that overlaps its life, and is never shown."""
    faults = list(index.faults.values())
    for (device, notification_id, revision), found in copies(index).items():
        if len(found) == 1:
            continue
        content = index.contents.get(found[0].nonce)
        begin = content.first.at if content is not None else found[0].at
        # A replay brings a row again that was marked since.
        marks = index.marks.get((device.tenant, device.recipient, notification_id), ())
        bound = 1 + overlapping(faults, begin, found[-1].at) + sum(at <= found[-1].at for at in marks)
        # So does one whose row was written twice: the request log did not know the repeat in time.
        bound += max(0, content.records - 1) if content is not None else 0
        if len(found) > bound:
            text = (
                f"{notification_id} revision {revision} came {len(found)} times to {device.name}, {bound} are allowed"
            )
            yield Violation("I7", text, (found[0].nonce, notification_id))
    for device, shown in index.shown.items():
        for (notification_id, revision), number in Counter(
            (one.notification_id, one.revision) for one in shown
        ).items():
            if number > 1:
                text = f"{notification_id} revision {revision} was shown {number} times on {device.name}"
                yield Violation("I7", text, (notification_id,))
    yield from aside.sent_twice(index)


def copies(index: Index) -> Mapping[tuple[Device, str, int], list[history.Received]]:
    """Returns what came over the wire, by device and revision."""
    found: dict[tuple[Device, str, int], list[history.Received]] = defaultdict(list)
    for device, _session, one in index.received:
        found[device, one.notification_id, one.revision].append(one)
    return found


def unread(index: Index, _: Limits) -> Iterator[Violation]:
    """I8: when all is quiet the server's count, the list's and every device's are one number."""
    for owner, count in index.unread.items():
        tenant, recipient = owner
        listed = sum(not row.read for row in index.rows.get(owner, ()))
        if count.number != listed:
            yield Violation("I8", f"{tenant}/{recipient} has {listed} unread rows, the server counts {count.number}")
    for device, final in index.lists.items():
        owner = device.tenant, device.recipient
        if owner in index.unread and final.unread != index.unread[owner].number:
            text = f"{device.name} of {device.tenant}/{device.recipient} counts {final.unread} unread"
            yield Violation("I8", f"{text}, the server {index.unread[owner].number}")


def acks_stick(index: Index, _: Limits) -> Iterator[Violation]:
    """I9: what a device acked, and was told so, is acked for good, and not offered to it in a later session.

    A replay may bring it once more when it was marked since. Where a fault on its way, or a request log that did not
    know the repeat, let its row be written again, it may be offered once more, and no app shows it (I7).
    """
    faults = index.faults_of(device=False)
    for device, sessions in index.sessions.items():
        confirmed: dict[str, float] = {}
        for session in sessions:
            for one in session.received:
                if not one.live or confirmed.get(one.notification_id, float("inf")) >= session.connected.at:
                    continue
                content = index.contents.get(one.nonce)
                begin = content.first.at if content is not None else one.at
                if (content is None or content.records < 2) and not overlapping(faults, begin, one.at):
                    text = f"{one.notification_id} was offered to {device.name} again after its ack was confirmed"
                    yield Violation("I9", text, (one.nonce, one.notification_id))
            confirmed = {**session.confirmed, **confirmed}
        for row in index.rows.get((device.tenant, device.recipient), ()):
            if row.new and row.notification_id in confirmed:
                text = f"the ack of {row.notification_id} was confirmed to {device.name}, and the server has none"
                yield Violation("I9", text, (row.nonce, row.notification_id))


def consent(index: Index, limits: Limits) -> Iterator[Violation]:
    """I10: what was surely muted when it was published reaches nobody."""
    for device, _session, one in index.received:
        content = index.contents.get(one.nonce)
        if content is None:
            continue
        first, last = content.first, content.attempts[-1].invoke
        owner = device.tenant, device.recipient
        off, _open = muted(index, owner, first.category, first.at, max(last.at, one.at), limits)
        if off:
            text = f"{one.notification_id} came to {device.name}, who had muted {first.category!r}"
            yield Violation("I10", text, (one.nonce, one.notification_id))


def expiry(index: Index, limits: Limits) -> Iterator[Violation]:
    """I11: nothing is shown after its time, and nothing is sent after it: what arrives late was held on its way.

    It is over when S has passed since, by the clock of whoever sends it; what is sent then takes its way.
    """
    nonces = {id_: content.nonce for id_, content in index.by_id.items()}
    on_the_way = index.faults_of(device=True)
    seen = [
        (device, one.notification_id, one.at, 0.0, "shown on") for device, all_ in index.shown.items() for one in all_
    ]
    seen += [
        (device, one.notification_id, one.at, limits.travel, "sent to")
        for device, _session, one in index.received
        if not overlapping(on_the_way, one.at - limits.held, one.at)
    ]
    for device, notification_id, at, travel, how in seen:
        content = index.by_id.get(notification_id)
        expire = content.first.expire if content is not None else None
        if expire is not None and at > expire + limits.skew + limits.clock + travel:
            text = f"{notification_id} was {how} {device.name} {at - expire:.1f} s after its time"
            yield Violation("I11", text, (nonces[notification_id], notification_id))


def idempotency(index: Index, _: Limits) -> Iterator[Violation]:
    """I12: a request has one id and one row, whatever is repeated."""
    by_request: dict[tuple[str, str, str], list[Content]] = defaultdict(list)
    for content in index.contents.values():
        first = content.first
        if first.request_id:
            by_request[first.tenant, first.producer, first.request_id].append(content)
        if first.request_id and first.has_time and len(content.ids) > 1:
            text = f"request {first.request_id} was accepted under {len(content.ids)} ids"
            yield Violation("I12", text, (content.nonce, *content.ids))
    # Redis has both, presence and the request log.
    begun = {(fault.begin.fault, fault.begin.target) for fault in index.faults.values()}
    flushed = ("F-42", "redis") in begun or any(row in {"F-11", "F-12"} for row, _ in begun)
    for (_tenant, _producer, request_id), contents in by_request.items():
        accepted = [content for content in contents if content.outcome == "ok"]
        if len(accepted) > 1 and not flushed:
            nonces = tuple(content.nonce for content in accepted)
            yield Violation("I12", f"request {request_id} was accepted with {len(accepted)} contents", nonces)
    for (tenant, recipient), rows in index.rows.items():
        for notification_id, number in Counter(row.notification_id for row in rows).items():
            if number > 1:
                text = f"{notification_id} is {number} times in the list of {tenant}/{recipient}"
                yield Violation("I12", text, (notification_id,))
        for nonce, number in Counter(row.nonce for row in rows).items():
            found = index.contents.get(nonce)
            if number > 1 and found is not None and found.first.has_time:
                yield Violation("I12", f"content {nonce} has {number} rows at {tenant}/{recipient}", (nonce,))


def positions(index: Index, _: Limits) -> Iterator[Violation]:
    """I13: no position is behind an unfinished record, and in the end nothing is left."""
    for one in index.positions:
        if one.first_unfinished is not None and one.committed >= one.first_unfinished:
            text = f"{one.lane} is committed to {one.committed}, {one.first_unfinished} is not finished"
            yield Violation("I13", text)
        if one.quiet and one.lag:
            yield Violation("I13", f"{one.lane} is {one.lag} records behind, though all is quiet")


def liveness(index: Index, _: Limits) -> Iterator[Violation]:
    """I14: after the last fault all comes to rest in time."""
    for one in index.settled:
        if one.seconds is None or one.seconds > one.limit:
            took = "did not end" if one.seconds is None else f"took {one.seconds:.1f} s"
            yield Violation("I14", f"coming to rest {took}; the limit is {one.limit:.1f} s")


def presence(index: Index, _: Limits) -> Iterator[Violation]:
    """I17: when all is quiet presence knows the sockets there are."""
    for one in index.registries:
        known, real = Counter(one.by_presence), Counter(one.by_sockets)
        if known != real:
            lost, stale = sorted((real - known).elements())[:5], sorted((known - real).elements())[:5]
            yield Violation("I17", f"presence does not know {lost} and keeps {stale}")


INVARIANTS: Mapping[str, Callable[[Index, Limits], Iterator[Violation]]] = {
    "I1": no_loss,
    "I2": no_phantom,
    "I3": no_leak,
    "I4": integrity,
    "I5": order,
    "I6": resume,
    "I7": duplicates,
    "I8": unread,
    "I9": acks_stick,
    "I10": consent,
    "I11": expiry,
    "I12": idempotency,
    "I13": positions,
    "I14": liveness,
    "I15": aside.dead_letters,
    "I17": presence,
}
