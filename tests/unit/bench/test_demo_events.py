"""What the demo makes of a source: changes, audiences and events."""

from __future__ import annotations

import pytest

from bench.demo_events import (
    EXCLUDED_EVERY,
    TOPICS,
    Audience,
    Change,
    Mute,
    category_of,
    choose_mute,
    draft,
    drafts,
    folders_of,
    of_files,
    read_log,
    subscribe,
    topic_of,
)

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
    audience = Audience({"a": ("mesh",), "b": ("docs", "tests"), "c": ("mesh", "tests"), "d": ("docs",)})
    found = draft(_change("mesh/a.py", "tests/b.py"), audience)
    assert found is not None
    assert found.recipients == found.due == ("a", "b", "c")
    assert (found.topics, found.excluded, found.by_topic, found.suppressed) == ((), (), (), ())
    assert (found.title, found.body, found.link) == (
        "Change something",
        "abc1234: 2 files in mesh, tests",
        "/commit/abc1234",
    )


def test_a_change_that_concerns_nobody_is_no_event() -> None:
    """Without a subscriber there is nothing to publish."""
    assert draft(_change("gen/a.py"), Audience({"a": ("mesh",)})) is None


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
    assert [one.title for one in drafts(changes, Audience({"a": ("mesh",)}), 3)] == ["one", "two", "one"]


def test_a_source_that_concerns_nobody_is_refused() -> None:
    """An endless search for an audience is a fault that is named."""
    with pytest.raises(ValueError, match="subscribed"):
        list(drafts([_change("gen/a")], Audience({"a": ("mesh",)}), 3))


def test_subscribers_of_topics_are_not_named() -> None:
    """An event names those who are not subscribed, and the topics of the folders for the others; all are due it."""
    audience = Audience({"a": ("mesh",), "b": ("mesh", "tests"), "c": ("docs",)}, frozenset({"b", "c"}))
    found = draft(_change("mesh/a.py", "tests/b.py"), audience)
    assert found is not None
    assert found.recipients == ("a",)
    assert found.topics == ("folder:mesh", "folder:tests")
    assert (found.due, found.by_topic) == (("a", "b"), ("b",))


def test_whom_the_first_topics_do_not_reach_is_named() -> None:
    """An event may name only so many topics: the subscribers of the folders beyond are named, and nobody twice."""
    folders = [f"f{number:02d}" for number in range(TOPICS + 1)]
    audience = Audience(
        {"a": (folders[0],), "b": (folders[-1],), "c": (folders[0], folders[-1])}, frozenset({"a", "b", "c"})
    )
    found = draft(_change(*(f"{folder}/x" for folder in folders)), audience)
    assert found is not None
    assert len(found.topics) == TOPICS
    assert (found.recipients, found.by_topic, found.due) == (("b",), ("a", "c"), ("a", "b", "c"))


def test_whoever_is_excluded_is_not_due() -> None:
    """The turn goes round; named or by topic makes no difference, and the last one left is never excluded."""
    audience = Audience({"a": ("mesh",), "b": ("mesh",)}, frozenset({"b"}))
    found = [draft(_change("mesh/a.py"), audience, turn) for turn in range(3)]
    assert [one.excluded for one in found if one] == [("a",), ("b",), ("a",)]
    assert [one.due for one in found if one] == [("b",), ("a",), ("b",)]
    assert [one.by_topic for one in found if one] == [("b",), (), ("b",)]
    alone = draft(_change("mesh/a.py"), Audience({"a": ("mesh",)}), 0)
    assert alone is not None
    assert (alone.excluded, alone.due) == ((), ("a",))


def test_every_fifth_event_leaves_somebody_out() -> None:
    """The others leave out nobody."""
    audience = Audience({"a": ("mesh",), "b": ("mesh",)})
    found = [bool(one.excluded) for one in drafts([_change("mesh/a")], audience, 2 * EXCLUDED_EVERY)]
    assert [number for number, excluded in enumerate(found) if excluded] == [4, 9]


def test_a_mute_keeps_its_category_back() -> None:
    """The event is addressed as before, and the listener is due other categories only; the excluded are no case."""
    audience = Audience({"a": ("mesh", "deploy"), "b": ("mesh",)}, frozenset({"a"}), Mute("a", "general"))
    muted, other = draft(_change("mesh/a.py"), audience), draft(_change("deploy/a.toml"), audience)
    assert muted is not None
    assert other is not None
    assert (muted.topics, muted.due, muted.suppressed, muted.by_topic) == (("folder:mesh",), ("b",), ("a",), ())
    assert (other.due, other.suppressed) == (("a",), ())
    excluded = draft(_change("mesh/a.py"), audience, 0)
    assert excluded is not None
    assert (excluded.excluded, excluded.suppressed) == (("a",), ())


def test_the_mute_is_one_that_shows_something() -> None:
    """A subscriber of topics who gets several categories mutes the most frequent one that is not mandatory."""
    audience = Audience({"a": ("mesh", "deploy"), "b": ("mesh", "deploy")}, frozenset({"b"}))
    changes = [_change("mesh/tokens.py"), _change("mesh/a.py"), _change("mesh/tokens.py"), _change("deploy/x.toml")]
    changes.append(_change("mesh/b.py"))
    assert choose_mute(changes, audience, 4 * len(changes)) == Mute("b", "general")


def test_without_a_choice_nothing_is_muted() -> None:
    """One category alone, or nobody by topic, gives no mute."""
    several = [_change("mesh/a.py"), _change("deploy/x.toml")]
    assert choose_mute(several, Audience({"a": ("mesh", "deploy")}), 10) is None
    assert choose_mute([_change("mesh/tokens.py")], Audience({"a": ("mesh",)}, frozenset({"a"})), 10) is None


@pytest.mark.parametrize(
    ("folder", "topic"), [("mesh", "folder:mesh"), (".", "folder:."), ("grün ~", "folder:gr=C3=BCn=20=7E")]
)
def test_topics_have_their_characters(folder: str, topic: str) -> None:
    """Whatever a folder is called, ingest takes its topic."""
    assert topic_of(folder) == topic
