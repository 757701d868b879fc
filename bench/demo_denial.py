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

from heliograph_cli.engines import Engines

# How the delays between tries are set while the demo runs on engines: what waits on a lane cannot be hastened.
QUICK_TRIES: Final = {"HELIOGRAPH_DELIVERY_RETRY_DELAYS": "0.5,0.5,0.5"}
_TABLE: Final = "inbox"
_LIST: Final = "system_distributed.partition_denylist"
# Nodes look at the list once a second, and an answer may be a second old.
_NOTICED_S: Final = 2.5


class DenyingStore:
    """The inbox's keyspace, which refuses the rows of one recipient while `refusing` is open."""

    def __init__(self, engines: Engines, keyspace: str, tenant: str, recipient: str) -> None:
        self._hosts = engines.cassandra.partition("://")[2].partition("/")[0].split(",")
        self._keyspace = keyspace
        self._recipient = recipient
        self._key = partition_key(tenant, recipient)

    @property
    def how(self) -> str:
        """What is done to it, in words."""
        return f"the partition of {self._recipient} is on Cassandra's list of those that it refuses to write"

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Refuses such rows while the context is open."""
        self._execute(f"insert into {_LIST} (ks_name, table_name, key) values (%s, %s, %s)")
        try:
            yield
        finally:
            self._execute(f"delete from {_LIST} where ks_name = %s and table_name = %s and key = %s")

    def hasten(self, event_id: str) -> None:
        """Does nothing: see `QUICK_TRIES`."""

    def _execute(self, statement: str) -> None:
        from cassandra.cluster import Cluster

        host, _, port = self._hosts[0].partition(":")
        cluster = Cluster([host], port=int(port))
        try:
            session = cluster.connect()
            session.execute(statement, (self._keyspace, _TABLE, self._key))
            end = time.monotonic() + _NOTICED_S
            while (left := end - time.monotonic()) > 0:
                # The node takes the list anew when somebody asks for the partition.
                time.sleep(min(left, 0.1))
        finally:
            cluster.shutdown()


def partition_key(*parts: str) -> bytes:
    """Returns the bytes of a partition key of several texts, as Cassandra has them."""
    encoded = [part.encode() for part in parts]
    return b"".join(struct.pack(">H", len(part)) + part + b"\0" for part in encoded)
