"""What waits for the loops."""

from __future__ import annotations

import asyncio

from svc_gateway.connection import Connection
from svc_gateway.decisions import CloseCode, Limits, State
from svc_gateway.queues import LARGEST_REPORT, PresenceQueue, SessionQueue
from svc_gateway.session import Session
from svc_gateway.sessions import session_of
from tests.support.connections import Bench


def _connection(number: int = 1) -> Connection:
    connection = Bench().connection
    connection.session = Session(
        limits=Limits(),
        step_due=0.0,
        state=State.LIVE,
        recipient_key=f"acme/{number}",
        device_id="phone",
        connect_number=number,
    )
    return connection


def test_a_session_that_came_and_went_is_never_mentioned() -> None:
    """Presence learns only what it has to take back."""
    queue, connection = PresenceQueue("gw-0"), _connection()
    queue.join(connection)
    queue.leave(connection)
    assert len(queue) == 0


def test_a_report_names_sessions_that_left_joined_and_live_on() -> None:
    """Each under its connect number and this node."""
    queue = PresenceQueue("gw-0")
    known, new, old = _connection(1), _connection(2), _connection(3)
    queue.assert_again(known)
    queue.join(new)
    queue.assert_again(new)
    queue.leave(old)
    request = queue.take().request("gw-0", 5)
    assert (request.node_id, request.epoch) == ("gw-0", 5)
    assert [entry.connect_number for entry in request.joined] == [2]
    assert [entry.connect_number for entry in request.asserted] == [1]
    assert [(entry.connect_number, entry.node_id) for entry in request.left] == [(3, "gw-0")]
    assert len(queue) == 0


def test_a_report_has_a_limit_over_all_three() -> None:
    """The rest is the next report."""
    queue = PresenceQueue("gw-0")
    for number in range(LARGEST_REPORT - 1):
        queue.join(_connection(number + 1))
    queue.assert_again(_connection(5_000))
    queue.leave(_connection(5_001))
    report = queue.take()
    assert (len(report.left), len(report.joined), len(report.asserted)) == (1, LARGEST_REPORT - 1, 0)
    assert len(queue) == 1


def test_a_failed_report_comes_again_without_those_that_ended() -> None:
    """What left stays to be said."""
    queue = PresenceQueue("gw-0")
    stays, ends, left = _connection(1), _connection(2), _connection(3)
    queue.join(stays)
    queue.join(ends)
    queue.leave(left)
    report = queue.take()
    session_of(ends).close(CloseCode.GO_AWAY, "")
    queue.leave(ends)
    queue.give_back(report)
    again = queue.take()
    assert again.joined == [stays]
    assert [entry.connect_number for entry in again.left] == [3, 2]


async def test_sessions_wait_once_and_the_first_kind_is_served_first() -> None:
    """Rounds wait for those that have nothing yet."""
    queue = SessionQueue()
    taking = asyncio.create_task(queue.take(3))
    await asyncio.sleep(0)
    later, first, gone = _connection(1), _connection(2), _connection(3)
    queue.add(later)
    queue.add(later)
    queue.add(gone)
    queue.add(first, first=True)
    queue.discard(gone)
    assert await taking == [first, later]
    assert len(queue) == 0
