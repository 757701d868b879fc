"""The table of sessions, the timer wheel and the bytes in transports."""

from __future__ import annotations

from svc_gateway.connection import Connection
from svc_gateway.decisions import Limits
from svc_gateway.host import ClientConnection
from svc_gateway.session import Session
from svc_gateway.sessions import Backlog, Sessions, Wheel, session_of
from tests.support.connections import Bench


def _connection(recipient: str = "acme/alice", device: str = "phone", *, due: float = 5.0) -> Connection:
    connection = Bench().connection
    connection.session = Session(limits=Limits(), step_due=due, recipient_key=recipient, device_id=device)
    return connection


def test_a_recipient_has_one_session_a_device() -> None:
    """The newer one replaces the older one and does not count twice."""
    sessions = Sessions()
    phone, tablet, newer = _connection(), _connection(device="tablet"), _connection()
    assert sessions.join(phone) is None
    assert sessions.join(tablet) is None
    assert sessions.join(newer) is phone
    assert sessions.count == 2
    assert set(sessions.of("acme/alice")) == {tablet, newer}
    assert sessions.find("acme/alice", "phone") is newer
    assert sessions.joined == 3
    assert not sessions.leave(phone)
    assert sessions.leave(newer)
    assert sessions.leave(tablet)
    assert (sessions.count, sessions.of("acme/alice"), list(sessions)) == (0, (), [])


def test_sessions_may_end_while_they_are_gone_through() -> None:
    """A drain closes them one after the other."""
    sessions = Sessions()
    for number in range(5):
        sessions.join(_connection(f"acme/{number}"))
    for connection in sessions:
        sessions.leave(connection)
    assert sessions.count == 0


def test_the_wheel_gives_each_session_once_and_never_early() -> None:
    """Slots are passed when their time is over, also many at once."""
    wheel = Wheel(0.0)
    soon, late = _connection(due=1.5), _connection(due=500.0)
    wheel.schedule(soon)
    wheel.schedule(late)
    wheel.schedule(late)
    assert wheel.advance(1.4) == []
    assert wheel.advance(2.0) == [soon]
    assert wheel.advance(100.0) == []
    assert wheel.advance(1_000.0) == [late]
    assert wheel.advance(2_000.0) == []


def test_the_wheel_moves_a_session_forward_but_not_back() -> None:
    """An earlier time counts at once; a later one is found out when the earlier slot is passed."""
    wheel = Wheel(0.0)
    connection = _connection(due=100.0)
    wheel.schedule(connection)
    session_of(connection).step_due = 10.0
    wheel.schedule(connection)
    session_of(connection).step_due = 200.0
    wheel.schedule(connection)
    assert wheel.advance(11.0) == [connection]
    wheel.schedule(connection)
    assert wheel.advance(150.0) == []
    assert wheel.advance(201.0) == [connection]


def test_what_is_overdue_comes_with_the_next_slot() -> None:
    """A session whose time lies in the past is not lost."""
    wheel = Wheel(100.0)
    connection = _connection(due=5.0)
    wheel.schedule(connection)
    assert wheel.advance(101.0) == [connection]


class _Told:
    def __init__(self) -> None:
        self.behind: list[ClientConnection] = []
        self.writable: list[ClientConnection] = []

    def backlog(self, limit: int) -> Backlog:
        return Backlog(limit=limit, behind=self.behind.append, writable=self.writable.append)


def test_the_fattest_session_is_behind_first() -> None:
    """Only as many as it takes to come below the limit."""
    told = _Told()
    backlog = told.backlog(1_000)
    sizes = {_connection(): 300, _connection(): 600, _connection(): 200}
    for connection, size in sizes.items():
        connection.write(b"x" * size)
        backlog.note(connection, 1)
    backlog.count()
    fattest = max(sizes, key=sizes.__getitem__)
    assert backlog.waiting == 1_100
    assert told.behind == [fattest]
    backlog.count()
    assert told.behind == [fattest]


def test_a_stopped_session_is_freed_when_it_has_drained() -> None:
    """And one that is gone is forgotten."""
    told = _Told()
    backlog = told.backlog(100)
    bench = Bench()
    gone = _connection()
    for connection in (bench.connection, gone):
        connection.write(b"x" * 200)
        backlog.note(connection, 1)
    backlog.count()
    assert set(told.behind) == {bench.connection, gone}
    backlog.forget(gone)
    bench.transport.sent.clear()
    backlog.count()
    assert told.writable == [bench.connection]
    assert backlog.waiting == 0


def test_who_keeps_too_much_waiting_has_to_go() -> None:
    """The fattest of those that were told before, as many as it takes; nobody who has drained, and nobody at once."""
    told = _Told()
    backlog = told.backlog(1_000)
    thin, fat, drained = Bench(), Bench(), Bench()
    for bench, size in ((thin, 700), (fat, 900), (drained, 800)):
        bench.connection.write(b"x" * size)
        backlog.note(bench.connection, 1)
    assert backlog.overdue() == []
    drained.transport.sent.clear()
    assert set(told.behind) == {fat.connection, drained.connection}
    assert backlog.overdue() == [fat.connection]
    backlog.forget(fat.connection)
    assert backlog.overdue() == []
    assert backlog.waiting == 700


def test_much_that_is_written_is_counted_at_once() -> None:
    """The limit does not wait for the next tick."""
    told = _Told()
    backlog = told.backlog(100)
    connection = _connection()
    connection.write(b"x" * 200)
    backlog.note(connection, 200)
    assert told.behind == [connection]
