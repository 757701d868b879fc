"""Which invariants a run had nothing to look at for: it broke none of them, and shows nothing about them either."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from tests.faults.index import Content, Index
from tests.faults.limits import Limits


def unseen(index: Index, limits: Limits | None = None) -> tuple[str, ...]:
    """Returns the invariants that a run says nothing about, in their order."""
    limits = limits or Limits()
    return tuple(name for name, shows in _SHOWS.items() if not shows(index, limits))


def _accepted(index: Index) -> Iterator[Content]:
    return (content for content in index.contents.values() if content.outcome == "ok")


def _something_came(index: Index, _: Limits) -> bool:
    return any(True for _one in index.received)


def _somebody_came_back(index: Index, _: Limits) -> bool:
    return any(session.replayed for sessions in index.sessions.values() for session in sessions[1:])


def _marked_and_counted(index: Index, _: Limits) -> bool:
    return bool(index.unread and index.lists and index.marks)


def _acked(index: Index, _: Limits) -> bool:
    return any(session.confirmed for sessions in index.sessions.values() for session in sessions)


def _published_to_who_is_muted(index: Index, limits: Limits) -> bool:
    return any(
        wish.ok is not None and wish.ok + limits.wish < content.first.at and wish.invoke.category == category
        for content in _accepted(index)
        for recipient, category in ((one, content.first.category) for one in content.first.recipients)
        for wish in index.wishes.get((content.first.tenant, recipient), ())
    )


def _had_an_end(index: Index, _: Limits) -> bool:
    return any(content.first.expire is not None for content in _accepted(index))


def _asked_twice(index: Index, _: Limits) -> bool:
    """A request was repeated, or another content came under its id."""
    seen: set[str] = set()
    for content in index.contents.values():
        if len(content.attempts) > 1 or content.first.request_id in seen:
            return True
        seen.add(content.first.request_id)
    return False


_SHOWS: Final[Mapping[str, Callable[[Index, Limits], bool]]] = {
    "I1": lambda index, _: any(True for _one in _accepted(index)),
    "I2": _something_came,
    "I3": _something_came,
    "I4": _something_came,
    "I5": lambda index, _: bool(index.lists and index.rows),
    "I6": _somebody_came_back,
    "I7": _something_came,
    "I8": _marked_and_counted,
    "I9": _acked,
    "I10": _published_to_who_is_muted,
    "I11": _had_an_end,
    "I12": _asked_twice,
    "I13": lambda index, _: bool(index.positions),
    "I14": lambda index, _: bool(index.settled),
    "I15": lambda index, _: bool(index.letters or index.poisoned),
    "I17": lambda index, _: any(one.by_sockets for one in index.registries),
}
