"""The node's lease as the node sees it: epochs, incarnations, and when all sessions have to be asserted. Pure.

Must not call presence: `worker.py` does. Steps 6 and 10 of one notification (`architecture.md` §3).
"""

from __future__ import annotations

from heliograph.presence.v1.presence_service_pb2 import NODE_STATE_DRAINING, NODE_STATE_SERVING, Node

_MICROS = 1_000_000


class NodeLease:
    """One node's lease.

    Attributes:
        node_id: the process.
        epoch: its start, or the start of its newest lease, in µs.
        draining: the node tells its sessions to go away.
        left: the node takes no more deliveries.
        alive: presence has confirmed this epoch, and not too long ago.
    """

    def __init__(self, *, node_id: str, address: str, lifetime: float, wall: float) -> None:
        self.node_id = node_id
        self.epoch = int(wall * _MICROS)
        self.draining = False
        self.left = False
        self.alive = False
        self._address = address
        self._lifetime = lifetime
        self._renewed: float | None = None
        self._incarnation = ""
        self._known = False

    def node(self, session_count: int) -> Node:
        """Returns what presence is told."""
        return Node(
            node_id=self.node_id,
            epoch=self.epoch,
            state=NODE_STATE_DRAINING if self.draining else NODE_STATE_SERVING,
            session_count=session_count,
            address=self._address,
        )

    def renewed(self, incarnation: str, sent: float) -> bool:
        """Takes presence's confirmation; returns whether all sessions have to be asserted.

        Args:
            incarnation: of presence's memory.
            sent: when the confirmed call was sent, monotonic seconds.
        """
        fresh = not self.alive
        self.alive, self._renewed = True, sent
        # The first lease of a process has nothing to assert.
        again = self._known and (fresh or incarnation != self._incarnation)
        self._known, self._incarnation = True, incarnation
        return again

    def met(self, incarnation: str) -> bool:
        """Takes the incarnation of another answer; returns whether presence has lost its memory since."""
        return self._known and incarnation != self._incarnation

    def overdue(self, now: float) -> bool:
        """Tells whether the lease has run out for want of renewal."""
        return self._renewed is not None and now - self._renewed >= self._lifetime

    def lose(self, wall: float) -> None:
        """The lease is gone: a new epoch begins."""
        self.epoch = max(int(wall * _MICROS), self.epoch + 1)
        self.alive, self._renewed = False, None
