"""What more than there is room for does: `python -m bench.overload`.

Two rows of facts, against a direct installation and in an open loop:

- overload: a mix of priorities at 0.8 of the capacity, then at five times of it, then at 0.8 again. Goodput, who was
  refused, what high had to wait, and how long it took until all was as before.
- bulk against high: one event of bulk to a topic of a hundred thousand, and as many recipients in events of ten
  thousand several times one after the other, while high goes on at its pace; beside the same without.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from bench import listeners, publishers, topics
from bench.e2e import Load, listen, measure, output, publisher_order, settle, start
from bench.installation import Installation
from bench.measures import Spread, machine, spread, table

HIGH, NORMAL, BULK = "security", "general", "newsletter"
MIX: Mapping[str, float] = {HIGH: 0.1, NORMAL: 0.6, BULK: 0.3}
NAMES: Mapping[str, str] = {HIGH: "high", NORMAL: "normal", BULK: "bulk"}
_CALM = 0.8
# The flood that the capacity is measured with: more than any machine of ours takes.
_FLOOD = 12_000.0
# Its last part counts: inboxes are full by then, and each row written has one to trim, as in the phases that follow.
_FLOOD_S = 35.0
_COUNTED_S = 10.0
_LARGEST_EVENT = 10_000
_TOPIC = "everybody"


class Phase(msgspec.Struct, frozen=True):
    """One part of the run.

    Attributes:
        name: as the table calls it.
        offered: events a second.
        accepted_rate: events a second that were accepted.
        accepted: shares accepted, by priority.
        refusals: reasons with their counts.
        goodput: notifications a second that arrived.
        high: latency of high to the receipt.
        normal: latency of normal.
    """

    name: str
    offered: float
    accepted_rate: float
    accepted: dict[str, float]
    refusals: dict[str, int]
    goodput: float
    high: Spread
    normal: Spread


class Overload(msgspec.Struct, frozen=True):
    """The first row.

    Attributes:
        capacity: notifications a second that arrive when far too many are published.
        factor: of it, that was offered.
        phases: before, during, after.
        recovery: seconds until nothing was refused and nothing late any more; -1: never.
        errors: the first few failures.
        ended: sessions that the nodes closed because they fell behind, or that were lost otherwise.
        returned: of these, those that came back.
    """

    capacity: float
    factor: float
    phases: list[Phase]
    recovery: float
    errors: list[str]
    ended: int
    returned: int


class Beside(msgspec.Struct, frozen=True):
    """High while bulk is worked off.

    Attributes:
        name: what bulk is.
        recipients: of bulk.
        high: its latency to the receipt.
        seconds: from the first publish of bulk to its last receipt.
        refused: events of bulk.
    """

    name: str
    recipients: int
    high: Spread
    seconds: float
    refused: int

    @property
    def pace(self) -> float:
        """Recipients of bulk a second."""
        return self.recipients / max(self.seconds, 0.1)


class BulkAgainstHigh(msgspec.Struct, frozen=True):
    """The second row: high alone at its pace, and beside each kind of bulk."""

    high_rate: float
    alone: Spread
    beside: list[Beside]


class Heard(msgspec.Struct, frozen=True):
    """What one run's listeners saw: (intended, latency) in µs, by category; sessions that ended, and that came back."""

    receipts: Mapping[str, Sequence[tuple[int, int]]]
    ended: int = 0
    returned: int = 0

    def latencies(self, category: str, first: float = 0, last: float = math.inf) -> list[int]:
        """Returns the latencies of what was due between two times."""
        return [latency for intended, latency in self.receipts.get(category, ()) if first <= intended < last]

    def arrived(self, first: float, last: float) -> int:
        """Counts what arrived between two times."""
        return sum(first <= a + b < last for one in self.receipts.values() for a, b in one)


def _heard(listening: subprocess.Popen[bytes]) -> Heard:
    result = msgspec.json.decode(output(listening), type=listeners.Result)
    receipts = {name: list(zip(one[::2], one[1::2], strict=True)) for name, one in result.by_category.items()}
    return Heard(receipts, result.closed, result.returned)


