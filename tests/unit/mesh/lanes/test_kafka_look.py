"""When records were appended, as far as that is known from what passed through."""

from __future__ import annotations

from mesh.lanes.kafka_look import Times, Unfinished


def test_a_record_is_about_as_old_as_the_sample_before_it() -> None:
    """Exact where time moved, and never younger than it is by more than a step."""
    times = Times()
    for offset, time in ((10, 100.0), (11, 100.01), (12, 100.02), (13, 105.0), (14, 110.0)):
        times.add(offset, time)
    assert [times.at(offset) for offset in (10, 12, 13, 14)] == [100.0, 100.0, 105.0, 110.0]


def test_what_did_not_pass_is_not_known() -> None:
    """Neither what came before the first sample nor what came behind the last."""
    times = Times()
    assert times.at(0) is None
    times.add(10, 100.0)
    assert (times.at(9), times.at(10), times.at(11)) == (None, 100.0, None)


def test_samples_before_the_one_asked_for_are_forgotten() -> None:
    """The committed offset only grows, so memory does not."""
    times = Times()
    for offset in range(1000):
        times.add(offset, float(offset))
    assert times.at(990) == 990.0
    assert len(times._samples) == 10


def test_what_is_unfinished_adds_up() -> None:
    """Over all partitions."""
    unfinished = Unfinished({0: (5, 9), 1: (7, 7)}, 1.5)
    assert (unfinished.count, unfinished.finished) == (4, 12)
