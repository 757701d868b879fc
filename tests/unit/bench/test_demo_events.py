"""What the demo makes of a source: changes, audiences and events."""

from __future__ import annotations

import pytest

from bench.demo_events import Change, category_of, draft, drafts, folders_of, of_files, read_log, subscribe

_LOG = (
    "\x1eaaa1111\x1fAdd ids\n\nmesh/ids.py\ntests/unit/mesh/test_ids.py\n"
    "\x1ebbb2222\x1fMerge a branch\n"
    "\x1eccc3333\x1fSay\thow to start\n\nREADME.md\n"
)


def _change(*files: str, subject: str = "Change something") -> Change:
    return Change(subject, "abc1234", "/commit/abc1234", files)


def test_a_log_becomes_changes_and_empty_commits_are_left_out() -> None:
    """Hash, subject and files are read; a merge without files concerns nobody."""
    assert read_log(_LOG) == [
        Change("Add ids", "aaa1111", "/commit/aaa1111", ("mesh/ids.py", "tests/unit/mesh/test_ids.py")),
        Change("Say how to start", "ccc3333", "/commit/ccc3333", ("README.md",)),
    ]


def test_an_empty_log_has_no_changes() -> None:
    """A repository without a commit gives nothing, so that the files can stand in."""
    assert read_log("") == []


def test_subjects_become_titles_that_ingest_takes() -> None:
    """Control characters are gone, the length is bounded, and an empty subject is replaced by the hash."""
    (long,) = read_log(f"\x1ea1\x1f{'x' * 300}\x07\n\nf\n")
    (empty,) = read_log("\x1ea2\x1f\n\nf\n")
    assert (long.subject, empty.subject) == ("x" * 200, "a2")


def test_files_stand_in_for_commits() -> None:
    """Each file of a source archive is a change of its own, in a stable order."""
    found = of_files({"mesh/ids.py": "d2", "README.md": "d1"})
    assert [(one.subject, one.link, one.files) for one in found] == [
        ("Add README.md", "/file/d1", ("README.md",)),
        ("Add mesh/ids.py", "/file/d2", ("mesh/ids.py",)),
    ]


def test_folders_are_those_at_the_top() -> None:
    """A file deep down belongs to its top folder, one at the top to the top itself; each folder counts once."""
    assert folders_of(_change("mesh/a.py", "mesh/b/c.py", "README.md")) == (".", "mesh")


def test_subscriptions_reach_every_folder_and_are_the_same_every_time() -> None:
    """With more listeners than folders each folder has several, and no chance is involved."""
    listeners = [f"listener-{index:02d}" for index in range(24)]
    folders = [f"folder{index}" for index in range(10)]
    found = subscribe(listeners, reversed(folders), 2)
    assert found == subscribe(listeners, folders, 2)
    assert all(len(names) == 2 for names in found.values())
    assert all(sum(folder in names for names in found.values()) >= 4 for folder in folders)


def test_few_folders_are_not_subscribed_twice() -> None:
    """A source with one folder gives everybody that one."""
    assert subscribe(["a", "b"], ["only"], 3) == {"a": ("only",), "b": ("only",)}


def test_an_event_goes_to_the_subscribers_of_the_touched_folders() -> None:
    """Whoever is subscribed to one of the folders is a recipient, once; nobody else is."""
    subscriptions = {"a": ("mesh",), "b": ("docs", "tests"), "c": ("mesh", "tests"), "d": ("docs",)}
    found = draft(_change("mesh/a.py", "tests/b.py"), subscriptions)
    assert found is not None
    assert found.recipients == ("a", "b", "c")
    assert (found.title, found.body, found.link) == (
        "Change something",
        "abc1234: 2 files in mesh, tests",
        "/commit/abc1234",
    )


def test_a_change_that_concerns_nobody_is_no_event() -> None:
    """Without a subscriber there is nothing to publish."""
    assert draft(_change("gen/a.py"), {"a": ("mesh",)}) is None


@pytest.mark.parametrize(
    ("files", "category"),
    [
        (("mesh/tokens.py", "docs/a.md"), "security"),
        (("deploy/categories.toml",), "deploy"),
        (("docs/a.md", "README.md"), "newsletter"),
        (("svc_prefs/core.py",), "general"),
    ],
)
def test_files_choose_the_category(files: tuple[str, ...], category: str) -> None:
    """All three lanes get something to do."""
    assert category_of(_change(*files)) == category


def test_a_short_history_repeats() -> None:
    """The oldest change comes first, and the first one comes again behind the last."""
    changes = [_change("mesh/a", subject="one"), _change("gen/a", subject="nobody's"), _change("mesh/b", subject="two")]
    assert [one.title for one in drafts(changes, {"a": ("mesh",)}, 3)] == ["one", "two", "one"]


def test_a_source_that_concerns_nobody_is_refused() -> None:
    """An endless search for an audience is a fault that is named."""
    with pytest.raises(ValueError, match="subscribed"):
        list(drafts([_change("gen/a")], {"a": ("mesh",)}, 3))
