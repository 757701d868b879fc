"""Stores of delivery on the simulated replicas, for the contract suites: without trouble they are like any other.

Follow-ups are in a file beside them, as for the real ones. It must not assert anything about rows.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from svc_delivery.store import Limits, open_store
from tests.simulation.replicas import Ring, RingSession
from tests.support.cassandra import CassandraStore

_LATEST_S = 0.000_5


class ReplicasOpener:
    """Opens the same store again and again; it is gone with the process."""

    url = "replicas://"

    def __init__(self, data_dir: Path) -> None:
        choose = random.Random(str(data_dir))
        self.ring = Ring(choose=choose, latency=lambda: choose.uniform(0.0, _LATEST_S), now=time.monotonic)
        self._data_dir = data_dir

    @asynccontextmanager
    async def __call__(self, limits: Limits | None = None) -> AsyncIterator[CassandraStore]:
        """Opens it."""
        session = RingSession(self.ring)
        store = CassandraStore(session, open_store("sqlite:///follow_ups.db", self._data_dir), limits)
        await store.open()
        try:
            yield store
        finally:
            await store.close()


class ReplicasPoisoner:
    """Does it by a category that no replica takes."""

    category = "poison"

    def __init__(self, opener: ReplicasOpener) -> None:
        self._opener = opener

    async def refuse(self) -> None:
        """From now on."""
        self._opener.ring.refused_category = self.category

    async def accept(self) -> None:
        """Takes it back."""
        self._opener.ring.refused_category = None
