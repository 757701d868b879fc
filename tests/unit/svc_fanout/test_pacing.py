"""How bulk's share of the time follows what high has to wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc_fanout.pacing import FIRST_SHARE, LEAST_SHARE, LONGEST_REST_S, TOLERATED_S, Pacing

_BEST = 0.005
_LATE = _BEST + 2 * TOLERATED_S


def hear(pacing: Pacing, began: float, seconds: float, latency: float) -> float:
    """Lets high come through a hundred times a second; returns the time behind it."""
    count = round(seconds * 100)
    for number in range(count):
        pacing.heard(began + number / 100, latency)
    return began + (count - 1) / 100


def test_bulk_alone_never_rests() -> None:
    """Without high there is nobody to make way for."""
    pacing = Pacing()
    pacing.worked(1.0, 0.5)
    assert pacing.rest(1.0) == 0.0
    assert not pacing.is_beside(1.0)


def test_bulk_rests_in_proportion_to_its_work() -> None:
    """At a share of a quarter it rests three times as long as it worked, counted from the end of the work."""
    pacing = Pacing()
    pacing.heard(10.0, _BEST)
    assert pacing.share == FIRST_SHARE
    pacing.worked(10.0, 0.02)
    assert pacing.rest(10.0) == pytest.approx(0.06)
    assert pacing.rest(10.05) == pytest.approx(0.01)
    assert pacing.rest(10.07) == 0.0


def test_the_share_is_cut_when_high_is_late_and_grows_when_it_is_not() -> None:
    """Down by a part, up by a step; down is quicker."""
    pacing = Pacing()
    now = hear(pacing, 10.0, 1.0, _BEST)
    on_time = pacing.share
    assert on_time > FIRST_SHARE
    now = hear(pacing, now, 1.0, _LATE)
    late = pacing.share
    assert late < on_time / 2
    hear(pacing, now, 10.0, _BEST)
    assert pacing.share == 1.0


def test_the_share_has_a_floor() -> None:
    """However late high is, bulk goes on."""
    pacing = Pacing()
    now = hear(pacing, 0.0, 0.5, _BEST)
    now = hear(pacing, now, 20.0, 30.0)
    assert pacing.share == LEAST_SHARE
    pacing.worked(now, 0.01)
    assert pacing.rest(now) == pytest.approx(0.01 * (1 / LEAST_SHARE - 1))


def test_no_rest_is_longer_than_the_limit() -> None:
    """An answer that took minutes, because delivery was away, does not stop bulk for hours."""
    pacing = Pacing()
    pacing.heard(0.0, _BEST)
    pacing.worked(0.0, 300.0)
    assert pacing.rest(0.0) == LONGEST_REST_S


def test_silence_of_high_ends_the_rest() -> None:
    """A second without high, and bulk is alone again; when high is back it begins with its first share."""
    pacing = Pacing()
    now = hear(pacing, 0.0, 1.0, _BEST)
    assert FIRST_SHARE < pacing.share < 0.5
    pacing.worked(now, 10.0)
    assert pacing.rest(now + 0.9) > 0.0
    assert pacing.rest(now + 1.1) == 0.0
    pacing.heard(now + 1.1, _BEST)
    assert pacing.share == FIRST_SHARE


@pytest.mark.parametrize("offset", [-0.8, 0.0, 0.8])
def test_clocks_that_differ_change_nothing(offset: float) -> None:
    """High is late beside its own best, whatever the clock of its acceptance says."""
    pacing = Pacing()
    now = hear(pacing, 0.0, 1.0, _BEST + offset)
    assert pacing.share > FIRST_SHARE
    hear(pacing, now, 2.0, _LATE + offset)
    assert pacing.share < FIRST_SHARE


def test_an_old_best_is_forgotten() -> None:
    """When all of high takes longer than it used to, for long, that is how long it takes: bulk gets its share back."""
    pacing = Pacing()
    now = hear(pacing, 0.0, 5.0, _BEST)
    now = hear(pacing, now, 5.0, _LATE)
    assert pacing.share < FIRST_SHARE
    hear(pacing, now, 60.0, _LATE)
    assert pacing.share == 1.0


@given(
    st.lists(st.tuples(st.floats(0.0, 3.0), st.sampled_from(["heard", "worked"]), st.floats(-1.0, 100.0)), max_size=60)
)
def test_share_and_rest_stay_in_their_bounds(steps: list[tuple[float, str, float]]) -> None:
    """Whatever happens in whatever order."""
    pacing = Pacing()
    now = 0.0
    for pause, what, seconds in steps:
        now += pause
        if what == "heard":
            pacing.heard(now, seconds)
        else:
            pacing.worked(now, max(0.0, seconds))
        assert LEAST_SHARE <= pacing.share <= 1.0
        assert 0.0 <= pacing.rest(now) <= LONGEST_REST_S + 1e-9
