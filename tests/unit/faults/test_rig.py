"""What the rig itself finds out, without a cluster: what is owed, what is held too long, what a run says nothing of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.faults.actors import Producer, Screen, Sent
from tests.faults.footprint import Holding, grown
from tests.faults.history import Device, Recorder
from tests.faults.index import Index
from tests.faults.invariants import INVARIANTS
from tests.faults.load import MUTED
from tests.faults.owed import Owed
from tests.faults.unseen import unseen
from tests.unit.faults.cases import ILLEGAL
from tests.unit.faults.histories import TENANT


class Scene:
    """A producer that published, and two screens of anna and one of bert."""

    def __init__(self, recorder: Recorder) -> None:
        nobody = cast(Any, None)
        self.producer = Producer(nobody, tenant=TENANT, name="demo", secret=b"", recorder=recorder)
        self.phone, self.tablet, self.other = (
            Screen(Device(TENANT, recipient, name), b"", recorder)
            for recipient, name in (("anna", "phone"), ("anna", "tablet"), ("bert", "phone"))
        )
        self.owed = Owed(self.producer, [self.phone, self.tablet, self.other], muted="bert")

    def accept(self, id_: str, *to: str, category: str = "general", priority: int = 2, ends: bool = False) -> None:
        """An event was accepted."""
        self.producer.accepted[id_] = to
        self.producer.sent[id_] = Sent(category, priority, 5.0 if ends else None)

    def rows(self, screen: Screen, count: int, *, priority: int = 2) -> None:
        """So many newer events came to a screen."""
        for number in range(count):
            id_ = f"newer-{priority}-{number:03}"
            self.accept(id_, priority=priority)
            screen.received.add(id_)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """Nothing was published."""
    with Recorder(tmp_path / "all.jsonl") as recorder:
        yield Scene(recorder)


def test_what_a_device_did_not_show_is_missing_there(scene: Scene) -> None:
    """Each device of each recipient; what has an end or is muted is owed to nobody."""
    scene.accept("first", "anna", "bert")
    scene.accept("ends", "anna", ends=True)
    scene.accept("unwanted", "bert", category=MUTED)
    assert list(scene.owed.missing()) == [("first", "anna", "phone, tablet"), ("first", "bert", "phone")]
    scene.phone.shown.add("first")
    scene.other.shown.add("first")
    assert list(scene.owed.missing()) == [("first", "anna", "tablet")]
    assert not scene.owed.is_shown("first")
    scene.tablet.shown.add("first")
    assert list(scene.owed.missing()) == []
    assert scene.owed.is_shown("first")


@pytest.mark.parametrize(
    ("newer", "priority", "may_be"), [(99, 2, False), (100, 2, True), (100, 1, True), (100, 3, False)]
)
def test_only_a_window_of_newer_rows_of_its_class_pushes_a_row_out(
    scene: Scene, newer: int, priority: int, may_be: bool
) -> None:
    """Of a recipient with two devices both must have had so many, or the row itself."""
    scene.accept("first", "anna")
    scene.tablet.received.add("first")
    scene.rows(scene.phone, newer, priority=priority)
    assert scene.owed.may_be_gone("anna", "first") is may_be
    assert (list(scene.owed.missing()) == [("first", "anna", "phone")]) is not may_be
    scene.phone.received.add("first")
    assert scene.owed.may_be_gone("anna", "first")


def test_what_grows_with_each_event_is_a_leak() -> None:
    """One descriptor more for each of some dozens of events, or memory; a process that was started anew is another."""
    before = {"ingest": Holding(1, 20, 60.0), "gw-0": Holding(2, 30, 60.0), "prefs": Holding(3, 20, 60.0)}
    after = {"ingest": Holding(1, 50, 60.0), "gw-0": Holding(2, 50, 97.0), "prefs": Holding(4, 99, 200.0)}
    assert list(grown(before, after, devices=8)) == [
        "ingest has 50 descriptors, 20 before",
        "gw-0 has 97 MiB, 60 before",
    ]
    assert list(grown(before, before, devices=0)) == []


def test_what_is_kept_of_a_store_is_no_leak() -> None:
    """A file that has grown by 40 MiB may be in memory by so much more, and no further."""
    before = {"delivery": Holding(1, 20, 80.0, 4.0), "prefs": Holding(2, 20, 60.0, 1.0)}
    after = {"delivery": Holding(1, 20, 150.0, 44.0), "prefs": Holding(2, 20, 130.0, 1.0)}
    assert list(grown(before, after, devices=0)) == ["prefs has 130 MiB, 60 before"]
    worse = {"delivery": Holding(1, 20, 157.0, 44.0)}
    assert list(grown(before, worse, devices=0)) == ["delivery has 157 MiB, 80 before"]


def test_a_run_without_events_says_nothing_about_anything() -> None:
    """Every invariant that is judged is named."""
    assert unseen(Index([])) == tuple(INVARIANTS)


# No history that breaks I8 has a mark in it, and counts alone say nothing about what marks do to them.
@pytest.mark.parametrize("invariant", [name for name in INVARIANTS if name != "I8"])
def test_some_history_that_breaks_an_invariant_says_something_about_it(invariant: str) -> None:
    """What it is broken by is something that it looks at."""
    stories = [story for broken, story in ILLEGAL.values() if broken == invariant]
    logs = [story().logs() for story in stories]
    told = [unseen(Index([line for log in one for line in log.lines])) for one in logs]
    assert any(invariant not in names for names in told)
