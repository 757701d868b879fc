"""Changes of topics on their way to prefs: one session's in their order, those of different sessions side by side.

What waits is bounded for a session by its core and for the node here; what a session that ended left is dropped, for it
was never confirmed. Must not decide what a client is told. Step 10 of one notification (`architecture.md` §3).
"""

from __future__ import annotations

import asyncio
from collections import deque

from mesh.errors import Failure
from svc_gateway.decisions import ChangeTopics
from svc_gateway.host import ClientConnection
from svc_gateway.ports import Topics
from svc_gateway.service import Gateway
from svc_gateway.sessions import session_of


class TopicQueue:
    """Implements `service.TopicChanges`.

    Attributes:
        count: changes that wait or are being made.
    """

    def __init__(self, limit: int) -> None:
        self.count = 0
        self._limit = limit
        # The first of each is being made if the connection is not in `_ready`.
        self._waiting: dict[ClientConnection, deque[ChangeTopics]] = {}
        self._ready: deque[ClientConnection] = deque()
        self._wake = asyncio.Event()

    def add(self, connection: ClientConnection, change: ChangeTopics) -> bool:
        """See `service.TopicChanges`."""
        if self.count >= self._limit:
            return False
        self.count += 1
        waiting = self._waiting.get(connection)
        if waiting is not None:
            waiting.append(change)
            return True
        self._waiting[connection] = deque([change])
        self._ready.append(connection)
        self._wake.set()
        return True

    async def take(self) -> tuple[ClientConnection, ChangeTopics]:
        """Waits for a change whose session has no other under way; end with `done`."""
        while not self._ready:
            self._wake.clear()
            await self._wake.wait()
        connection = self._ready.popleft()
        return connection, self._waiting[connection][0]

    def done(self, connection: ClientConnection) -> None:
        """What `take` returned is over, one way or the other."""
        waiting = self._waiting[connection]
        waiting.popleft()
        self.count -= 1
        if waiting and not session_of(connection).alive:
            self.count -= len(waiting)
            waiting.clear()
        if waiting:
            self._ready.append(connection)
            self._wake.set()
        else:
            del self._waiting[connection]


class TopicWorker:
    """Has prefs make the changes."""

    def __init__(self, *, gateway: Gateway, queue: TopicQueue, topics: Topics) -> None:
        self._gateway = gateway
        self._queue = queue
        self._topics = topics

    async def change_for_ever(self) -> None:
        """Makes one change after the other; so many of these loops run, so many are made at once."""
        while True:
            connection, change = await self._queue.take()
            try:
                await self.change(connection, change)
            finally:
                self._queue.done(connection)

    async def change(self, connection: ClientConnection, change: ChangeTopics) -> None:
        """Makes one change and tells the session what became of it."""
        session = session_of(connection)
        if not session.alive:
            # It was told nothing: its client says it again.
            return
        failure: Failure | None = None
        try:
            await self._topics.change(session.recipient_key, change.topic_ids, begin=change.begin)
        except Failure as error:
            failure = error
        self._gateway.topics_changed(connection, change.frame_number, failure)
