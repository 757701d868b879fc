"""Every target of performance in one table: floor, goal, and what this machine gives now: `make bench`.

Runs the other benchmarks one after the other with short settings; each of them alone, with longer ones, tells more. A
busy neighbour makes every figure worse and none better. What a mesh could change is measured through it, too, against
the same floors.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from bench import e2e, overload, push, push_frozen, push_topic, scale, sessions
from bench.e2e import Load
from bench.installation import Installation
from bench.measures import Spread, machine, table

_SLOWEST_ACK_MS = 200.0
_MESH_SHARE = 0.8
_FLAT = 1.2
_E2E_SECONDS = 6.0
_E2E_SESSIONS = 1_000
_TRIES = 2
# Connected subscribers of one topic, and the seconds they may take; the edge is one process, and has files for fewer.
_CONNECTED, _TO_CONNECTED = 20_000, 2.0
_EDGE_SESSIONS = 16_000
_INFINITE = float("inf")


class Row(msgspec.Struct, frozen=True):
    """One target.

    Attributes:
        what: is measured.
        unit: of the three numbers.
        floor: the least that is good enough.
        goal: what the product is for.
        measured: here and now.
        more: larger is better.
        note: how it was measured.
    """

    what: str
    unit: str
    floor: float
    goal: float
    measured: float
    more: bool
    note: str

    @property
    def verdict(self) -> str:
        """Which of the two is reached."""
        sign = 1 if self.more else -1
        if sign * self.measured >= sign * self.goal:
            return "goal"
        return "floor" if sign * self.measured >= sign * self.floor else "MISSED"


# ---------------------------------------------------------------- publish to ack


def _loads() -> Iterator[tuple[bool, Load]]:
    """Yields which loads are run, and whether in direct mode."""
    for direct, share in ((True, 1.0), (False, _MESH_SHARE)):
        yield direct, Load("single", 100.0)
        yield direct, Load("ten", 4_000.0 * share, audience=10, batch=10)
        yield direct, Load("one", 2_500.0 * share, batch=100)


def end_to_end() -> list[Row]:
    """Rates, latency and CPU, direct and through the mesh."""
    found: dict[tuple[bool, str], e2e.Figures] = {}
    for direct, load in _loads():
        # A neighbour's burst on the disk or the cores spoils a p99: what misses once has a second try.
        for _ in range(_TRIES):
            with Installation(direct=direct) as installation:
                e2e.measure(installation, Load("warm-up", 200.0, batch=10), seconds=2.0, sessions=100)
                one = e2e.measure(installation, load, seconds=_E2E_SECONDS, sessions=_E2E_SESSIONS)
            found[direct, load.name] = one
            if _holds(one):
                break
    rows = [
        _rate("events with ten recipients, direct", 4_000, 10_000, found[True, "ten"]),
        _rate("one recipient an event, direct", 2_500, 8_000, found[True, "one"]),
        _rate("events with ten recipients, mesh", 3_200, 9_000, found[False, "ten"]),
        _rate("one recipient an event, mesh", 2_000, 7_200, found[False, "one"]),
    ]
    for direct, floor, goal in ((True, 20.0, 6.0), (False, 30.0, 9.0)):
        one = found[direct, "single"]
        name = f"p50 of single publishes, {_shape(direct)}"
        rows.append(Row(name, "ms", floor, goal, one.ack.p50, False, f"to the ack, 100/s; fsync {one.fsync.p50} ms"))
    for name, floor, goal in (("ten", 300.0, 120.0), ("one", 400.0, 200.0)):
        one = found[True, name]
        text = f"CPU of a notification, {name} recipient{'s' if name == 'ten' else ''}"
        rows.append(Row(text, "µs", floor, goal, round(one.sum_micros), False, "all our processes, direct"))
    return rows


def _rate(what: str, floor: float, goal: float, figures: e2e.Figures) -> Row:
    """A rate counts when everything arrived, and was acked in time."""
    missing = figures.due - figures.received
    note = f"offered the floor: p99 to the ack {figures.ack.p99:.0f} ms, {missing} missing"
    return Row(what, "/s", floor, goal, round(figures.achieved_rate) if _holds(figures) else 0.0, True, note)


def _holds(figures: e2e.Figures) -> bool:
    return figures.ack.p99 < _SLOWEST_ACK_MS and figures.received >= figures.due


# ---------------------------------------------------------------- sessions, pushes, growth


def of_sessions() -> list[Row]:
    """Memory, idle CPU, number, and a killed node; direct, and as many as one edge holds through the mesh."""
    plan = sessions.Plan(nodes=2, small=2_500, large=10_000, heartbeat=20.0, idle=20.0)
    at_edge = msgspec.structs.replace(plan, small=1_000, large=_EDGE_SESSIONS // 2, direct=False)
    rows = _of_sessions(plan)
    rows.insert(2, Row("sessions on one machine", "", 20_000, 1_000_000, 2 * plan.large, True, "two nodes, direct"))
    return rows + _of_sessions(at_edge)


def _of_sessions(plan: sessions.Plan) -> list[Row]:
    cost, storm = sessions.measure_gateway(plan, storm=True)
    assert storm is not None
    note = f"{storm.lost:,} lost, all back after {storm.last} s, {storm.lost_again} lost again, {storm.missed} missed"
    back = storm.p99 if not storm.missed else _INFINITE
    own = "the gateway's own, a slope"
    if not plan.direct:
        own += f"; Envoys {cost.envoy_bytes:,.0f} more"
    shape = _shape(plan.direct)
    return [
        Row(f"memory of an idle session, {shape}", "bytes", 4_096, 2_048, cost.bytes_each, False, own),
        Row(f"idle CPU of a session and second, {shape}", "µs", 5.0, 1.0, cost.idle_micros, False, "the gateway's own"),
        Row(f"gateway node killed: 99 % back, {shape}", "s", 60.0, 10.0, back, False, note),
    ]


def _shape(direct: bool) -> str:
    return "direct" if direct else "mesh"


def of_pushes() -> list[Row]:
    """Pushes per core, one event to many, frozen readers."""
    single, to_all, acked = push.measure_pushes(2_000, 15)
    many = push.measure_audience(_CONNECTED, 2)
    note = f"{single.micros} µs, to all {to_all.micros}, acked {acked.micros}, a bare loop {single.bare_micros}"
    seconds = many.seconds if many.frames == _CONNECTED else _INFINITE
    reached = f"{many.frames:,} of {_CONNECTED:,} reached; no publish, no row"
    return [
        Row("pushes of a core and second", "", 40_000, 100_000, round(single.a_second), True, note),
        to_topic(push_topic.measure(_CONNECTED, 2)),
        Row("the gateways' part of it", "s", _TO_CONNECTED, _TO_CONNECTED / 5, seconds, False, reached),
        to_topic(push_topic.measure(_EDGE_SESSIONS, 2, direct=False)),
        *(beside_frozen(push_frozen.measure(1_000, 0.05, 1_000.0, 4.0, 3, direct=direct)) for direct in (True, False)),
    ]


def beside_frozen(frozen: push_frozen.Frozen) -> Row:
    """Returns the row of readers that do not read."""
    what = f"p99 beside 5 % frozen readers, {_shape(frozen.direct)}"
    note = f"{frozen.healthy.p99} → {frozen.beside.p99} ms; {frozen.behind} times a socket was full, of {frozen.stuck}"
    return Row(what, "×", 2.0, 1.1, round(frozen.ratio, 2), False, note)


def to_topic(topic: push_topic.Topic) -> Row:
    """Returns the row of one event to a topic."""
    what = f"one event to a topic of {topic.subscribers:,} connected, {_shape(topic.direct)}"
    each = ", ".join(f"{one.last_s:.2f}" for one in topic.events)
    note = f"publish to last receipt, slowest of {each} s; 100,000: 10 and 2 s"
    return Row(what, "s", _TO_CONNECTED, _TO_CONNECTED / 5, round(topic.slowest_s, 2), False, note)


def of_priorities() -> list[Row]:
    """Whether bulk delays high."""
    with Installation(direct=True) as installation:
        e2e.measure(installation, Load("warm-up", 200.0, batch=10), seconds=2.0, sessions=100)
        found = overload.bulk_against_high(
            installation, sessions=500, recipients=100_000, rounds=5, rate=100.0, seconds=20.0
        )
    return [_beside(one, found.alone) for one in found.beside]


def _beside(one: overload.Beside, alone: Spread) -> Row:
    note = f"p50 {one.high.p50} ms; alone {alone.p50} and {alone.p99} ms; bulk {one.pace:,.0f} recipients/s"
    note += f", {one.refused} events refused"
    return Row(f"p99 of high beside bulk, {one.name}", "ms", _SLOWEST_ACK_MS, 50.0, one.high.p99, False, note)


def of_growth() -> list[Row]:
    """Whether costs stay flat."""
    # A minute and a half, most of it waits: once, and not again through the mesh.
    large = scale.measure(["large-topic"], rate=0.0, seconds=0.0, rounds=1)
    usual = [name for name in scale.GROWTH if name != "large-topic"]
    direct, mesh = (
        scale.measure(usual, rate=2_000.0, seconds=3.0, rounds=2, direct=direct) for direct in (True, False)
    )
    return [*growth(direct + large, direct=True), *growth(mesh, direct=False)]


def growth(courses: Sequence[scale.Course], *, direct: bool) -> list[Row]:
    """Returns a row for each size but the first, beside which it is judged; what did not arrive cost nothing."""
    rows = []
    for course in courses:
        note = " → ".join(f"{point.micros:.0f}" for point in course.points) + " µs"
        note += f", {course.missing} missing" if course.missing else ""
        for point, ratio in zip(course.points[1:], course.ratios, strict=True):
            what = f"cost as {course.what} grow ×{point.factor}, {_shape(direct)}"
            measured = _INFINITE if course.missing else round(ratio, 2)
            rows.append(Row(what, "×", _FLAT, 1.0, measured, False, note))
    return rows


PARTS: dict[str, Callable[[], list[Row]]] = {
    "e2e": end_to_end,
    "sessions": of_sessions,
    "push": of_pushes,
    "bulk": of_priorities,
    "scale": of_growth,
}


# ---------------------------------------------------------------- the command


def show(rows: Sequence[Row]) -> str:
    """Returns the table."""
    columns = ("target", "floor", "goal", "measured", "reached", "how")
    return table(
        columns,
        [
            (
                row.what,
                *(f"{number:,g} {row.unit}".rstrip() for number in (row.floor, row.goal, row.measured)),
                row.verdict,
                row.note,
            )
            for row in rows
        ],
    )


def main() -> None:
    """Measures every target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=PARTS, help="default: all")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    chosen = parser.parse_args()
    rows: list[Row] = []
    for name in chosen.part or PARTS:
        began = time.monotonic()
        print(f"{name} …", end=" ", flush=True)
        rows += PARTS[name]()
        print(f"{time.monotonic() - began:.0f} s", flush=True)
    print("\n" + show(rows))
    print("\n" + "  ".join(f"{key} {value}" for key, value in machine().items()))
    if chosen.json:
        found = [{"verdict": row.verdict, **msgspec.structs.asdict(row)} for row in rows]
        chosen.json.write_bytes(msgspec.json.format(msgspec.json.encode({"machine": machine(), "rows": found})))


if __name__ == "__main__":
    main()
