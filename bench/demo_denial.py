"""The demo's dead letter on Cassandra: the node is told to refuse one recipient's partition until a row is given up.

This is what an operator stops a runaway partition with: a row in `system_distributed.partition_denylist`, which nodes
with `partition_denylist_enabled` look at once a second. No process of Heliograph knows of it.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mesh.cassandra import parse

# How the delays between tries are set while the demo runs on engines: what waits on a lane cannot be hastened.
QUICK_TRIES: Final = {"HELIOGRAPH_DELIVERY_RETRY_DELAYS": "0.5,0.5,0.5"}
_TABLE: Final = "inbox"
_LIST: Final = "system_distributed.partition_denylist"
# Nodes look at the list once a second at most, and not before they are asked for a partition.
_NOTICE_LIMIT_S: Final = 10.0
_POLL_S: Final = 0.1


class DenyingStore:
    """The inbox's keyspace, which refuses the rows of one recipient while `refusing` is open."""

    def __init__(self, store_url: str, tenant: str, recipient: str) -> None:
        url = parse("store_url", store_url)
        self._hosts = [(host.name, host.port) for host in url.hosts]
        self._keyspace = url.name
        self._names = (tenant, recipient)

    @property
    def how(self) -> str:
        """What is done to it, in words."""
        return f"the partition of {self._names[1]} is on Cassandra's list of those that it refuses to write"

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Refuses such rows while the context is open."""
        self._list(f"insert into {_LIST} (ks_name, table_name, key) values (%s, %s, %s)", refused=True)
        try:
            yield
        finally:
            self._list(f"delete from {_LIST} where ks_name = %s and table_name = %s and key = %s", refused=False)

    def hasten(self, event_id: str) -> None:
        """Does nothing: see `QUICK_TRIES`."""

    def _list(self, statement: str, *, refused: bool) -> None:
        """Changes the list and waits until the node goes by it."""
        from cassandra import InvalidRequest
        from cassandra.cluster import Cluster

        # Removes a row that there never is: a write without effect.
        attempt = (
            f"delete from {self._keyspace}.{_TABLE} where tenant = %s and recipient = %s and high = false and id = 0x"
        )
        cluster = Cluster([host for host, _ in self._hosts], port=self._hosts[0][1])
        try:
            session = cluster.connect()
            session.execute(statement, (self._keyspace, _TABLE, partition_key(*self._names)))
            end = time.monotonic() + _NOTICE_LIMIT_S
            while time.monotonic() < end:
                try:
                    session.execute(attempt, self._names)
                    found = False
                except InvalidRequest:
                    found = True
                if found is refused:
                    return
                time.sleep(_POLL_S)
        finally:
            cluster.shutdown()
        raise RuntimeError("Cassandra does not go by its list of denied partitions: see partition_denylist_enabled")


def partition_key(*parts: str) -> bytes:
    """Returns the bytes of a partition key of several texts, as Cassandra has them."""
    encoded = [part.encode() for part in parts]
    return b"".join(struct.pack(">H", len(part)) + part + b"\0" for part in encoded)
