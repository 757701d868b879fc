"""The sessions of this node: who is here, what is due when, and how many bytes wait in transports.

Must not decide what happens to a session: `session.py` does. Steps 6 and 10 of one notification (`architecture.md` §3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import cast

from heliograph.presence.v1.presence_service_pb2 import SessionEntry
from svc_gateway.host import ClientConnection
from svc_gateway.session import Session


def session_of(connection: ClientConnection) -> Session:
    """Returns the session that lives behind a connection."""
    return cast(Session, connection.session)


class Sessions:
    """Sessions that said hello, by recipient; one per device.

    Attributes:
        count: how many there are.
        joined: how many have come so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self.joined = 0
        # Nearly every recipient has one session: it stands here itself, without a tuple around it.
        self._by_recipient: dict[str, ClientConnection | tuple[ClientConnection, ...]] = {}

    def of(self, recipient_key: str) -> tuple[ClientConnection, ...]:
        """Returns a recipient's sessions; empty when there is none."""
        found = self._by_recipient.get(recipient_key, ())
        return found if type(found) is tuple else (cast(ClientConnection, found),)

    def find(self, recipient_key: str, device_id: str) -> ClientConnection | None:
        """Returns the session of a device."""
        for connection in self.of(recipient_key):
            if session_of(connection).device_id == device_id:
                return connection
        return None

    def named(self, entries: Iterable[SessionEntry]) -> Iterator[ClientConnection]:
        """Goes through the sessions that presence names; a device that came back meanwhile has another number."""
        for entry in entries:
            connection = self.find(entry.recipient_key, entry.device_id)
            if connection is not None and session_of(connection).connect_number == entry.connect_number:
                yield connection

    def join(self, connection: ClientConnection) -> ClientConnection | None:
        """Adds a session; returns the one of the same device that it replaces."""
        session = session_of(connection)
        older = self.find(session.recipient_key, session.device_id)
        others = tuple(one for one in self.of(session.recipient_key) if one is not older)
        self._by_recipient[session.recipient_key] = (*others, connection) if others else connection
        self.count += older is None
        self.joined += 1
        return older

    def leave(self, connection: ClientConnection) -> bool:
        """Removes a session; False when it is not there (any more)."""
        key = session_of(connection).recipient_key
        known = self.of(key)
        if connection not in known:
            return False
        left = tuple(one for one in known if one is not connection)
        if left:
            self._by_recipient[key] = left if len(left) > 1 else left[0]
        else:
            del self._by_recipient[key]
        self.count -= 1
        return True

    def __iter__(self) -> Iterator[ClientConnection]:
        """Goes through a copy: sessions may come and go meanwhile."""
        for key in list(self._by_recipient):
            yield from self.of(key)


class Wheel:
    """One timer for all sessions: slots of `width` seconds, moved on by whoever owns it.

    A session is in one slot at a time. Moved to an earlier one it stays listed in the old one and is passed over there.
    """

    def __init__(self, now: float, *, width: float = 1.0) -> None:
        self._width = width
        self._now = int(now / width)
        # With each slot the one object of its number that all its sessions keep.
        self._slots: dict[int, tuple[int, list[ClientConnection]]] = {}

    def schedule(self, connection: ClientConnection) -> None:
        """Puts a session where its `due` says, unless it is in an earlier slot already."""
        session = session_of(connection)
        slot = max(int(session.due() / self._width) + 1, self._now + 1)
        if self._now < session.wheel_slot <= slot:
            return
        session.wheel_slot, listed = self._slots.setdefault(slot, (slot, []))
        listed.append(connection)

    def advance(self, now: float) -> list[ClientConnection]:
        """Moves on; returns the sessions of the slots that were passed. Each has to be scheduled again."""
        target = int(now / self._width)
        if target - self._now > len(self._slots):
            passed = sorted(slot for slot in self._slots if slot <= target)
        else:
            passed = [slot for slot in range(self._now + 1, target + 1) if slot in self._slots]
        self._now = max(self._now, target)
        due: list[ClientConnection] = []
        for slot in passed:
            for connection in self._slots.pop(slot)[1]:
                session = session_of(connection)
                if session.wheel_slot == slot:
                    session.wheel_slot = 0
                    due.append(connection)
        return due


class Backlog:
    """The bytes that wait in all transports. When they are too many, the fattest sessions are behind first.

    Those that were behind for it before, and still keep too much waiting, have to go: what a replay wrote in one go, or
    a transport took before it was full, may be beyond the limit.

    Only connections that were written to since the last count are looked at.
    """

    def __init__(
        self,
        *,
        limit: int,
        behind: Callable[[ClientConnection], None],
        writable: Callable[[ClientConnection], None],
    ) -> None:
        """Counts nothing yet.

        Args:
            limit: bytes.
            behind: told of a session that must not be written to.
            writable: told when such a session has drained.
        """
        self.waiting = 0
        self._limit = limit
        self._behind = behind
        self._writable = writable
        self._written: set[ClientConnection] = set()
        self._stopped: set[ClientConnection] = set()
        self._warned: set[ClientConnection] = set()
        self._fresh = 0

    def note(self, connection: ClientConnection, size: int) -> None:
        """Notes a write; counts anew when much was written since the last count."""
        self._written.add(connection)
        self._fresh += size
        if self._fresh > self._limit // 4:
            self.count()

    def count(self) -> None:
        """Counts, and stops or frees sessions accordingly."""
        self._fresh = 0
        sizes = {connection: connection.buffered for connection in self._written}
        self._written = {connection for connection, size in sizes.items() if size}
        self.waiting = sum(sizes.values())
        surplus = self.waiting - self._limit
        for connection in sorted(self._written, key=sizes.__getitem__, reverse=True) if surplus > 0 else ():
            if surplus <= 0:
                break
            surplus -= sizes[connection]
            if connection not in self._stopped:
                self._stopped.add(connection)
                self._behind(connection)
        for connection in [one for one in self._stopped if one not in self._written]:
            self._stopped.discard(connection)
            self._writable(connection)

    def overdue(self) -> list[ClientConnection]:
        """Counts, and returns who has to go: the fattest of those that were stopped when this was asked before."""
        self.count()
        found: list[ClientConnection] = []
        surplus = self.waiting - self._limit
        for connection in sorted(self._warned & self._stopped, key=_buffered, reverse=True) if surplus > 0 else ():
            if surplus <= 0:
                break
            surplus -= connection.buffered
            found.append(connection)
        self._warned = set(self._stopped)
        return found

    def forget(self, connection: ClientConnection) -> None:
        """The connection is gone."""
        for connections in (self._written, self._stopped, self._warned):
            connections.discard(connection)


def _buffered(connection: ClientConnection) -> int:
    return connection.buffered
