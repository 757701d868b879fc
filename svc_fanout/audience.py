"""Whom an event is for: recipients and subscribers of topics, without the excluded, each of them once.

Pure: pages come in as they were read, parts of the audience go out in the order of recipient ids. Path step 4. It must
not know how pages are read, and forgets what it gave out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from mesh.errors import Internal

# The bit of those whom the event names; topic number n, in the event's order, has the bit above that of n - 1.
NAMED = 1


class Members(msgspec.Struct, frozen=True):
    """A part of an audience: nobody in it is in another part.

    Attributes:
        groups: recipients by the ways that lead to them, as a set of bits.
        excluded: those whom some way leads to and the event leaves out.
        last: the largest id in the order of parts; "" where there is one part only.
    """

    groups: Mapping[int, Sequence[str]]
    excluded: Sequence[str] = ()
    last: str = ""

    @property
    def count(self) -> int:
        """How many recipients it has, the excluded too."""
        return sum(map(len, self.groups.values())) + len(self.excluded)


def unsorted(topic_id: str) -> Internal:
    """Prefs broke its contract; somebody would be decided twice, or never."""
    return Internal(
        f"subscribers of topic {topic_id!r} came out of order", reason="INTERNAL", metadata={"topic_id": topic_id}
    )


def named(recipient_ids: Sequence[str], excluded: Collection[str]) -> Members:
    """Returns the audience of an event without topics, in the order of the event."""
    if not excluded:
        return Members({NAMED: recipient_ids})
    left_out = frozenset(excluded)
    return Members(
        {NAMED: [one for one in recipient_ids if one not in left_out]},
        [one for one in recipient_ids if one in left_out],
    )


def pieces(members: Members, most: int) -> Iterator[Members]:
    """Cuts a part of an audience, in its order, into parts with at most so many recipients of one group."""
    if members.count <= most:
        yield members
        return
    excluded = members.excluded
    for ways, recipient_ids in members.groups.items():
        for start in range(0, len(recipient_ids), most):
            yield Members({ways: recipient_ids[start : start + most]}, excluded, members.last)
            excluded = ()
    if excluded:
        yield Members({}, excluded, members.last)


def joined(parts: Sequence[Members]) -> Members:
    """Returns several parts as one."""
    if len(parts) == 1:
        return parts[0]
    groups: dict[int, list[str]] = {}
    excluded: list[str] = []
    for part in parts:
        for ways, recipient_ids in part.groups.items():
            groups.setdefault(ways, []).extend(recipient_ids)
        excluded.extend(part.excluded)
    return Members(groups, excluded, parts[-1].last if parts else "")


class _Source:
    """What was read of one way and not given out."""

    __slots__ = ("bit", "ended", "fed", "ids", "start", "topic_id")

    def __init__(self, bit: int, topic_id: str, after: str, ids: Sequence[str] = (), *, ended: bool = False) -> None:
        self.bit = bit
        self.topic_id = topic_id
        self.fed = after
        self.ids = ids
        self.start = 0
        self.ended = ended

    @property
    def is_empty(self) -> bool:
        return self.start == len(self.ids)


class Merge:
    """Joins the ways to an audience by recipient id, a page of each topic at a time."""

    def __init__(
        self, recipient_ids: Collection[str], topic_ids: Sequence[str], excluded: Collection[str], after: str = ""
    ) -> None:
        """Begins.

        Args:
            recipient_ids: those whom the event names.
            topic_ids: its topics, each once.
            excluded: those whom it leaves out.
            after: only recipients with a larger id.
        """
        names = sorted(one for one in set(recipient_ids) if one > after)
        self._sources = [_Source(NAMED, "", after, names, ended=True)]
        self._sources += [_Source(NAMED << place, id_, after) for place, id_ in enumerate(topic_ids, start=1)]
        self._topics = {source.topic_id: source for source in self._sources[1:]}
        self._excluded = frozenset(excluded)

    def wanted(self) -> list[str]:
        """Returns the topics whose next page is needed before anything can be given out."""
        return [topic_id for topic_id, one in self._topics.items() if one.is_empty and not one.ended]

    def after(self, topic_id: str) -> str:
        """Returns the last recipient of a topic that was read."""
        return self._topics[topic_id].fed

    def feed(self, topic_id: str, recipient_ids: Sequence[str], *, ended: bool) -> None:
        """Takes the next page of a wanted topic.

        Raises:
            Internal: it is not in order, or not behind the page before.
        """
        source = self._topics[topic_id]
        last = source.fed
        for recipient_id in recipient_ids:
            if recipient_id <= last:
                raise unsorted(topic_id)
            last = recipient_id
        source.ids, source.start, source.fed, source.ended = recipient_ids, 0, last, ended

    def take(self, most: int) -> Members | None:
        """Returns the next recipients, at most so many; None when all were given out. No topic may be wanted."""
        horizon = min((one.fed for one in self._sources if not one.ended), default=None)
        ways: dict[str, int] = {}
        for source in self._sources:
            end = min(source.start + most, len(source.ids))
            if horizon is not None:
                end = bisect_right(source.ids, horizon, source.start, end)
            part = source.ids[source.start : end]
            if not ways:
                ways = dict.fromkeys(part, source.bit)
                continue
            for recipient_id in part:
                ways[recipient_id] = ways.get(recipient_id, 0) | source.bit
        if not ways:
            return None
        taken = sorted(ways)[:most]
        for source in self._sources:
            source.start = bisect_right(source.ids, taken[-1], source.start)
        return self._sorted_out(taken, ways)

    def _sorted_out(self, taken: Sequence[str], ways: Mapping[str, int]) -> Members:
        groups: dict[int, list[str]] = {}
        excluded: list[str] = []
        for recipient_id in taken:
            if recipient_id in self._excluded:
                excluded.append(recipient_id)
                continue
            bits = ways[recipient_id]
            group = groups.get(bits)
            if group is None:
                group = groups[bits] = []
            group.append(recipient_id)
        return Members(groups, excluded, taken[-1])
