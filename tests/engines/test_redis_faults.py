"""What the request log and presence bear of their Redis: kills, silence, fail-over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from mesh.clock import ManualClock
from mesh.errors import StartError, Unavailable
from mesh.redis import LIMIT_S, Call, Script, connect
from mesh.redis_connections import CONNECTIONS, Access, Server
from svc_ingest.limits import REQUEST_LEASE_S
from svc_ingest.ports import Done, Fresh, Pending
from svc_presence.ports import Session
from tests.support.redis_servers import RedisServer, cluster, redis_server, watched
from tests.support.redis_stores import LEASE, answer, claim, lease, opened, present, refused, url_of
from tests.support.wait import until

pytestmark = pytest.mark.engines

NOW = 1_700_000_000.0


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RedisServer]:
    """A server of the test's own."""
    async with redis_server(tmp_path) as running:
        yield running


def works(step: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[bool]]:
    """Returns a condition: the step is not refused any more."""

    async def attempt() -> bool:
        try:
            await step()
        except Unavailable:
            return False
        return True

    return attempt


# ---------------------------------------------------------------- gone and back


async def test_a_killed_server_is_missed_and_found_again(server: RedisServer) -> None:
    """While it is away calls fail at once; when it is back, empty, the next one works without anybody's help."""
    async with opened(url_of(server)) as log:
        assert await log.begin([claim(1)], NOW) == [Fresh(1_000)]
        server.kill()
        begin = time.monotonic()
        for step in (log.begin([claim(1)], NOW), log.finish([answer(1)]), log.release([claim(1)])):
            with pytest.raises(Unavailable, match="Connection refused"):
                await step
        assert time.monotonic() - begin < 3 * LIMIT_S
        await server.start()
        assert await log.begin([claim(1, "second")], NOW) == [Fresh(1_000)]


async def test_a_start_without_its_server_waits_for_nobody(server: RedisServer) -> None:
    """Publishing needs no request log: one that is away at the start is used when it comes."""
    server.kill()
    async with opened(url_of(server)) as log:
        with pytest.raises(Unavailable):
            await log.begin([claim(1)], NOW)
        await server.start()
        assert await log.begin([claim(1)], NOW) == [Fresh(1_000)]


async def test_silence_ends_at_the_limit(server: RedisServer) -> None:
    """A server that takes commands and does not answer is given up in time, and used when it moves again."""
    async with opened(url_of(server)) as log:
        await log.begin([claim(1)], NOW)
        server.freeze()
        begin = time.monotonic()
        with pytest.raises(Unavailable, match="no answer in time"):
            await log.begin([claim(2)], NOW)
        assert time.monotonic() - begin < LIMIT_S + 1.0
        server.thaw()
        assert await log.begin([claim(2, "second")], NOW) in ([Fresh(1_000)], [Pending(REQUEST_LEASE_S)])


async def test_a_call_given_up_leaves_no_answer_to_others(server: RedisServer) -> None:
    """Cancelled in the middle, its answer is never read by who calls next."""
    redis = connect("x", url_of(server))
    echo = Script("return {KEYS[1], ARGV[1]}")
    await redis.run(echo, [Call([b"warm"], [0])])
    for round_ in range(30):
        server.freeze()
        given_up = [asyncio.create_task(redis.run(echo, [Call([b"lost"], [round_])])) for _ in range(5)]
        await asyncio.wait(given_up, timeout=0.003)
        for task in given_up:
            task.cancel()
        server.thaw()
        found = await asyncio.gather(*[redis.run(echo, [Call([b"k%d" % n], [n])]) for n in range(8)])
        assert found == [[[b"k%d" % n, b"%d" % n]] for n in range(8)]
        await asyncio.wait(given_up)
    await redis.close()


@pytest.mark.parametrize("turns", range(5))
async def test_a_call_is_given_up_at_once_when_the_loop_was_late(server: RedisServer, turns: int) -> None:
    """A limit that ran out while the loop stood still ends the call wherever it is."""
    redis = connect("x", url_of(server))
    echo = Script("return ARGV[1]")
    await redis.run(echo, [Call([b"warm"], [0])])
    server.freeze()

    async def limited() -> float:
        begin = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await redis.run(echo, [Call([b"k"], [0])])
        return time.monotonic() - begin

    async def stall() -> None:
        # The loop stands still after so many of its turns: each time the calls are at another place.
        for _ in range(turns):
            await asyncio.sleep(0)
        end = time.monotonic() + 0.07
        while time.monotonic() < end:
            pass

    *took, _ = await asyncio.gather(*[limited() for _ in range(10)], stall())
    assert max(second for second in took if second is not None) < 1.0
    server.thaw()
    await redis.close()


