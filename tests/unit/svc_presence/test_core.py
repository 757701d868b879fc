"""The rules of presence."""

from __future__ import annotations

import pytest

from heliograph.presence.v1 import presence_service_pb2 as pb
from mesh.errors import InvalidArgument
from svc_presence import core
from svc_presence.ports import NodeLease, Session


def test_a_renewal_becomes_a_lease_with_an_end() -> None:
    """A valid node gets a lease that ends one lifetime from now."""
    node = pb.Node(node_id="gw-a-0", epoch=7, state=pb.NODE_STATE_DRAINING, session_count=3, address="127.0.0.1:7420")
    lease = core.lease_of(node, now=100.0, lifetime=15.0)
    assert lease == NodeLease("gw-a-0", 7, True, 3, "127.0.0.1:7420", 115.0)


def test_a_broken_node_is_refused_with_every_violation() -> None:
    """Everything that is wrong with a node is named at once."""
    with pytest.raises(InvalidArgument) as caught:
        core.lease_of(pb.Node(session_count=-1), now=0.0, lifetime=15.0)
    fields = [violation.field for violation in caught.value.violations]
    assert fields == ["node.node_id", "node.epoch", "node.state", "node.session_count"]


def test_a_report_may_have_a_thousand_entries_and_no_more() -> None:
    """The limit counts joined, left and asserted together."""
    entry = pb.SessionEntry(recipient_key="acme/alice", device_id="d", connect_number=1)
    core.check_report(pb.ReportSessionsRequest(joined=[entry] * 500, left=[entry] * 500))
    with pytest.raises(InvalidArgument, match="at most 1000"):
        core.check_report(pb.ReportSessionsRequest(joined=[entry] * 500, left=[entry] * 500, asserted=[entry]))


def test_an_incomplete_entry_is_named_by_its_place() -> None:
    """The violation says which entry of which list is wrong."""
    good = pb.SessionEntry(recipient_key="acme/alice", device_id="d", connect_number=1)
    with pytest.raises(InvalidArgument) as caught:
        core.check_report(pb.ReportSessionsRequest(joined=[good], asserted=[good, pb.SessionEntry(device_id="d")]))
    assert [violation.field for violation in caught.value.violations] == ["asserted[1]"]


def test_a_node_reports_its_own_sessions_only() -> None:
    """Whatever node an entry names, it is the reporting node's."""
    entry = pb.SessionEntry(recipient_key="acme/alice", device_id="d", connect_number=1, node_id="gw-foreign-0")
    assert core.sessions_of("gw-a-0", [entry]) == [Session("acme/alice", "d", 1, "gw-a-0")]


@pytest.mark.parametrize("count", [0, core.LARGEST_LOOK_UP + 1])
def test_a_look_up_has_a_size(count: int) -> None:
    """Nothing and too much are refused."""
    with pytest.raises(InvalidArgument, match="recipient_keys"):
        core.check_look_up(pb.BatchGetPresenceRequest(recipient_keys=["k"] * count))


def test_recipients_on_the_same_nodes_share_a_group() -> None:
    """Groups are by set of nodes; who is nowhere is not named."""
    on_a = [Session("acme/alice", "d1", 1, "gw-a-0")]
    on_both = [Session("acme/bob", "d1", 1, "gw-b-0"), Session("acme/bob", "d2", 2, "gw-a-0")]
    twice_on_a = [Session("acme/carol", "d1", 1, "gw-a-0"), Session("acme/carol", "d2", 2, "gw-a-0")]
    response = core.pack(
        ["acme/alice", "acme/bob", "acme/nobody", "acme/carol"], [on_a, on_both, [], twice_on_a], with_sessions=False
    )
    groups = {tuple(group.node_ids): list(group.recipient_keys) for group in response.groups}
    assert groups == {("gw-a-0",): ["acme/alice", "acme/carol"], ("gw-a-0", "gw-b-0"): ["acme/bob"]}
    assert not response.sessions


def test_sessions_are_listed_when_asked_for() -> None:
    """With sessions each one is named beside the groups."""
    session = Session("acme/alice", "d1", 9, "gw-a-0")
    response = core.pack(["acme/alice"], [[session]], with_sessions=True)
    assert list(response.sessions) == [
        pb.SessionEntry(recipient_key="acme/alice", device_id="d1", connect_number=9, node_id="gw-a-0")
    ]


def test_pages_of_nodes_join_to_all_nodes() -> None:
    """Following the tokens gives every node once, in order."""
    nodes = [NodeLease(f"gw-a-{index}", 1, False, 0, "", 1.0) for index in range(5)]
    seen: list[str] = []
    token = ""
    while True:
        page, token = core.page_of(nodes, 2, token)
        seen += [node.node_id for node in page]
        if not token:
            break
    assert seen == [node.node_id for node in nodes]


def test_a_negative_page_is_refused() -> None:
    """A page size below zero is an error, not a default."""
    with pytest.raises(InvalidArgument, match="page_size"):
        core.page_of([], -1, "")
