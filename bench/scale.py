"""Whether a notification costs the same however large everything is: `python -m bench.scale`.

Four things grow ×1, ×10 and ×100 at the same rate of notifications: the recipients of an event, the subscribers of a
topic, those of a large topic of whom one in a hundred is connected, and the rows that each inbox already has. What
counts is the CPU of all processes for each notification beside that at ×1: it must stay flat, or fall.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench import publishers, topics
from bench.crowd import Crowd, live_order
from bench.e2e import Load, output, publisher_order, start
from bench.installation import Installation
from bench.measures import cpu_seconds, machine, quiet, table

FACTORS = (1, 10, 100)
# What ×1 is.
_AUDIENCE, _TOPIC, _LARGE_TOPIC, _ROWS = 10, 10, 1_000, 10
_SESSIONS = 1_000
# Of a large topic, so many subscribers to one that is connected: the largest has more than a machine has sessions for.
_TO_ONE = 100
# Notifications of one measurement of large topics, and their rate: the largest topic is one event, and all is over
# before those who are away are looked at again.
_LARGE_COUNT = _LARGE_TOPIC * FACTORS[-1]
_LARGE_RATE = 20_000.0
# Recipients whose inboxes grow: few, so that filling them takes seconds.
_INBOXES = 50
_CALL = 100
_FILL_RATE = 6_000.0
_ARRIVAL_LIMIT = 30.0
_ACK_WINDOW = 12.0


class Point(msgspec.Struct, frozen=True):
    """One size.

    Attributes:
        what: which thing has it.
        size: how large it is.
        factor: times ×1.
        micros: CPU of all processes, µs a notification.
        due: notifications.
        missing: those that did not arrive.
    """

    what: str
    size: int
    factor: int
    micros: float
    due: int
    missing: int


class Course(msgspec.Struct, frozen=True):
    """How one thing grows: its sizes, cheapest measurement of each."""

    what: str
    points: list[Point]

    @property
    def ratios(self) -> list[float]:
        """Cost at each larger size beside that at ×1."""
        first = self.points[0].micros
        return [point.micros / first if first else 0.0 for point in self.points[1:]]

    @property
    def missing(self) -> int:
        """What did not arrive, at any size."""
        return sum(point.missing for point in self.points)


class Ground(msgspec.Struct, frozen=True):
    """What a measurement stands on."""

    installation: Installation
    rate: float
    seconds: float


def _measure(ground: Ground, crowd: Crowd, order: publishers.Order, to_one: int = 1) -> tuple[float, int, int]:
    """Returns CPU µs a notification, how many there were, and how many did not arrive.

    Args:
        ground: where.
        crowd: who listens.
        order: what is published.
        to_one: so many notifications to one that arrives, as the recipients of the others are away.
    """
    pids = ground.installation.pids()
    # What sessions are sent when they connect is no notification of this measurement, and grows with their inboxes.
    quiet(pids)
    seen = crowd.report().received
    before = sum(cpu_seconds(pids).values())
    sent = msgspec.json.decode(output(start("bench.publishers", order)), type=publishers.Result)
    end = time.monotonic() + _ARRIVAL_LIMIT
    due = sent.due // to_one
    while crowd.report().received - seen < due and time.monotonic() < end:
        time.sleep(0.2)
    quiet(pids)
    used = sum(cpu_seconds(pids).values()) - before
    return round(used / max(1, sent.due) * 1e6, 1), sent.due, due - (crowd.report().received - seen)


@contextmanager
def _listening(ground: Ground, recipients: Sequence[str]) -> Iterator[Crowd]:
    with Crowd(live_order(ground.installation, recipients)) as crowd:
        crowd.wait()
        yield crowd


def _order(ground: Ground, recipients: Sequence[str], audience: int, rate: float, seconds: float) -> publishers.Order:
    load = Load("scale", rate, audience=audience, batch=max(1, _CALL // audience))
    return publisher_order(ground.installation, recipients, load, seconds)


# ---------------------------------------------------------------- what grows


def by_audience(ground: Ground, rounds: int) -> Course:
    """Recipients of one event."""
    recipients = [f"aud-{number:05d}" for number in range(_SESSIONS)]
    with _listening(ground, recipients) as crowd:

        def once(size: int) -> tuple[float, int, int]:
            return _measure(ground, crowd, _order(ground, recipients, size, ground.rate, ground.seconds))

        return _course("recipients of an event", _AUDIENCE, once, rounds)


def by_topic(ground: Ground, rounds: int) -> Course:
    """Subscribers of one topic; together the topics of a size have all sessions."""
    recipients = [f"top-{number:05d}" for number in range(_SESSIONS)]
    sizes = [_TOPIC * factor for factor in FACTORS]
    names = {size: [f"t{size}-{number}" for number in range(_SESSIONS // size)] for size in sizes}
    members = {
        name: recipients[number * size : (number + 1) * size]
        for size, one in names.items()
        for number, name in enumerate(one)
    }
    topics.subscribe(ground.installation, members)
    with _listening(ground, recipients) as crowd:

        def once(size: int) -> tuple[float, int, int]:
            order = _order(ground, recipients, size, ground.rate, ground.seconds)
            return _measure(ground, crowd, msgspec.structs.replace(order, topics=names[size]))

        return _course("subscribers of a topic", _TOPIC, once, rounds)


def by_large_topic(ground: Ground, rounds: int) -> Course:
    """Subscribers of one large topic, in slices above 10,000; a smaller one is the beginning of a larger one."""
    sizes = [_LARGE_TOPIC * factor for factor in FACTORS]
    recipients = [f"big-{number:05d}" for number in range(sizes[-1] // _TO_ONE)]
    members = topics.interleaved(recipients, sizes[-1])
    topics.subscribe(ground.installation, {f"t{size}": members[:size] for size in sizes})
    with _listening(ground, recipients) as crowd:

        def once(size: int) -> tuple[float, int, int]:
            # Nor may that fall into the next measurement.
            time.sleep(_ACK_WINDOW)
            load = Load("scale", _LARGE_RATE, audience=size)
            order = publisher_order(ground.installation, [], load, _LARGE_COUNT / _LARGE_RATE)
            return _measure(ground, crowd, msgspec.structs.replace(order, topics=[f"t{size}"]), _TO_ONE)

        return _course("subscribers of a large topic", _LARGE_TOPIC, once, rounds)


def by_inbox(ground: Ground, rounds: int) -> Course:
    """Rows that each inbox has, all of them acked."""
    sizes = [_ROWS * factor for factor in FACTORS]
    inboxes = {size: [f"inb{size}-{number:05d}" for number in range(_INBOXES)] for size in sizes}
    for size, recipients in inboxes.items():
        with _listening(ground, recipients) as crowd:
            _measure(ground, crowd, _order(ground, recipients, _INBOXES, _FILL_RATE, size * _INBOXES / _FILL_RATE))
    # What is looked at again when the time for an ack is over must not fall into a measurement.
    time.sleep(_ACK_WINDOW)
    quiet(ground.installation.pids())

    def once(size: int) -> tuple[float, int, int]:
        with _listening(ground, inboxes[size]) as crowd:
            return _measure(ground, crowd, _order(ground, inboxes[size], _ROWS, ground.rate, ground.seconds))

    return _course("rows of an inbox", _ROWS, once, rounds)


GROWTH: dict[str, Callable[[Ground, int], Course]] = {
    "audience": by_audience,
    "topic": by_topic,
    "large-topic": by_large_topic,
    "inbox": by_inbox,
}


def _course(what: str, base: int, once: Callable[[int], tuple[float, int, int]], rounds: int) -> Course:
    """Measures all sizes in turn, up and down; a neighbour makes a measurement dearer, never cheaper."""
    found: dict[int, list[Point]] = {factor: [] for factor in FACTORS}
    once(base)
    for number in range(rounds):
        for factor in FACTORS[:: -1 if number % 2 else 1]:
            micros, due, missing = once(base * factor)
            found[factor].append(Point(what, base * factor, factor, micros, due, missing))
    return Course(what, [min(points, key=lambda point: point.micros) for points in found.values()])


# ---------------------------------------------------------------- the command


def measure(which: Sequence[str], *, rate: float, seconds: float, rounds: int, direct: bool = True) -> list[Course]:
    """Measures what was asked for, each on an installation of its own."""
    courses = []
    for name in which:
        with Installation(direct=direct) as installation:
            courses.append(GROWTH[name](Ground(installation, rate, seconds), rounds))
    return courses


def show(courses: Sequence[Course]) -> str:
    """Returns the table."""
    rows = [
        (
            course.what,
            *(f"{point.size:,}: {point.micros:.0f}" for point in course.points),
            *(f"{ratio:.2f}" for ratio in course.ratios),
            course.missing,
        )
        for course in courses
    ]
    sizes = [f"×{factor}" for factor in FACTORS]
    return table(("CPU µs a notification, by", *sizes, *(f"{size} / ×1" for size in sizes[1:]), "missing"), rows)


def main() -> None:
    """Runs the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=("direct", "mesh"), default="direct")
    parser.add_argument("--by", action="append", choices=GROWTH, help="what grows; default: all")
    parser.add_argument(
        "--rate", type=float, default=2_000.0, help="notifications a second; large topics have their own"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=2, help="all sizes in turn, so many times; the cheapest counts")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    chosen = parser.parse_args()
    courses = measure(
        chosen.by or list(GROWTH),
        rate=chosen.rate,
        seconds=chosen.seconds,
        rounds=chosen.rounds,
        direct=chosen.shape == "direct",
    )
    print(show(courses))
    print("\n" + "  ".join(f"{key} {value}" for key, value in machine().items()))
    if chosen.json:
        chosen.json.write_bytes(msgspec.json.format(msgspec.json.encode({"machine": machine(), "courses": courses})))


if __name__ == "__main__":
    main()