async def test_scripts_are_loaded_again(server: RedisServer) -> None:
    """A server that forgot its scripts gets them with the next call."""
    async with opened(url_of(server)) as log:
        await log.finish([answer(1)])
        await server.ask(("SCRIPT", "FLUSH"))
        assert await log.begin([claim(1)], NOW) == [Done(b"d" * 32, b"e" * 16, 7)]


async def test_more_calls_than_connections_wait_their_turn(server: RedisServer) -> None:
    """Five hundred at once are all answered, over a few connections."""
    async with opened(url_of(server)) as log:
        known = await asyncio.gather(*[log.begin([claim(number)], NOW) for number in range(500)])
        assert known == [[Fresh(1_000)]] * 500
        (clients,) = await server.ask(("CLIENT", "LIST"))
        assert isinstance(clients, bytes)
        assert clients.count(b"\n") <= CONNECTIONS + 1


async def test_a_full_server_is_said_to_be_full(server: RedisServer) -> None:
    """Without eviction writes are refused, with the server's reason, and health tells."""
    async with opened(url_of(server)) as log:
        await server.ask(("CONFIG", "SET", "maxmemory", "1"))
        with pytest.raises(Unavailable, match="OOM"):
            await log.begin([claim(1)], NOW)
        with pytest.raises(Unavailable, match="OOM"):
            await connect("x", url_of(server)).ping()


# ---------------------------------------------------------------- retention


async def test_requests_are_forgotten_a_day_after_their_last_lease(server: RedisServer) -> None:
    """A take-over begins the day anew, an answer does not."""

    async def left_s() -> float:
        (key,) = [key for key in await keys_of(server) if b"request" in key]
        (left,) = await server.ask(("PTTL", key))
        assert isinstance(left, int)
        return left / 1_000

    async with opened(url_of(server)) as log:
        await log.begin([claim(1)], NOW)
        assert 86_390 < await left_s() <= 86_400
        (key,) = [key for key in await keys_of(server) if b"request" in key]
        await server.ask(("PEXPIRE", key, 50_000_000))
        await log.finish([answer(1)])
        assert await left_s() <= 50_000
        await log.begin([claim(1, "second")], NOW)
        assert await left_s() <= 50_000
        await server.ask(("DEL", key))
        await log.begin([claim(1)], NOW)
        await server.ask(("PEXPIRE", key, 50_000_000))
        await log.begin([claim(1, "second")], NOW + REQUEST_LEASE_S)
        assert 86_390 < await left_s() <= 86_400


async def keys_of(server: RedisServer) -> list[bytes]:
    """Every key."""
    (keys,) = await server.ask(("KEYS", "*"))
    assert isinstance(keys, list)
    return [key for key in keys if isinstance(key, bytes)]


# ---------------------------------------------------------------- fail-over


async def test_a_cluster_fails_over_to_the_replica(tmp_path: Path) -> None:
    """The primary of a third of the slots is killed; its replica knows what was done, and the log goes on by itself."""
    async with cluster(tmp_path) as servers:
        hosts = ",".join(str(server.host) for server in servers)
        async with opened(f"redis+cluster://{hosts}/?prefix=own") as log, present(f"redis+cluster://{hosts}") as store:
            numbers = range(60)
            await log.finish([answer(number) for number in numbers])
            await store.renew(lease(), 0.0)
            joined = [Session(f"acme/{number}", "phone", 1, "gw-0") for number in numbers]
            await store.report("gw-0", 1, joined=joined, left=[], asserted=[], now=0.0)
            before = store.incarnation
            await servers[0].ask(("WAIT", 1, 5_000))
            servers[0].kill()
            twins = [claim(number, "twin") for number in numbers]
            with pytest.raises(Unavailable):
                await log.begin(twins, NOW)
            await until(works(lambda: log.begin(twins, NOW)), limit_s=20.0, what="the fail-over")
            known = await log.begin(twins, NOW)
            assert known == [Done(b"d" * 32, b"e" * 16, 7)] * len(numbers)
            found = await store.look_up([one.recipient_key for one in joined], 1.0)
            assert [list(one) for one in found] == [[one] for one in joined]
            assert (await store.renew(lease(now=1.0), 1.0)).lease is not None
            assert store.incarnation == before