def _publish(order: publishers.Order) -> subprocess.Popen[bytes]:
    return start("bench.publishers", order)


def _sent(publishing: subprocess.Popen[bytes]) -> publishers.Result:
    return msgspec.json.decode(output(publishing), type=publishers.Result)


# ---------------------------------------------------------------- overload


def measure_capacity(installation: Installation, recipients: Sequence[str], batch: int) -> float:
    """Returns the notifications a second that arrive when far too many are published."""
    listening = listen(installation, recipients, installation.live_targets(), by_category=True, returns=True)
    load = Load("flood", _FLOOD, batch=batch)
    sent = _sent(_publish(publisher_order(installation, recipients, load, _FLOOD_S)))
    settle(installation.pids())
    heard = _heard(listening)
    last = sent.began + _FLOOD_S * 1_000_000
    first = last - _COUNTED_S * 1_000_000
    return heard.arrived(first, last) * 1_000_000 / (last - first)


def overload(
    installation: Installation, *, sessions: int, batch: int, factor: float, seconds: Sequence[float], capacity: float
) -> Overload:
    """Runs the three phases; each is so many seconds long."""
    recipients = [f"over-{index:05d}" for index in range(sessions)]
    capacity = capacity or measure_capacity(installation, [f"flood-{index:05d}" for index in range(sessions)], batch)
    listening = listen(installation, recipients, installation.live_targets(), by_category=True, returns=True)
    rates = (_CALM * capacity, factor * capacity, _CALM * capacity)
    order = msgspec.structs.replace(
        publisher_order(installation, recipients, Load("mix", 1.0, batch=batch), 0.0),
        mix=dict(MIX),
        phases=list(zip(seconds, rates, strict=True)),
        timeout=5.0,
    )
    sent = _sent(_publish(order))
    settle(installation.pids())
    heard = _heard(listening)
    phases = []
    begin = 0.0
    for name, length, rate in zip((f"{_CALM:g}×", f"{factor:g}×", f"{_CALM:g}× again"), seconds, rates, strict=True):
        # The last phase is judged by its second half: the first one is the recovery.
        start_s = begin + length / 2 if name.endswith("again") else begin
        phases.append(_phase(name, rate, sent, heard, start_s, begin + length))
        begin += length
    recovery = _recovery(sent, heard, seconds[0], seconds[0] + seconds[1], begin)
    return Overload(round(capacity), factor, phases, recovery, sent.errors, heard.ended, heard.returned)


def _phase(name: str, rate: float, sent: publishers.Result, heard: Heard, first_s: float, last_s: float) -> Phase:
    outcomes = {category: Counter[str]() for category in MIX}
    for second in sent.seconds[round(first_s) : round(last_s)]:
        for category, found in second.items():
            outcomes[category].update(found)
    first, last = sent.began + first_s * 1_000_000, sent.began + last_s * 1_000_000
    refusals: Counter[str] = Counter()
    for found in outcomes.values():
        refusals.update({reason: count for reason, count in found.items() if reason != "accepted"})
    return Phase(
        name=name,
        offered=round(rate),
        accepted_rate=round(sum(found["accepted"] for found in outcomes.values()) / (last_s - first_s)),
        accepted={NAMES[one]: round(found["accepted"] / max(found.total(), 1), 3) for one, found in outcomes.items()},
        refusals=dict(refusals),
        goodput=round(heard.arrived(first, last) / (last_s - first_s)),
        high=spread(heard.latencies(HIGH, first, last)),
        normal=spread(heard.latencies(NORMAL, first, last)),
    )


def _recovery(sent: publishers.Result, heard: Heard, calm_s: float, end_s: float, last_s: float) -> float:
    """Returns how long after the overload the last second was in which somebody was refused or normal was late."""
    usual = spread(heard.latencies(NORMAL, sent.began, sent.began + calm_s * 1_000_000)).p99
    late_ms = max(2 * usual, 500.0)
    last = end_s
    for second in range(round(end_s), round(last_s)):
        outcomes = Counter[str]()
        for found in sent.seconds[second].values() if second < len(sent.seconds) else ():
            outcomes.update(found)
        first = sent.began + second * 1_000_000
        p99 = spread(heard.latencies(NORMAL, first, first + 1_000_000)).p99
        if set(outcomes) - {"accepted"} or p99 > late_ms:
            last = second + 1
    return -1.0 if last >= last_s else last - end_s


