"""The loops of a node that read inboxes, one step at a time: replays, checkpoints, rounds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from mesh.errors import InvalidArgument, Unavailable
from svc_gateway.decisions import CloseCode, State
from svc_gateway.host import ClientConnection
from svc_gateway.sessions import session_of
from tests.support.connections import Bench
from tests.support.gateway_node import World, join, written
from tests.support.sessions import id_of

_AWAY = Unavailable("away", reason="PEER_UNAVAILABLE")


class _AllRead(Exception):
    """Nothing waits any more."""


async def test_many_sessions_are_read_in_one_call() -> None:
    """In the order in which they wait."""
    world = World()
    names = ["alice", "bob", "carol"]
    benches = await join(world, names)
    await world.settle()
    assert world.peers.calls == [[f"acme/{name}" for name in names]]
    assert all(session_of(bench.connection).state is State.LIVE for bench in benches)


async def test_those_without_an_answer_ask_again() -> None:
    """An answer that is too large for all of them has the first ones."""
    world = World()
    benches = await join(world, ["alice", "bob", "carol"])
    world.peers.largest_answer = 1
    await world.settle()
    assert [len(call) for call in world.peers.calls] == [3, 2, 1]
    assert all(session_of(bench.connection).state is State.LIVE for bench in benches)


async def test_further_pages_are_read_together() -> None:
    """Each session gets all of its own, and nothing twice."""
    world = World()
    for number in range(7):
        world.peers.inbox.write(id_of(number), 1, world.clock.wall())
    benches = await join(world, ["alice", "bob"])
    await world.settle()
    assert [len(call) for call in world.peers.calls] == [2, 2, 2]
    for bench in benches:
        kinds = [frame.WhichOneof("frame") for frame in written(bench)]
        assert kinds == ["welcome", *["notify"] * 7, "replayed"]


async def test_a_refused_replay_is_one_session_s_alone() -> None:
    """The others of the call go on; a call that fails is repeated for all of them."""
    world = World()
    alice, bob = await join(world, ["alice", "bob"])
    world.peers.refused["acme/bob"] = InvalidArgument("no such page", reason="FIELD_INVALID")
    await world.settle()
    assert [frame.WhichOneof("frame") for frame in written(alice)] == ["welcome", "replayed"]
    assert [frame.WhichOneof("frame") for frame in written(bob)] == ["welcome"]
    assert session_of(bob.connection).retry_due < float("inf")
    world.peers.failure = _AWAY
    carol, dave = world.connect("carol"), world.connect("dave")
    world.gateway.registered([carol.connection, dave.connection])
    await world.settle()
    assert all(session_of(bench.connection).retry_due < float("inf") for bench in (carol, dave))


async def _given_a_hundred(world: World) -> list[Bench]:
    """Opens ten sessions that wait for a checkpoint."""
    benches = await join(world, [f"reader-{number}" for number in range(10)])
    await world.settle()
    world.clock.advance(10.0)
    for bench in benches:
        session = session_of(bench.connection)
        for number in range(100):
            session.offer(id_of(number), 1, "", b"", world.clock.monotonic(), float("inf"))
        world.gateway.run(bench.connection, session, session.frames_passed(world.clock.monotonic()))
        written(bench)
    return benches


async def test_busy_sessions_get_their_checkpoints_a_few_at_a_time() -> None:
    """Eight, then the two that are left; none is in the way of replays."""
    world = World()
    benches = await _given_a_hundred(world)
    assert len(world.gateway.replays) == 0
    for waiting in (2, 0):
        await world.inbox.checkpoint(await world.gateway.checkpoints.take(8))
        done = [bench for bench in benches if session_of(bench.connection).since_checkpoint == 0]
        assert (len(world.gateway.checkpoints), len(benches) - len(done)) == (waiting, waiting)
    assert all([frame.WhichOneof("frame") for frame in written(bench)] == ["replayed"] for bench in benches)


async def test_checkpoints_rest_as_long_as_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading of two seconds is followed by a rest of two."""
    world = World()
    passed: list[tuple[str, float]] = []

    async def read(connections: Sequence[ClientConnection]) -> None:
        passed.append(("read", len(connections)))
        world.clock.advance(2.0)

    async def rest(seconds: float) -> None:
        passed.append(("rest", seconds))
        if not len(world.gateway.checkpoints):
            raise _AllRead

    monkeypatch.setattr(world.inbox, "checkpoint", read)
    monkeypatch.setattr(asyncio, "sleep", rest)
    for _ in range(18):
        world.gateway.checkpoints.add(Bench().connection)
    with pytest.raises(_AllRead):
        await world.inbox.checkpoint_for_ever()
    assert passed == [("read", 8), ("rest", 2.0), ("read", 8), ("rest", 2.0), ("read", 2), ("rest", 2.0)]


async def test_a_session_that_ends_waits_for_no_checkpoint() -> None:
    """It is taken out of the queue."""
    world = World()
    benches = await _given_a_hundred(world)
    session = session_of(benches[0].connection)
    world.gateway.run(benches[0].connection, session, session.close(CloseCode.SUPERSEDED, "SUPERSEDED"))
    assert len(world.gateway.checkpoints) == 9


async def test_a_round_asserts_the_session_and_reads_only_what_is_new() -> None:
    """An inbox without changes costs one look at its head."""
    world = World()
    bench = await world.live()
    session = session_of(bench.connection)
    for is_new in (False, True):
        if is_new:
            world.peers.inbox.write(id_of(1), 1, world.clock.wall())
        session.heard, session.round_due = world.clock.monotonic(), world.clock.monotonic()
        world.gateway.run(bench.connection, session, session.tick(world.clock.monotonic(), 0.52))
        assert len(world.gateway.presence) == 1
        await world.inbox.round(await world.gateway.rounds.take(10))
        assert len(world.gateway.replays) == int(is_new)
        written(bench)
        await world.settle()
    assert [frame.WhichOneof("frame") for frame in written(bench)] == ["notify", "replayed"]


async def test_a_round_that_is_not_answered_is_left_out() -> None:
    """The session is as it was."""
    world = World()
    bench = await world.live()
    world.peers.failure = _AWAY
    await world.inbox.round([bench.connection])
    assert session_of(bench.connection).state is State.LIVE
