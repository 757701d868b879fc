"""What the demo publishes and to whom: changes of the source become events, folders become audiences.

Pure: text in, values out. Must not read git or files (`demo_source.py` does) and must not draw ids or times.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

TITLE_CHARACTERS = 200
# Stands for the files beside the folders.
TOP = "."
# What one record of the log begins with, and what parts the id from the subject: no subject has these characters.
RECORD, FIELD = "\x1e", "\x1f"

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


class Draft(msgspec.Struct, frozen=True):
    """An event before it is published."""

    category: str
    recipients: tuple[str, ...]
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


def draft(change: Change, subscriptions: Mapping[str, Sequence[str]]) -> Draft | None:
    """Returns the event of a change, addressed to all who are subscribed to a folder it touches; None for nobody."""
    touched = folders_of(change)
    recipients = tuple(name for name, folders in sorted(subscriptions.items()) if not set(touched).isdisjoint(folders))
    if not recipients:
        return None
    count = len(change.files)
    return Draft(
        category=category_of(change),
        recipients=recipients,
        title=change.subject,
        body=f"{change.reference}: {count} {'file' if count == 1 else 'files'} in {', '.join(touched)}",
        link=change.link,
    )


def category_of(change: Change) -> str:
    """Returns a category of the development registry: security goes by the high lane, pages alone by the bulk lane."""
    if any(word in path.lower() for path in change.files for word in _SECURITY_WORDS):
        return "security"
    if "deploy" in folders_of(change):
        return "deploy"
    if all(path.endswith(".md") for path in change.files):
        return "newsletter"
    return "general"


def drafts(changes: Sequence[Change], subscriptions: Mapping[str, Sequence[str]], count: int) -> Iterator[Draft]:
    """Yields so many events, oldest change first; a short history repeats.

    Raises:
        ValueError: no change concerns anybody.
    """
    found = [one for change in changes if (one := draft(change, subscriptions)) is not None]
    if not found:
        raise ValueError("no change touches a folder that somebody is subscribed to")
    yield from itertools.islice(itertools.cycle(found), count)


def _one_line(text: str) -> str:
    clean = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(clean.split())[:TITLE_CHARACTERS]
