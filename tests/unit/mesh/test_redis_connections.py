"""Connections to a Redis server: what is asked together goes together, and no answer reaches anybody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from mesh.redis_connections import CONNECTIONS, LONGEST_QUEUE, Access, Lost, Refusal, Reply, Server
from mesh.stores import Credentials
from tests.support.scripted_redis import ScriptedRedis, bulk
from tests.support.wait import until


@pytest.fixture
async def scripted() -> AsyncIterator[ScriptedRedis]:
    """A server that answers GET with its key."""
    server = ScriptedRedis()
    server.answer = lambda command: bulk(command[-1])
    async with server.serving():
        yield server


@pytest.fixture
async def server(scripted: ScriptedRedis) -> AsyncIterator[Server]:
    """Connections to it."""
    made = Server(scripted.host, Access(), answer=10.0)
    yield made
    await made.close()


async def occupied(scripted: ScriptedRedis, server: Server) -> list[asyncio.Task[list[Reply]]]:
    """Calls that keep every connection waiting for its answer."""
    scripted.open.clear()
    tasks = []
    for number in range(CONNECTIONS):
        tasks.append(asyncio.create_task(server.run([("GET", f"{number}")])))
        await until(lambda: len(scripted.pieces) == len(tasks), what="the piece has arrived")
    return tasks


async def test_what_is_asked_meanwhile_goes_together(scripted: ScriptedRedis, server: Server) -> None:
    """As many pieces as connections are under way; what comes later is the next piece."""
    first = await occupied(scripted, server)
    later = [asyncio.create_task(server.run([("GET", f"a{n}"), ("GET", f"b{n}")])) for n in range(20)]
    await asyncio.sleep(0)
    scripted.open.set()
    assert await asyncio.gather(*first) == [[b"%d" % n] for n in range(CONNECTIONS)]
    assert await asyncio.gather(*later) == [[b"a%d" % n, b"b%d" % n] for n in range(20)]
    assert scripted.connections == CONNECTIONS
    assert len(scripted.pieces) <= 2 * CONNECTIONS + 1


async def test_who_gives_up_takes_nothing_from_others(scripted: ScriptedRedis, server: Server) -> None:
    """What was sent is answered to nobody, what was not is not sent, and everybody else gets what is theirs."""
    sent = await occupied(scripted, server)
    queued = [asyncio.create_task(server.run([("GET", f"queued{n}")])) for n in range(5)]
    others = [asyncio.create_task(server.run([("GET", f"other{n}")])) for n in range(5)]
    await asyncio.sleep(0)
    for task in (*sent, *queued):
        task.cancel()
    await asyncio.wait([*sent, *queued])
    scripted.open.set()
    assert await asyncio.gather(*others) == [[b"other%d" % n] for n in range(5)]
    assert not any(b"queued" in command[-1] for piece in scripted.pieces for command in piece)
    assert scripted.connections == CONNECTIONS


async def test_a_broken_answer_is_a_loss_and_the_next_call_connects_anew(
    scripted: ScriptedRedis, server: Server
) -> None:
    """Everybody whose answer was in that piece learns that it may have been done."""
    scripted.answer = lambda command: None if command[-1] == b"break" else bulk(command[-1])
    with pytest.raises(Lost) as lost:
        await server.run([("GET", "fine"), ("GET", "break"), ("GET", "fine")])
    assert (lost.value.sent, lost.value.wrong) == (True, False)
    assert await server.run([("GET", "again")]) == [b"again"]
    assert scripted.connections == 2


async def test_a_late_answer_is_a_loss_and_reaches_nobody(scripted: ScriptedRedis) -> None:
    """After the limit the connection is dropped with the answer that may still come."""
    server = Server(scripted.host, Access(), answer=0.2)
    scripted.open.clear()
    with pytest.raises(Lost, match="no answer in time"):
        await server.run([("GET", "late")])
    scripted.open.set()
    assert await server.run([("GET", "next")]) == [b"next"]
    await server.close()


async def test_a_silent_server_is_tried_by_one_at_a_time(scripted: ScriptedRedis) -> None:
    """Everybody else fails at once, until it answers again."""
    server = Server(scripted.host, Access(), answer=0.3)
    scripted.open.clear()
    with pytest.raises(Lost, match="no answer in time") as lost:
        await server.run([("GET", "first")])
    assert lost.value.silent
    trying = asyncio.create_task(server.run([("GET", "trying")]))
    await asyncio.sleep(0)
    for _ in range(5):
        with pytest.raises(Lost, match="does not answer") as lost:
            await server.run([("GET", "other")])
        assert (lost.value.silent, lost.value.sent) == (True, False)
    scripted.open.set()
    assert await trying == [b"trying"]
    answers = await asyncio.gather(*[server.run([("GET", f"{n}")]) for n in range(5)])
    assert answers == [[b"%d" % n] for n in range(5)]
    assert not any(command[-1] == b"other" for piece in scripted.pieces for command in piece)
    await server.close()


async def test_refusals_stand_among_answers(scripted: ScriptedRedis, server: Server) -> None:
    """One refused command spoils no other, and says where to go."""
    words = {
        b"moved": b"-MOVED 866 10.0.0.7:6380\r\n",
        b"script": b"-NOSCRIPT No matching script.\r\n",
        b"other": b"-ERR it is wrong\r\n",
    }
    scripted.answer = lambda command: words.get(command[-1], bulk(command[-1]))
    moved, fine, script, other = await server.run([("GET", word) for word in ("moved", "fine", "script", "other")])
    assert isinstance(moved, Refusal)
    assert isinstance(script, Refusal)
    assert (moved.code, str(moved.host), fine) == ("MOVED", "10.0.0.7:6380", b"fine")
    assert (script.code, other) == ("NOSCRIPT", Refusal("ERR", "it is wrong"))


async def test_a_login_that_is_refused_is_wrong(scripted: ScriptedRedis) -> None:
    """Another try would not help."""
    scripted.answer = lambda command: b"-WRONGPASS invalid username-password pair\r\n"
    server = Server(scripted.host, Access(credentials=Credentials("me", "secret")))
    with pytest.raises(Lost, match="invalid username-password pair") as lost:
        await server.run([("GET", "x")])
    assert lost.value.wrong
    assert "secret" not in str(lost.value)


async def test_a_loading_server_is_away(scripted: ScriptedRedis, server: Server) -> None:
    """It says so itself; later it will answer."""
    scripted.answer = lambda command: b"-LOADING Redis is loading the dataset in memory\r\n"
    with pytest.raises(Lost, match="loading the dataset") as lost:
        await server.run([("GET", "x")])
    assert not lost.value.wrong


async def test_a_queue_has_an_end(scripted: ScriptedRedis, server: Server) -> None:
    """Too many commands are refused before they wait."""
    scripted.open.clear()
    waiting = await occupied(scripted, server)
    piece = [("GET", "x")] * 500
    waiting += [asyncio.create_task(server.run(piece)) for _ in range(LONGEST_QUEUE // 500)]
    await asyncio.sleep(0)
    with pytest.raises(Lost, match="commands wait already"):
        await server.run([("GET", "one too many")])
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)


async def test_closing_gives_up_what_waits(scripted: ScriptedRedis, server: Server) -> None:
    """Nobody waits for an answer that will never come."""
    waiting = await occupied(scripted, server)
    waiting += [asyncio.create_task(server.run([("GET", "x")])) for _ in range(10)]
    await asyncio.sleep(0)
    await server.close()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(answer, Lost) and "closed" in str(answer) for answer in answers)
    scripted.open.set()