async def test_a_cluster_without_a_part_says_so(tmp_path: Path) -> None:
    """A primary without a replica is killed: what lies elsewhere still works, and health tells of the loss."""
    async with cluster(tmp_path, replicas=0) as servers:
        hosts = ",".join(str(server.host) for server in servers)
        redis = connect("x", f"redis+cluster://{hosts}/?prefix=own")
        echo = Script("return ARGV[1]")
        keys = [redis.tag_within(range(first, first + 5_000)).encode() for first in (0, 5_461, 10_923)]
        await redis.ping()
        servers[1].kill()
        with pytest.raises(Unavailable):
            await redis.ping()
        for index, key in enumerate(keys):
            if index == 1:
                with pytest.raises(Unavailable):
                    await redis.run(echo, [Call([key], [index])])
            else:
                await until(works(partial(redis.run, echo, [Call([key], [7])])), limit_s=10.0)
        await servers[1].start()
        await until(works(redis.ping), limit_s=15.0, what="the part that came back")
        await redis.close()


async def test_a_moved_slot_is_followed(tmp_path: Path) -> None:
    """Slots that went to another server, or are on their way, are found where they are."""
    async with cluster(tmp_path, replicas=0) as servers:
        redis = connect("x", f"redis+cluster://{servers[2].host}/?prefix=own")
        key = redis.tag_within(range(100)).encode()
        write, read = Script("redis.call('SET', KEYS[1], ARGV[1])"), Script("return redis.call('GET', KEYS[1])")
        await redis.run(write, [Call([key], ["old"])])
        (slot,) = redis.slots_of([key])
        (source,) = await servers[0].ask(("CLUSTER", "MYID"))
        (target,) = await servers[1].ask(("CLUSTER", "MYID"))
        assert isinstance(source, bytes)
        assert isinstance(target, bytes)
        await servers[1].ask(("CLUSTER", "SETSLOT", slot, "IMPORTING", source))
        await servers[0].ask(("CLUSTER", "SETSLOT", slot, "MIGRATING", target))
        await servers[0].ask(("MIGRATE", "127.0.0.1", servers[1].port, key, 0, 5_000))
        assert await redis.run(read, [Call([key], [])]) == [b"old"]
        for server in (servers[1], servers[0], servers[2]):
            await server.ask(("CLUSTER", "SETSLOT", slot, "NODE", target))
        await redis.run(write, [Call([key], ["new"])])
        assert await redis.read([[key]]) == [[b"new"]]
        await redis.close()


async def test_sentinel_names_the_new_primary(tmp_path: Path) -> None:
    """The primary is killed, the sentinel makes its replica one, and the log follows."""
    async with watched(tmp_path, "heliograph") as (primary, replica, sentinel):
        url = f"redis+sentinel://127.0.0.1:1,{sentinel.host}/heliograph?prefix=own"
        async with opened(url) as log:
            await log.finish([answer(1)])
            await primary.ask(("WAIT", 1, 5_000))
            primary.kill()
            with pytest.raises(Unavailable):
                await log.begin([claim(1, "twin")], NOW)
            await until(works(lambda: log.begin([claim(1, "twin")], NOW)), limit_s=20.0, what="the fail-over")
            assert await log.begin([claim(1, "twin")], NOW) == [Done(b"d" * 32, b"e" * 16, 7)]
            assert (await replica.info("replication"))["role"] == "master"
        assert "does not know 'other'" in await refused(url.replace("/heliograph?", "/other?"))


async def test_a_primary_that_was_set_back_is_left(tmp_path: Path) -> None:
    """A primary that became a replica, without anybody's death, refuses writes: Sentinel is asked again."""
    async with (
        watched(tmp_path, "heliograph") as (_, replica, sentinel),
        opened(f"redis+sentinel://{sentinel.host}/heliograph?prefix=own") as log,
    ):
        await log.begin([claim(1)], NOW)

        async def is_primary() -> bool:
            # Refused while the sentinel does not know the replica well enough, and while it is at it.
            await Server(sentinel.host, Access()).run([("SENTINEL", "FAILOVER", "heliograph")])
            return (await replica.info("replication"))["role"] == "master"

        await until(is_primary, limit_s=20.0, what="the fail-over")
        await until(works(lambda: log.begin([claim(2)], NOW)), limit_s=20.0, what="the new primary")


# ---------------------------------------------------------------- presence


async def test_a_flush_changes_the_incarnation_and_nodes_assert(server: RedisServer) -> None:
    """What was lost is noticed at the next renewal, whoever takes it, and put back by assertion."""
    async with present(url_of(server)) as one, present(url_of(server)) as two:
        here = Session("acme/alice", "phone", 1, "gw-0")
        await one.renew(lease(), 0.0)
        await one.report("gw-0", 1, joined=[here], left=[], asserted=[], now=0.0)
        await two.renew(lease(now=1.0), 1.0)
        before = one.incarnation
        assert two.incarnation == before
        await server.ask(("FLUSHALL",))
        report = await one.report("gw-0", 1, joined=[], left=[], asserted=[here], now=2.0)
        assert not report.accepted
        for store, now in ((one, 3.0), (two, 4.0)):
            assert (await store.renew(lease(now=now), now)).lease is not None
        assert one.incarnation == two.incarnation != before
        report = await two.report("gw-0", 1, joined=[], left=[], asserted=[here], now=5.0)
        assert list(report.restored) == [here]
        assert [list(found) for found in await one.look_up(["acme/alice"], 5.0)] == [[here]]


