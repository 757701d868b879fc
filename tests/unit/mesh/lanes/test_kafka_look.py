"""When records were appended, as far as that is known from what passed through."""

from __future__ import annotations

from mesh.lanes.kafka_look import Times, Unfinished


def test_a_record_is_as_old_as_those_it_came_with() -> None:
    """Exact where time moved, and to a step where it did not."""
    times = Times()
    for first, last, time in ((10, 10, 100.0), (11, 12, 100.01), (13, 13, 105.0), (14, 20, 110.0)):
        times.add(first, last, time)
    assert [times.at(offset) for offset in (10, 12, 13, 14, 20)] == [100.0, 100.0, 105.0, 110.0, 110.0]


def test_what_did_not_pass_is_not_known() -> None:
    """Neither what came before the first sample nor what came behind the last."""
    times = Times()
    assert times.at(0) is None
    times.add(10, 11, 100.0)
    assert (times.at(9), times.at(10), times.at(12)) == (None, 100.0, None)


def test_what_others_appended_is_known_only_between_neighbours() -> None:
    """Records in a gap of a moment are as old as those before it; in a longer one they may be much younger."""
    times = Times()
    times.add(10, 11, 100.0)
    times.add(15, 16, 100.2)
    times.add(30, 31, 160.0)
    assert times.at(13) == 100.0
    assert times.at(16) == 100.2
    assert times.at(20) is None
    assert times.at(30) == 160.0


def test_what_comes_again_changes_nothing() -> None:
    """A record that was noted keeps its time."""
    times = Times()
    times.add(10, 19, 100.0)
    times.add(12, 12, 300.0)
    assert times.at(12) == 100.0


def test_samples_before_the_one_asked_for_are_forgotten() -> None:
    """The committed offset only grows, so memory does not."""
    times = Times()
    for offset in range(1000):
        times.add(offset, offset, float(offset))
    assert times.at(990) == 990.0
    assert len(times._samples) == 10


def test_what_is_unfinished_adds_up() -> None:
    """Over all partitions."""
    unfinished = Unfinished({0: (5, 9), 1: (7, 7)}, 1.5)
    assert (unfinished.count, unfinished.finished) == (4, 12)
