"""The node's lease as the node sees it."""

from __future__ import annotations

from heliograph.presence.v1.presence_service_pb2 import NODE_STATE_DRAINING, NODE_STATE_SERVING
from svc_gateway.lease import NodeLease


def _lease() -> NodeLease:
    return NodeLease(node_id="gw-0", address="10.0.0.1:7000", lifetime=15.0, wall=1_000.0)


def test_the_epoch_is_the_start_and_only_rises() -> None:
    """Also when the clock was set back."""
    lease = _lease()
    assert lease.epoch == 1_000_000_000
    lease.lose(2_000.0)
    assert lease.epoch == 2_000_000_000
    lease.lose(1.0)
    assert lease.epoch == 2_000_000_001


def test_the_first_lease_asserts_nothing() -> None:
    """There is nothing that could have been lost."""
    lease = _lease()
    assert not lease.renewed("a", 1.0)
    assert lease.alive
    assert not lease.renewed("a", 6.0)


def test_a_new_epoch_or_incarnation_asserts_everything() -> None:
    """Presence has forgotten the node's sessions in both cases."""
    lease = _lease()
    lease.renewed("a", 1.0)
    lease.lose(2_000.0)
    assert not lease.alive
    assert lease.renewed("a", 2.0)
    assert not lease.renewed("a", 3.0)
    assert lease.met("b")
    assert lease.renewed("b", 4.0)
    assert not lease.met("b")


def test_a_lease_runs_out_by_the_time_its_renewal_was_sent() -> None:
    """A slow answer does not make it longer."""
    lease = _lease()
    assert not lease.overdue(1_000.0)
    lease.renewed("a", 10.0)
    assert not lease.overdue(24.9)
    assert lease.overdue(25.0)


def test_presence_is_told_the_node_s_state() -> None:
    """Count, address, and whether it drains."""
    lease = _lease()
    node = lease.node(7)
    assert (node.node_id, node.epoch, node.state, node.session_count, node.address) == (
        "gw-0",
        1_000_000_000,
        NODE_STATE_SERVING,
        7,
        "10.0.0.1:7000",
    )
    lease.draining = True
    assert lease.node(7).state == NODE_STATE_DRAINING
