"""The rules of presence: what a request may say, and how look-ups are packed.

Pure: time is an argument, no I/O. What happens atomically inside a store is written in its port.
Path step 6: delivery asks where a recipient is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from heliograph.presence.v1 import presence_service_pb2 as pb
from mesh.errors import FailedPrecondition, InvalidArgument, Violation
from svc_presence.ports import NodeLease, Session

LARGEST_REPORT = 1_000
LARGEST_LOOK_UP = 5_000
LARGEST_PAGE = 1_000


def invalid(violations: Sequence[Violation]) -> InvalidArgument:
    """The request breaks rules; all of them are named."""
    text = "; ".join(f"{violation.field}: {violation.description}" for violation in violations)
    return InvalidArgument(text, reason="FIELD_INVALID", violations=violations)


def lease_stale(node_id: str, epoch: int) -> FailedPrecondition:
    """The node's lease is gone or belongs to a newer epoch."""
    return FailedPrecondition(
        f"node {node_id} has no live lease with epoch {epoch}: take a new epoch and assert every session",
        reason="LEASE_STALE",
        metadata={"node_id": node_id, "epoch": str(epoch)},
    )


def lease_of(node: pb.Node, *, now: float, lifetime: float) -> NodeLease:
    """Returns the lease that a renewal asks for.

    Raises:
        InvalidArgument: a field of the node is missing or out of range.
    """
    violations = []
    if not 1 <= len(node.node_id) <= 128:
        violations.append(Violation("node.node_id", "must have 1 to 128 characters"))
    if node.epoch <= 0:
        violations.append(Violation("node.epoch", "must be the node's start time in µs"))
    if node.state not in (pb.NODE_STATE_SERVING, pb.NODE_STATE_DRAINING):
        violations.append(Violation("node.state", "must be SERVING or DRAINING"))
    if node.session_count < 0:
        violations.append(Violation("node.session_count", "must not be negative"))
    if violations:
        raise invalid(violations)
    return NodeLease(
        node_id=node.node_id,
        epoch=node.epoch,
        draining=node.state == pb.NODE_STATE_DRAINING,
        session_count=node.session_count,
        address=node.address,
        expires=now + lifetime,
    )


def check_report(request: pb.ReportSessionsRequest) -> None:
    """Checks a report's size and entries; raises InvalidArgument naming each violation."""
    violations = []
    count = len(request.joined) + len(request.left) + len(request.asserted)
    if count > LARGEST_REPORT:
        violations.append(Violation("joined", f"at most {LARGEST_REPORT} entries in all, not {count}"))
    else:
        for field in ("joined", "left", "asserted"):
            for index, entry in enumerate(getattr(request, field)):
                if not entry.recipient_key or not entry.device_id or entry.connect_number <= 0:
                    violations.append(
                        Violation(f"{field}[{index}]", "needs recipient_key, device_id and a connect_number above 0")
                    )
    if violations:
        raise invalid(violations)


def sessions_of(node_id: str, entries: Iterable[pb.SessionEntry]) -> list[Session]:
    """Returns a report's entries; a node reports its own sessions, whatever node an entry names."""
    return [Session(entry.recipient_key, entry.device_id, entry.connect_number, node_id) for entry in entries]


def check_look_up(request: pb.BatchGetPresenceRequest) -> None:
    """Checks a look-up's size; raises InvalidArgument."""
    count = len(request.recipient_keys)
    if not 1 <= count <= LARGEST_LOOK_UP:
        raise invalid([Violation("recipient_keys", f"must be 1 to {LARGEST_LOOK_UP}, not {count}")])


def pack(
    recipient_keys: Sequence[str], found: Sequence[Sequence[Session]], *, with_sessions: bool
) -> pb.BatchGetPresenceResponse:
    """Returns the answer to a look-up: recipients on the same nodes share a group, who is nowhere is not named."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for key, sessions in zip(recipient_keys, found, strict=True):
        if not sessions:
            continue
        nodes = (sessions[0].node_id,) if len(sessions) == 1 else tuple(sorted({one.node_id for one in sessions}))
        groups.setdefault(nodes, []).append(key)
    response = pb.BatchGetPresenceResponse()
    for nodes, keys in groups.items():
        response.groups.add(node_ids=nodes, recipient_keys=keys)
    if with_sessions:
        response.sessions.extend(entry_of(session) for sessions in found for session in sessions)
    return response


def entry_of(session: Session) -> pb.SessionEntry:
    """Returns a session as it goes on the wire."""
    return pb.SessionEntry(
        recipient_key=session.recipient_key,
        device_id=session.device_id,
        connect_number=session.connect_number,
        node_id=session.node_id,
    )


def page_of(nodes: Sequence[NodeLease], page_size: int, page_token: str) -> tuple[Sequence[NodeLease], str]:
    """Returns a page of nodes in node id order, and the token of the next one or "".

    The token is the last node id of the page before.

    Raises:
        InvalidArgument: the page size is negative.
    """
    if page_size < 0:
        raise invalid([Violation("page_size", "must not be negative")])
    size = min(page_size or LARGEST_PAGE, LARGEST_PAGE)
    rest = [node for node in nodes if node.node_id > page_token]
    page = rest[:size]
    return page, page[-1].node_id if len(rest) > size else ""