def show_overload(found: Overload) -> str:
    """Returns the table of the first row."""
    rows = [
        (
            one.name,
            f"{one.offered:,.0f}",
            f"{one.accepted_rate:,.0f}",
            f"{one.goodput:,.0f}",
            *(f"{100 * one.accepted[name]:.1f}" for name in NAMES.values()),
            f"{one.high.p50:.0f} / {one.high.p99:.0f}",
            f"{one.normal.p50:.0f} / {one.normal.p99:.0f}",
            ", ".join(f"{reason} {count:,}" for reason, count in one.refusals.items()) or "-",
        )
        for one in found.phases
    ]
    columns: tuple[str, ...] = ("load", "offered/s", "accepted/s", "goodput/s", "high ok %", "normal ok %", "bulk ok %")
    columns += ("high p50/p99 ms", "normal p50/p99 ms", "refused")
    recovery = "not within the run" if found.recovery < 0 else f"{found.recovery:.0f} s"
    sessions = f"{found.ended:,} sessions ended, {found.returned:,} came back"
    return f"{table(columns, rows)}\ncapacity {found.capacity:,.0f}/s; back to normal after {recovery}; {sessions}"


# ---------------------------------------------------------------- bulk against high


class _Pace(msgspec.Struct, frozen=True):
    """High while bulk is measured: so many sessions get so many events a second, for so many seconds."""

    sessions: int
    rate: float
    seconds: float


def bulk_against_high(
    installation: Installation, *, sessions: int, recipients: int, rounds: int, rate: float, seconds: float
) -> BulkAgainstHigh:
    """High at its pace alone, then the same beside each kind of bulk.

    Args:
        installation: it serves.
        sessions: recipients that listen, to high and to bulk.
        recipients: of bulk.
        rounds: of bulk in events of 10,000, a second apart; 0: only the one event to a topic.
        rate: of high, events a second.
        seconds: of high each time.
    """
    pace = _Pace(sessions, rate, seconds)
    alone, _ = _run(installation, _names("alone", sessions), pace, None)
    listened = _names("topic", sessions)
    bulk = _topic_order(installation, listened, recipients)
    found = [beside(f"one event for {recipients:,}", recipients, *_run(installation, listened, pace, bulk))]
    if rounds:
        listened = _names("events", sessions)
        bulk = _events_order(installation, listened, recipients, rounds)
        name = f"{rounds} × {recipients:,} in events of {bulk.audience:,}"
        found.append(beside(name, rounds * recipients, *_run(installation, listened, pace, bulk)))
    return BulkAgainstHigh(rate, spread(alone.latencies(HIGH)), found)


def _names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{index:05d}" for index in range(count)]


def _run(
    installation: Installation, listened: Sequence[str], pace: _Pace, bulk: publishers.Order | None
) -> tuple[Heard, int]:
    """Publishes high, and bulk where there is one, until all is worked off; returns with it bulk's refused events."""
    listening = listen(installation, listened, installation.live_targets(), by_category=True)
    order = publisher_order(installation, listened, Load("high", pace.rate), pace.seconds)
    high = _publish(msgspec.structs.replace(order, category=HIGH))
    bulk_sending = None if bulk is None else _publish(bulk)
    _sent(high)
    settle(installation.pids())
    refused = 0
    if bulk_sending is not None:
        refused = _sent(bulk_sending).refused
        _wait_for_lanes(installation)
    return _heard(listening), refused


def beside(name: str, recipients: int, heard: Heard, refused: int) -> Beside:
    """Looks at high while bulk lasts: what bulk leaves untouched is not what is asked for."""
    receipts = heard.receipts.get(BULK, ())
    if not receipts:
        raise RuntimeError(f"bulk, {name}: nothing arrived, {refused} events were refused")
    first, last = min(a for a, _ in receipts), max(a + b for a, b in receipts)
    seconds = round((last - first) / 1_000_000, 1)
    return Beside(name, recipients, spread(heard.latencies(HIGH, first, last)), seconds, refused)