async def test_a_part_that_lost_everything_is_put_back(tmp_path: Path) -> None:
    """One server of a Cluster comes back empty: the incarnation is another, and exactly what it had is restored."""
    async with cluster(tmp_path, replicas=0) as servers:
        hosts = ",".join(str(server.host) for server in servers)
        async with present(f"redis+cluster://{hosts}/?prefix=own") as store:
            await store.renew(lease(), 0.0)
            joined = [Session(f"acme/{number}", "phone", 1, "gw-0") for number in range(60)]
            keys = [one.recipient_key for one in joined]
            await store.report("gw-0", 1, joined=joined, left=[], asserted=[], now=0.0)
            before = store.incarnation
            servers[1].kill()
            with pytest.raises(Unavailable):
                await store.renew(lease(now=1.0), 1.0)
            await servers[1].start()
            await until(works(lambda: store.renew(lease(now=2.0), 2.0)), limit_s=20.0, what="the part that came back")
            assert store.incarnation != before
            found = await store.look_up(keys, 2.0)
            lost = [one for one, sessions in zip(joined, found, strict=True) if not sessions]
            assert 0 < len(lost) < len(joined)
            report = await store.report("gw-0", 1, joined=[], left=[], asserted=joined, now=2.0)
            assert sorted(one.recipient_key for one in report.restored) == sorted(one.recipient_key for one in lost)
            assert [list(sessions) for sessions in await store.look_up(keys, 2.0)] == [[one] for one in joined]


async def test_processes_with_other_clocks_share_leases(server: RedisServer) -> None:
    """Monotonic clocks of two machines have nothing in common; the lease ends for both at once."""
    here = Session("acme/alice", "phone", 1, "gw-0")
    clocks = ManualClock(monotonic=5.0), ManualClock(monotonic=900_000.0)
    async with present(url_of(server), clocks[0]) as one, present(url_of(server), clocks[1]) as two:
        await one.renew(lease(now=5.0), 5.0)
        await one.report("gw-0", 1, joined=[here], left=[], asserted=[], now=5.0)
        # Both measured their distance to the server's clock to some milliseconds.
        for after, found in ((0.1, [here]), (LEASE - 1.0, [here]), (LEASE + 1.0, [])):
            assert [list(sessions) for sessions in await two.look_up(["acme/alice"], 900_000.0 + after)] == [found]
        (node,) = await two.nodes(900_001.0)
        assert node.expires == pytest.approx(900_000.0 + LEASE, abs=1.0)


async def test_a_clock_set_back_ends_leases(server: RedisServer) -> None:
    """A lease that begins in the future would last for hours: it counts as over, and a new epoch is taken."""
    here = Session("acme/alice", "phone", 1, "gw-0")
    async with present(url_of(server)) as store:
        await store.renew(lease(now=3_600.0), 3_600.0)
        await store.report("gw-0", 1, joined=[here], left=[], asserted=[], now=3_600.0)
        assert [list(sessions) for sessions in await store.look_up(["acme/alice"], 0.0)] == [[]]
        assert (await store.renew(lease(), 0.0)).lease is None
        assert (await store.renew(lease(epoch=2), 0.0)).lease is not None


async def test_an_entry_of_somebody_else_is_dropped_and_said(server: RedisServer) -> None:
    """A value that lies under another recipient's key leads nobody there: nothing is found, and an error is logged."""
    here = Session("acme/alice", "phone", 1, "gw-0")
    async with present(url_of(server)) as store:
        await store.renew(lease(), 0.0)
        await store.report("gw-0", 1, joined=[here], left=[], asserted=[], now=0.0)
        (key,) = [key for key in await keys_of(server) if b"alice" in key]
        await server.ask(("COPY", key, key.replace(b"alice", b"bob")))
        with capture_logs() as lines:
            found = await store.look_up(["acme/alice", "acme/bob"], 1.0)
        assert [list(sessions) for sessions in found] == [[here], []]
        expected = {"event": "presence_of_another", "asked": "acme/bob", "found": "acme/alice", "log_level": "error"}
        assert [{**line, **expected} == line for line in lines] == [True]


async def test_presence_needs_its_server_at_the_start(server: RedisServer) -> None:
    """Without Redis presence knows nobody: the start says so in one line."""
    server.kill()
    with pytest.raises(StartError, match=r"^store_url: redis://.*Connection refused$"):
        async with present(url_of(server)):
            pass
