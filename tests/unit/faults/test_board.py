"""The scoreboard adds up what runs and the simulation say, and hides nothing that went wrong."""

from __future__ import annotations

import msgspec

from tests.faults.board import Simulated, scoreboard
from tests.faults.judging import FaultResult, RunResult
from tests.simulation.board import Board

_VALID = RunResult(
    test="test_a.py::test_b",
    state="valid",
    accepted=100,
    deliveries=200,
    received=260,
    extra=13,
    shown_twice=0,
    lost=0,
    gaps=0,
    counts=12,
    wrong_counts=0,
    sessions=9,
    settled=1.0,
    faults=(FaultResult("F-61", "gw-host-1", "pid 5 gone", 2.5), FaultResult("F-61", "gw-host-1", "", 4.0)),
    violated=(),
)


def _line(board: str, name: str) -> str:
    (found,) = [line.split("  ")[-1].strip() for line in board.splitlines() if line.strip().startswith(name)]
    return found


def test_what_runs_show_is_added_up() -> None:
    """Faults without evidence are no survived ones, and copies are told apart by whether there were faults."""
    calm = msgspec.structs.replace(_VALID, faults=(), extra=0)
    board = scoreboard([_VALID, calm], Simulated(), [])
    assert _line(board, "runs on processes") == "2, valid 2"
    assert _line(board, "faults survived") == "1 of 1"
    assert _line(board, "not exercised") == "1"
    assert _line(board, "copies on the wire, without faults") == "0 of 260 (0 per million)"
    assert _line(board, "copies on the wire, under faults").startswith("13 of 260 (50000 per million)")
    assert "F-61   gateway-1          2 times, median 4.0, most 4.0" in board


def test_what_no_run_looked_at_is_named() -> None:
    """An invariant that a run shows nothing about is not one that it held."""
    calm = msgspec.structs.replace(_VALID, unseen=("I6", "I15"))
    runs = [_VALID, calm, msgspec.structs.replace(_VALID, unseen=("I15",))]
    assert _line(scoreboard(runs, Simulated(), []), "runs with nothing") == "I15 2, I6 1"
    assert _line(scoreboard(runs[1:], Simulated(), []), "runs with nothing") == "I15 all, I6 1"
    assert _line(scoreboard(runs[:1], Simulated(), []), "runs with nothing") == "none"


def test_how_soon_crowds_come_back_is_shown() -> None:
    """In the words of the run that measured it, which the seconds of a fault do not replace."""
    crowd = FaultResult("F-78", "gw-host-0", "pid 5 gone, 2000 devices came back, 99 % in 4.2 s", 1.0)
    board = scoreboard([msgspec.structs.replace(_VALID, faults=(crowd,))], Simulated(), [])
    assert board.splitlines()[-2:] == ["  crowds that came back to nodes:", f"    {crowd.evidence}"]


def test_a_run_whose_faults_a_seed_chose_can_be_made_again() -> None:
    """The seed is named, with what it came to; a run without one is only added up."""
    many = msgspec.structs.replace(_VALID, deliveries=1_020_000, seed=7)
    board = scoreboard([_VALID, many], Simulated(), [])
    assert "  chosen by seed 7: 2 faults in 1,020,000 deliveries, 0 lost" in board.splitlines()
    assert board.count("chosen by seed") == 1


def test_a_run_that_is_not_valid_shows() -> None:
    """Its faults were not survived, and what it lost is counted."""
    lossy = msgspec.structs.replace(_VALID, state="invalid", lost=3, shown_twice=1, gaps=2, wrong_counts=4)
    board = scoreboard([lossy], Simulated(), ["rig"])
    assert _line(board, "faults survived") == "0 of 1"
    assert _line(board, "accepted deliveries lost").startswith("3 of 200")
    assert _line(board, "shown twice") == "1"
    assert _line(board, "gaps after a replay") == "2 of 9 sessions"
    assert _line(board, "unread numbers that agree") == "8 of 12"
    assert _line(board, "parts that failed") == "rig"


def test_boards_of_parts_add_up() -> None:
    """Numbers and counts are sums, the slowest of all stays, and every seed keeps its name and its digest."""
    board = Board(seeds=2, failed=[3], seconds=7.0, slowest=4.0, digests={3: "a", 4: "b"})
    board.hooks.update(["x", "y"])
    more = Board(seeds=1, failed=[5], seconds=2.0, slowest=1.0, digests={5: "c"})
    more.hooks.update(["y"])
    board.add(more)
    assert (board.seeds, board.failed, board.seconds, board.slowest) == (3, [3, 5], 9.0, 4.0)
    assert board.hooks == {"x": 1, "y": 2}
    assert board.digests == {3: "a", 4: "b", 5: "c"}


def test_what_the_simulation_prints_is_understood() -> None:
    """Its own board, as it prints it."""
    said = Board(seeds=60, failed=[7], accepted=900, deliveries=1800, extra=5, faults=120)
    said.hooks.update(["a", "b", "c"])
    said.crashed.update(["a"])
    heard = Simulated()
    heard.hear(f"{said}\nmutants noticed 16 of 17\n", calm=False)
    heard.hear(str(Board(seeds=12, deliveries=300)), calm=True)
    assert (heard.seeds, heard.invalid, heard.accepted, heard.faults) == (72, 1, 900, 120)
    assert (heard.deliveries, heard.extra, heard.calm_deliveries, heard.calm_extra) == (1800, 5, 300, 0)
    assert (heard.killed, heard.mutants) == (16, 17)
    assert (heard.hooks, heard.crashed) == (3, 1)
    assert heard.all_hooks > 3
