"""What the demo publishes and to whom: changes of the source become events, folders become audiences.

Pure: text in, values out. Must not read git or files (`demo_source.py` does) and must not draw ids or times.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from urllib.parse import quote

import msgspec

TITLE_CHARACTERS = 200
# Topics that one event may name.
TOPICS = 10
# Every so many events leave out one of those who would get them, as whoever made a change needs no word of it.
EXCLUDED_EVERY = 5
# Stands for the files beside the folders.
TOP = "."
# What one record of the log begins with, and what parts the id from the subject: no subject has these characters.
RECORD, FIELD = "\x1e", "\x1f"

# Of the development registry: who mutes it gets it all the same.
_MANDATORY = frozenset({"security"})
_SECURITY_WORDS = ("cert", "token", "access", "identity", "guard", "secret", "auth")


class Change(msgspec.Struct, frozen=True):
    """Something that happened to the source.

    Attributes:
        subject: one line.
        reference: names it in the body: a commit's short hash.
        link: an app path.
        files: what it touches, as paths from the top.
    """

    subject: str
    reference: str
    link: str
    files: tuple[str, ...]


class Mute(msgspec.Struct, frozen=True):
    """Who muted which category."""

    listener: str
    category: str


class Audience(msgspec.Struct, frozen=True):
    """Who follows what, and how.

    Attributes:
        folders: of each listener.
        by_topic: those who are subscribed to the topics of their folders; events name the others.
        mute: a wish that is respected; None: nobody has one.
    """

    folders: Mapping[str, Sequence[str]]
    by_topic: frozenset[str] = frozenset()
    mute: Mute | None = None


class Draft(msgspec.Struct, frozen=True):
    """An event before it is published.

    Attributes:
        category: of the registry.
        recipients: whom it names.
        topics: whose subscribers it is for as well.
        excluded: who gets it in no case.
        due: who must get it.
        by_topic: of them, those whom topics alone lead to.
        suppressed: who would get it, had they not muted it.
        title: one line.
        body: what was touched.
        link: an app path.
    """

    category: str
    recipients: tuple[str, ...]
    topics: tuple[str, ...]
    excluded: tuple[str, ...]
    due: tuple[str, ...]
    by_topic: tuple[str, ...]
    suppressed: tuple[str, ...]
    title: str
    body: str
    link: str


def read_log(text: str) -> list[Change]:
    """Reads `git log --name-only` in the format of `demo_source.LOG_FORMAT`; commits without files are left out."""
    changes = []
    for record in text.split(RECORD)[1:]:
        head, *rest = record.splitlines()
        reference, _, subject = head.partition(FIELD)
        files = tuple(line for line in rest if line)
        if files:
            changes.append(Change(_one_line(subject) or reference, reference, f"/commit/{reference}", files))
    return changes


def of_files(digests: Mapping[str, str]) -> list[Change]:
    """Returns a change for each file of a source without history, by its path.

    Args:
        digests: what names the content, by path from the top.
    """
    return [
        Change(_one_line(f"Add {path}"), digest, f"/file/{digest}", (path,)) for path, digest in sorted(digests.items())
    ]


def folders_of(change: Change) -> tuple[str, ...]:
    """Returns the top folders that a change touches, in order."""
    return tuple(sorted({path.partition("/")[0] if "/" in path else TOP for path in change.files}))


def subscribe(listeners: Sequence[str], folders: Iterable[str], each: int) -> dict[str, tuple[str, ...]]:
    """Returns the folders that each listener is subscribed to: neighbours in the alphabet, the same at every run.

    Args:
        listeners: who listens.
        folders: all there are.
        each: how many a listener gets; fewer where there are fewer.
    """
    names = sorted(set(folders))
    count = min(each, len(names))
    return {
        listener: tuple(sorted(names[(index + step) % len(names)] for step in range(count)))
        for index, listener in enumerate(listeners)
    }


def topic_of(folder: str) -> str:
    """Returns the topic of a folder, in the characters that topics have."""
    return "folder:" + quote(folder, safe="").replace("%", "=").replace("~", "=7E")


def draft(change: Change, audience: Audience, turn: int | None = None) -> Draft | None:
    """Returns the event of a change, for all who follow a folder it touches; None for nobody.

    Args:
        change: what happened.
        audience: who follows what.
        turn: whose turn it is to be left out; None: nobody is.
    """
    touched = folders_of(change)
    concerned = [name for name, folders in sorted(audience.folders.items()) if not set(touched).isdisjoint(folders)]
    topical = touched[:TOPICS]
    by_topic = {
        name for name in concerned if name in audience.by_topic and not set(topical).isdisjoint(audience.folders[name])
    }
    excluded = () if turn is None or len(concerned) < 2 else (concerned[turn % len(concerned)],)
    reached = [name for name in concerned if name not in excluded]
    if not reached:
        return None
    category, count = category_of(change), len(change.files)
    mute = audience.mute
    suppressed = (mute.listener,) if mute and mute.category == category and mute.listener in reached else ()
    due = tuple(name for name in reached if name not in suppressed)
    return Draft(
        category=category,
        recipients=tuple(name for name in concerned if name not in by_topic),
        topics=tuple(topic_of(folder) for folder in topical) if by_topic else (),
        excluded=excluded,
        due=due,
        by_topic=tuple(name for name in due if name in by_topic),
        suppressed=suppressed,
        title=change.subject,
        body=f"{change.reference}: {count} {'file' if count == 1 else 'files'} in {', '.join(touched)}",
        link=change.link,
    )


def choose_mute(changes: Sequence[Change], audience: Audience, count: int) -> Mute | None:
    """Returns the mute that keeps most of so many events back, of a listener by topic who gets others still.

    A category that is mandatory cannot be muted. None: no listener gets events of two categories.
    """
    found: Counter[tuple[str, str]] = Counter()
    gets: dict[str, set[str]] = {}
    for one in drafts(changes, msgspec.structs.replace(audience, mute=None), count):
        for name in one.by_topic:
            found[name, one.category] += 1
            gets.setdefault(name, set()).add(one.category)
    for (name, category), _ in sorted(found.items(), key=lambda item: (-item[1], item[0])):
        if category not in _MANDATORY and len(gets[name]) > 1:
            return Mute(name, category)
    return None


def category_of(change: Change) -> str:
    """Returns a category of the development registry: security goes by the high lane, pages alone by the bulk lane."""
    if any(word in path.lower() for path in change.files for word in _SECURITY_WORDS):
        return "security"
    if "deploy" in folders_of(change):
        return "deploy"
    if all(path.endswith(".md") for path in change.files):
        return "newsletter"
    return "general"


def drafts(changes: Sequence[Change], audience: Audience, count: int) -> Iterator[Draft]:
    """Yields so many events, oldest change first; a short history repeats, and every fifth leaves somebody out.

    Raises:
        ValueError: no change concerns anybody.
    """
    found = [change for change in changes if draft(change, audience) is not None]
    if not found:
        raise ValueError("no change touches a folder that somebody is subscribed to")
    for number, change in enumerate(itertools.islice(itertools.cycle(found), count)):
        turn = number // EXCLUDED_EVERY if number % EXCLUDED_EVERY == EXCLUDED_EVERY - 1 else None
        one = draft(change, audience, turn)
        if one is not None:
            yield one


def _one_line(text: str) -> str:
    clean = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(clean.split())[:TITLE_CHARACTERS]
