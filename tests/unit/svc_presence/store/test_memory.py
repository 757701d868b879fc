"""What only the store in memory does: it is swept."""

from __future__ import annotations

from svc_presence.ports import NodeLease, Session
from svc_presence.store.memory import MemoryStore


async def test_a_sweep_counts_the_sessions_it_drops() -> None:
    """Entries of a node without any remembered lease are dropped, others stay."""
    store = MemoryStore(repeat_for=15.0)
    for node_id, now in (("gw-a-0", 0.0), ("gw-b-0", 10_000.0)):
        await store.renew(NodeLease(node_id, 1, False, 0, "", now + 15.0), now)
        joined = [Session(f"acme/{node_id}", "phone", 1, node_id)]
        await store.report(node_id, 1, joined=joined, left=[], asserted=[], now=now)
        assert await store.sweep(now + 1.0) == (0 if node_id == "gw-a-0" else 1)
    assert await store.sweep(10_001.0) == 0