def _topic_order(installation: Installation, listened: Sequence[str], recipients: int) -> publishers.Order:
    """One event for everybody who follows a topic; it is planned slice by slice."""
    members = topics.interleaved(listened, recipients)
    topics.subscribe(installation, {_TOPIC: members})
    order = publisher_order(installation, [], Load("bulk", len(members), audience=len(members)), 1.0)
    return msgspec.structs.replace(order, category=BULK, topics=[_TOPIC])


def _events_order(
    installation: Installation, listened: Sequence[str], recipients: int, rounds: int
) -> publishers.Order:
    """Those who listen are spread over all events; the last event ends with the last of them."""
    step = max(1, recipients // len(listened))
    names = [
        listened[index // step] if index % step == step - 1 and index // step < len(listened) else f"b-{index:06d}"
        for index in range(recipients)
    ]
    audience = min(_LARGEST_EVENT, recipients)
    order = publisher_order(installation, names, Load("bulk", recipients, audience=audience), float(rounds))
    return msgspec.structs.replace(order, category=BULK)


def _wait_for_lanes(installation: Installation, limit: float = 120.0) -> None:
    """Waits until nothing moves any more: bulk may be worked off long after high has ended."""
    end = time.monotonic() + limit
    quiet = 0
    while time.monotonic() < end and quiet < 3:
        before = time.monotonic()
        settle(installation.pids())
        quiet = quiet + 1 if time.monotonic() - before < 0.6 else 0


def show_bulk(found: BulkAgainstHigh) -> str:
    """Returns the table of the second row."""
    rows: list[tuple[object, ...]] = [("alone", *_columns(found.alone), "", "", "")]
    rows += [
        (one.name, *_columns(one.high), f"{one.seconds:.1f}", f"{one.pace:,.0f}", one.refused) for one in found.beside
    ]
    columns = (f"high at {found.high_rate:g}/s, beside bulk", "p50 ms", "p99 ms", "p99.9", "events")
    return table((*columns, "bulk s", "recipients/s", "refused"), rows)


def _columns(high: Spread) -> tuple[str, str, str, int]:
    return f"{high.p50:.1f}", f"{high.p99:.1f}", f"{high.p999:.0f}", high.count


def main() -> None:
    """Runs what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", choices=("overload", "bulk", "both"), default="both")
    parser.add_argument("--factor", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=60.0, help="of overload")
    parser.add_argument("--capacity", type=float, default=0.0, help="notifications a second; measured if left out")
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--recipients", type=int, default=100_000, help="of bulk")
    parser.add_argument("--rounds", type=int, default=5, help="of bulk in events of 10,000, a second apart")
    parser.add_argument("--rate", type=float, default=100.0, help="of high beside bulk")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    chosen = parser.parse_args()
    figures: dict[str, object] = {"machine": machine()}
    for row in ("overload", "bulk") if chosen.row == "both" else (chosen.row,):
        with Installation(direct=True) as installation:
            measure(installation, Load("warm-up", 200.0, batch=10), seconds=2.0, sessions=100)
            if row == "overload":
                found = overload(
                    installation,
                    sessions=chosen.sessions,
                    batch=chosen.batch,
                    factor=chosen.factor,
                    seconds=(10.0, chosen.seconds, 40.0),
                    capacity=chosen.capacity,
                )
                figures[row] = found
                print(show_overload(found), flush=True)
                for error in found.errors:
                    print(f"refused: {error}")
            else:
                beside = bulk_against_high(
                    installation,
                    sessions=chosen.sessions,
                    recipients=chosen.recipients,
                    rounds=chosen.rounds,
                    rate=chosen.rate,
                    seconds=20.0,
                )
                figures[row] = beside
                print(show_bulk(beside), flush=True)
    print("\n" + "  ".join(f"{key} {value}" for key, value in machine().items()))
    if chosen.json:
        chosen.json.write_bytes(msgspec.json.format(msgspec.json.encode(figures)))


if __name__ == "__main__":
    main()
