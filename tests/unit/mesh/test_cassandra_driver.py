"""The default client of Cassandra, as far as it needs no server: nobody there, and how its errors are told."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import cassandra
import pytest
from cassandra.cluster import NoHostAvailable
from cassandra.protocol import OverloadedErrorMessage

from mesh.cassandra import IN_FLIGHT, WAITING, Row, StatementRefused, StoreUnavailable, open_session, parse
from mesh.cassandra_driver import Turns, answered, translated
from mesh.errors import StartError


async def refusal(rest: str) -> str:
    """Why a session is not opened."""
    with pytest.raises(StartError) as caught:
        await open_session(parse("delivery.store_url", f"cassandra://{rest}"))
    text = str(caught.value)
    assert "\n" not in text
    return text


async def test_a_node_that_is_not_there_is_one_line() -> None:
    """It says which URL, and that nobody answered."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        text = await refusal(f"127.0.0.1:{port}/inbox")
    assert text.startswith(f"cassandra://127.0.0.1:{port}/inbox: cannot be reached: ")
    assert "refused" in text


async def test_files_are_read_before_anybody_is_asked(tmp_path: Path) -> None:
    """A missing one is named."""
    assert f"credentials={tmp_path}/none" in await refusal(f"127.0.0.1:1/inbox?credentials={tmp_path}/none")
    assert f"ca={tmp_path}/none" in await refusal(f"127.0.0.1:1/inbox?ca={tmp_path}/none")


@pytest.mark.parametrize(
    ("error", "refused", "unknown"),
    [
        (cassandra.InvalidRequest("no such column"), True, False),
        (NoHostAvailable("nobody", {}), False, False),
        (cassandra.Unavailable("not enough replicas", 2, 3, 1), False, False),
        (cassandra.Unauthorized("no MODIFY"), False, False),
        (cassandra.WriteTimeout("late", write_type=cassandra.WriteType.SIMPLE), False, True),
        (cassandra.WriteFailure("failed", write_type=cassandra.WriteType.SIMPLE), False, True),
        (cassandra.OperationTimedOut(), False, True),
        (OverloadedErrorMessage(0x1001, "busy", None), False, True),
        (ConnectionError("lost\nhere"), False, True),
    ],
)
def test_errors_say_whether_it_may_have_happened(error: Exception, refused: bool, unknown: bool) -> None:
    """What is turned away is told from what may have been done."""
    told = translated(error)
    assert isinstance(told, StoreUnavailable)
    assert isinstance(told, StatementRefused) == refused
    assert told.outcome_unknown == unknown
    assert "\n" not in told.message


def test_a_node_that_goes_while_it_is_asked_is_left_out() -> None:
    """The others answer for what is asked of each; a start must not need every node. What is wrong is no loss."""
    gone = StoreUnavailable("host has been marked down", outcome_unknown=False)
    assert answered(["a", "b", "c"], [[("batch",)], gone, [("group",)]]) == {"a": [("batch",)], "c": [("group",)]}
    with pytest.raises(StoreUnavailable, match="marked down"):
        answered(["a", "b"], [gone, gone])
    with pytest.raises(StatementRefused, match="no such table"):
        answered(["a", "b"], [[("batch",)], StatementRefused("no such table")])


class Request:
    """One request of the driver's, answered when the test says so."""

    has_more_pages = False

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.succeed: Callable[[list[Row] | None], None]
        self.fail: Callable[[Exception], None]

    def add_callbacks(self, callback: Callable[[list[Row] | None], None], errback: Callable[[Exception], None]) -> None:
        """Remembers whom to call."""
        self.succeed, self.fail = callback, errback


class Asked:
    """Requests in the order of their beginning."""

    def __init__(self, timeout: float = 5.0) -> None:
        self.woken = 0
        self.turns = Turns(self._wake, timeout)
        self.requests: list[Request] = []
        self._loop = asyncio.get_running_loop()

    def ask(self) -> asyncio.Future[list[Row]]:
        """Asks once more."""
        future: asyncio.Future[list[Row]] = self._loop.create_future()
        self.turns.take(future, self._begin)
        return future

    def _wake(self, work: Callable[[], None]) -> None:
        self.woken += 1
        self._loop.call_soon_threadsafe(work)

    def _begin(self, timeout: float) -> Request:
        self.requests.append(Request(timeout))
        return self.requests[-1]


async def test_turns_are_given_in_order() -> None:
    """256 at a time; who has stopped waiting is passed over, and who waited has less time left."""
    asked = Asked()
    futures = [asked.ask() for _ in range(IN_FLIGHT + 3)]
    assert len(asked.requests) == IN_FLIGHT
    futures[IN_FLIGHT].cancel()
    for number, request in enumerate(asked.requests[:2]):
        await asyncio.to_thread(request.succeed, [(number,)])
    assert [await future for future in futures[:2]] == [[(0,)], [(1,)]]
    assert len(asked.requests) == IN_FLIGHT + 2
    assert 0.0 < asked.requests[-1].timeout < 5.0
    asked.requests[-1].fail(cassandra.OperationTimedOut())
    with pytest.raises(StoreUnavailable):
        await futures[-1]


async def test_a_burst_of_answers_wakes_the_loop_once() -> None:
    """However many threads' answers have come until it looks."""
    asked = Asked()
    futures = [asked.ask() for _ in range(100)]
    for request in asked.requests:
        request.succeed(None)
    assert await asyncio.gather(*futures) == [[]] * 100
    assert asked.woken == 1


async def test_a_turn_that_does_not_come_is_no_statement() -> None:
    """It was never begun; beyond a bound nobody waits at all."""
    asked = Asked(timeout=0.0)
    futures = [asked.ask() for _ in range(IN_FLIGHT + WAITING + 1)]
    with pytest.raises(StoreUnavailable, match="too many"):
        await futures[-1]
    asked.requests[0].succeed(None)
    with pytest.raises(StoreUnavailable, match="did not come in time") as late:
        await futures[IN_FLIGHT]
    assert not late.value.outcome_unknown
    assert len(asked.requests) == IN_FLIGHT
    for future in futures:
        future.cancel()
