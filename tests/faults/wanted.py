"""Who is to get what was published, by what they had muted then. It must not judge."""

from __future__ import annotations

from collections.abc import Iterator

from tests.faults.index import Content, Index
from tests.faults.limits import Limits


def due(index: Index, content: Content, limits: Limits) -> Iterator[tuple[str, bool]]:
    """Yields each recipient of a content, and whether it surely is to get it (else both are right)."""
    first = content.first
    last = content.accept if content.accept is not None else index.end
    for recipient in first.recipients:
        off, open_ = muted(index, (first.tenant, recipient), first.category, first.at, last, limits)
        if not off:
            yield recipient, not open_


def muted(
    index: Index, owner: tuple[str, str], category: str, begin: float, end: float, limits: Limits
) -> tuple[bool, bool]:
    """Says whether a category is surely muted between two times, and whether that cannot be known."""
    off, open_ = False, False
    for wish in index.wishes.get(owner, ()):
        if wish.invoke.category != category:
            continue
        if wish.ok is not None and wish.ok + limits.wish < begin:
            off, open_ = wish.invoke.muted, False
        elif wish.invoke.at <= end + limits.wish:
            open_ = True
    return off and not open_, open_
