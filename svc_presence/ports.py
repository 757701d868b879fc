"""What svc_presence needs from a store. Path step: where delivery's question ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec


class Session(msgspec.Struct, frozen=True, gc=False):
    """One session of a device, as its node reports it.

    Attributes:
        recipient_key: escaped "tenant/recipient".
        device_id: the app or browser installation; holds one session.
        connect_number: rises with each connect, time-based; of two sessions of a device the larger is the newer.
        node_id: the node that holds it.
    """

    recipient_key: str
    device_id: str
    connect_number: int
    node_id: str


class NodeLease(msgspec.Struct, frozen=True, gc=False):
    """One gateway node as it was at its last renewal.

    Attributes:
        node_id: name of the node.
        epoch: start of its present life, µs; a larger one is newer.
        draining: it takes no new sessions.
        session_count: sessions at the renewal.
        address: where its sidecar listens; may be empty.
        expires: end of the lease, in seconds of the caller's monotonic clock.
    """

    node_id: str
    epoch: int
    draining: bool
    session_count: int
    address: str
    expires: float


class Renewal(msgspec.Struct, frozen=True):
    """Answer to a renewal: None for the lease means refused, a newer or an ended epoch is known."""

    lease: NodeLease | None
    superseded: Sequence[Session]


class Report(msgspec.Struct, frozen=True):
    """What a node's report met.

    Attributes:
        accepted: False: the node has no live lease with this epoch; nothing was written.
        superseded: sessions of the reporting node that must be closed.
        restored: asserted sessions that did not count any more and do again.
    """

    accepted: bool
    superseded: Sequence[Session] = ()
    restored: Sequence[Session] = ()


class PresenceStore(Protocol):
    """Node leases and session entries. Soft state: it may be lost, the nodes report again.

    Every method is one atomic step, or one for each recipient where a store is spread; several processes may share a
    store. `now` is the caller's monotonic time in seconds; a shared store reckons it into a time of its own. Every
    method raises `mesh.errors.Unavailable` when the store cannot be used; then nothing is known about what was written.
    """

    async def open(self) -> None:
        """Opens the store; raises one line with where and what when it cannot be used."""
        ...

    async def close(self) -> None:
        """Closes the store; harmless when it is not open."""
        ...

    @property
    def incarnation(self) -> str:
        """Changes whenever the store lost what it knew."""
        ...

    async def renew(self, lease: NodeLease, now: float) -> Renewal:
        """Takes or extends a lease; `lease.expires` says until when.

        Refused: an epoch older than the known one, and the known one again after its lease ran out (the node must take
        a new epoch, because its entries stopped counting). A newer epoch ends the older one; its entries stop counting.
        Brings what was superseded on this node since, each repeated for one lease's time: an answer may be lost.
        """
        ...

    async def report(
        self,
        node_id: str,
        epoch: int,
        *,
        joined: Sequence[Session],
        left: Sequence[Session],
        asserted: Sequence[Session],
        now: float,
    ) -> Report:
        """Writes what changed on a node.

        Of two sessions of one device the larger connect number wins, as long as its node's lease lives; the loser is
        superseded: answered here when it is on the reporting node, else at its own node's next renewal. "left" removes
        only the very session that it names. An asserted session that is missing, or that belonged to an ended epoch,
        is put back and answered as restored.
        """
        ...

    async def look_up(self, recipient_keys: Sequence[str], now: float) -> Sequence[Sequence[Session]]:
        """Returns the sessions of each recipient that are on nodes with a live lease of the entry's epoch."""
        ...

    async def nodes(self, now: float) -> Sequence[NodeLease]:
        """Returns the nodes with a live lease, in node id order."""
        ...

    async def sweep(self, now: float) -> int:
        """Drops entries of nodes whose lease ended long ago; returns how many sessions were dropped.

        A store that forgets by itself returns 0.
        """
        ...
