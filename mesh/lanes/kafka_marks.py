"""What readers note about lanes on Kafka: parked records, notes, lives, and which topic a position belongs to.

All of it is in one compacted topic of the prefix, so it is there for whichever process comes next. It is read whole,
seldom; what was written last under a key counts. Must not know what a note says.
"""

from __future__ import annotations

from collections.abc import Mapping

from mesh.clock import Clock
from mesh.kafka import Cluster
from mesh.kafka_admin import END, FIRST, Admin
from mesh.kafka_clients import Fetched, Replay
from mesh.lanes.kafka_feed import Feed
from mesh.lanes.kafka_topics import MARKS, topic_of


class Marks:
    """The marks of one lane.

    Args:
        cluster: where.
        admin: asks.
        lane: its name.
        clock: for the time of a mark.
    """

    def __init__(self, cluster: Cluster, admin: Admin, lane: str, clock: Clock) -> None:
        self._admin = admin
        self._clock = clock
        self._topic = topic_of(cluster, MARKS)
        self._start = f"{lane}/"
        self._replay = Replay(cluster, self._topic)
        self._feed = Feed(cluster, self._topic, what=f"lane {lane}: marks")

    async def load(self) -> dict[str, bytes]:
        """Returns everything noted of this lane, by key.

        Raises:
            KafkaUnavailable: it could not be read.
        """
        first = await self._admin.offsets(self._topic, {0: FIRST})
        end = await self._admin.offsets(self._topic, {0: END})
        start = self._start.encode()
        found: dict[str, bytes] = {}

        def take(record: Fetched) -> bool:
            if record.key is not None and record.key.startswith(start):
                key = record.key[len(start) :].decode()
                if record.value is None:
                    found.pop(key, None)
                else:
                    found[key] = record.value
            return True

        await self._replay.read({0: (first.get(0, 0), end.get(0, 0))}, take)
        return found

    async def put(self, marks: Mapping[str, bytes | None]) -> None:
        """Notes all or none of this, each instead of what was noted under its key; None forgets it.

        Raises:
            LaneUnavailable: it is not, or not known to be, noted; doing it again is harmless.
        """
        if marks:
            now_ms = int(self._clock.wall() * 1000)
            await self._feed.put(0, [((self._start + key).encode(), value, now_ms) for key, value in marks.items()])

    async def close(self) -> None:
        """Disconnects."""
        await self._feed.close()
        await self._replay.close()
