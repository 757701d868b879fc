"""What waits for a loop of `worker.py`: sessions to tell presence about, replays to read, heads to compare.

Each session is in a queue at most once, so the number of sessions bounds all of them. Must not call peers. Steps 6 and
10 of one notification (`architecture.md` §3).
"""

from __future__ import annotations

import asyncio
from collections import deque

from heliograph.presence.v1.presence_service_pb2 import ReportSessionsRequest, SessionEntry
from svc_gateway.host import ClientConnection
from svc_gateway.sessions import session_of

LARGEST_REPORT = 1_000


class Report:
    """What one call tells presence."""

    def __init__(
        self, joined: list[ClientConnection], asserted: list[ClientConnection], left: list[SessionEntry]
    ) -> None:
        self.joined = joined
        self.asserted = asserted
        self.left = left

    def request(self, node_id: str, epoch: int) -> ReportSessionsRequest:
        """Returns the call."""
        return ReportSessionsRequest(
            node_id=node_id,
            epoch=epoch,
            joined=[entry_of(connection, node_id) for connection in self.joined],
            left=self.left,
            asserted=[entry_of(connection, node_id) for connection in self.asserted],
        )


def entry_of(connection: ClientConnection, node_id: str) -> SessionEntry:
    """Returns a session as presence knows it."""
    session = session_of(connection)
    return SessionEntry(
        recipient_key=session.recipient_key,
        device_id=session.device_id,
        connect_number=session.connect_number,
        node_id=node_id,
    )


class PresenceQueue:
    """Changes for presence; sessions that come and go before it was told are never mentioned."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._joined: dict[ClientConnection, None] = {}
        self._asserted: dict[ClientConnection, None] = {}
        self._left: deque[SessionEntry] = deque()
        self.wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._joined) + len(self._asserted) + len(self._left)

    def join(self, connection: ClientConnection) -> None:
        """A session is new."""
        self._joined[connection] = None
        self.wake.set()

    def assert_again(self, connection: ClientConnection) -> None:
        """A session lives on."""
        if connection not in self._joined:
            self._asserted[connection] = None
            self.wake.set()

    def leave(self, connection: ClientConnection) -> None:
        """A session has ended."""
        self._asserted.pop(connection, None)
        if connection in self._joined:
            del self._joined[connection]
            return
        self._left.append(entry_of(connection, self._node_id))
        self.wake.set()

    def take(self) -> Report:
        """Returns what to tell next: those that left first, so that a device's newer session is not hidden."""
        left = [self._left.popleft() for _ in range(min(len(self._left), LARGEST_REPORT))]
        joined = _take(self._joined, LARGEST_REPORT - len(left))
        asserted = _take(self._asserted, LARGEST_REPORT - len(left) - len(joined))
        return Report(joined, asserted, left)

    def give_back(self, report: Report) -> None:
        """The call failed; sessions that ended meanwhile stay out."""
        self._joined.update(dict.fromkeys(one for one in report.joined if session_of(one).alive))
        self._asserted.update(dict.fromkeys(one for one in report.asserted if session_of(one).alive))
        self._left.extendleft(reversed(report.left))

    def forget_left(self) -> None:
        """Presence has dropped this node's entries: there is nothing to take back."""
        self._left.clear()


class SessionQueue:
    """Sessions that wait for their turn; those of the first kind are served before the others."""

    def __init__(self) -> None:
        self._first: dict[ClientConnection, None] = {}
        self._later: dict[ClientConnection, None] = {}
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._first) + len(self._later)

    def add(self, connection: ClientConnection, *, first: bool = False) -> None:
        """Adds a session, once."""
        (self._first if first else self._later)[connection] = None
        self._wake.set()

    def discard(self, connection: ClientConnection) -> None:
        """Takes a session out that has ended."""
        self._first.pop(connection, None)
        self._later.pop(connection, None)

    async def take(self, count: int) -> list[ClientConnection]:
        """Waits until there is something and returns up to so many."""
        while not self._first and not self._later:
            self._wake.clear()
            await self._wake.wait()
        taken = _take(self._first, count)
        return taken + _take(self._later, count - len(taken))


def _take(waiting: dict[ClientConnection, None], count: int) -> list[ClientConnection]:
    taken: list[ClientConnection] = []
    for connection in waiting:
        if len(taken) >= count:
            break
        taken.append(connection)
    for connection in taken:
        del waiting[connection]
    return taken
