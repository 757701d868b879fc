"""What every presence store promises; see `svc_presence.ports.PresenceStore`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from svc_presence.ports import NodeLease, PresenceStore, Session
from tests.support.backends import presence_backends

LEASE = 15.0


@pytest.fixture(params=presence_backends())
async def store(request: pytest.FixtureRequest) -> AsyncIterator[PresenceStore]:
    """An empty store of each kind."""
    async with request.param() as opened:
        yield opened


def lease(node_id: str = "gw-a-0", epoch: int = 1, now: float = 0.0) -> NodeLease:
    """A lease taken now."""
    return NodeLease(node_id, epoch, False, 0, "127.0.0.1:7420", now + LEASE)


def session(node_id: str = "gw-a-0", number: int = 1, *, key: str = "acme/alice", device: str = "phone") -> Session:
    """One session."""
    return Session(key, device, number, node_id)


async def join(store: PresenceStore, one: Session, *, epoch: int = 1, now: float = 0.0) -> None:
    """Reports one joined session."""
    report = await store.report(one.node_id, epoch, joined=[one], left=[], asserted=[], now=now)
    assert report.accepted


async def found(store: PresenceStore, now: float = 0.0, key: str = "acme/alice") -> set[Session]:
    """Where the recipient is."""
    return set((await store.look_up([key], now))[0])


async def test_a_joined_session_is_found_and_a_left_one_is_not(store: PresenceStore) -> None:
    """Join, look up, leave, look up."""
    await store.renew(lease(), 0.0)
    await join(store, session())
    assert await found(store) == {session()}
    await store.report("gw-a-0", 1, joined=[], left=[session()], asserted=[], now=1.0)
    assert await found(store) == set()


async def test_a_look_up_answers_in_the_order_of_the_keys(store: PresenceStore) -> None:
    """One list a key, empty for who is nowhere."""
    await store.renew(lease(), 0.0)
    await join(store, session(key="acme/bob"))
    assert [list(one) for one in await store.look_up(["acme/nobody", "acme/bob"], 0.0)] == [
        [],
        [session(key="acme/bob")],
    ]


async def test_an_entry_counts_only_while_its_lease_lives(store: PresenceStore) -> None:
    """When the lease runs out the sessions and the node are gone for everybody who asks."""
    await store.renew(lease(), 0.0)
    await join(store, session())
    assert await found(store, LEASE - 0.1) == {session()}
    assert await found(store, LEASE) == set()
    assert list(await store.nodes(LEASE)) == []


async def test_a_renewal_keeps_entries_alive(store: PresenceStore) -> None:
    """Renewing in time moves the end of the lease."""
    await store.renew(lease(), 0.0)
    await join(store, session())
    assert (await store.renew(lease(now=10.0), 10.0)).lease is not None
    assert await found(store, 20.0) == {session()}


async def test_an_older_epoch_is_refused(store: PresenceStore) -> None:
    """A process that woke up late neither renews nor writes."""
    await store.renew(lease(epoch=5), 0.0)
    assert (await store.renew(lease(epoch=4), 1.0)).lease is None
    report = await store.report("gw-a-0", 4, joined=[session()], left=[], asserted=[], now=1.0)
    assert not report.accepted
    assert await found(store, 1.0) == set()


async def test_a_run_out_lease_is_not_taken_again_under_its_epoch(store: PresenceStore) -> None:
    """A node that lost its lease needs a new epoch."""
    await store.renew(lease(epoch=5), 0.0)
    assert (await store.renew(lease(epoch=5, now=LEASE), LEASE)).lease is None
    assert (await store.renew(lease(epoch=6, now=LEASE), LEASE)).lease is not None


async def test_a_report_needs_a_lease(store: PresenceStore) -> None:
    """Without a live lease nothing is written."""
    report = await store.report("gw-a-0", 1, joined=[session()], left=[], asserted=[], now=0.0)
    assert not report.accepted


async def test_entries_of_an_ended_epoch_do_not_count_until_asserted(store: PresenceStore) -> None:
    """After a new epoch the sessions come back by assertion, and are answered as restored."""
    await store.renew(lease(epoch=1), 0.0)
    await join(store, session(), epoch=1)
    await store.renew(lease(epoch=2, now=20.0), 20.0)
    assert await found(store, 20.0) == set()
    report = await store.report("gw-a-0", 2, joined=[], left=[], asserted=[session()], now=20.0)
    assert list(report.restored) == [session()]
    assert await found(store, 20.0) == {session()}


async def test_asserting_what_stands_restores_nothing(store: PresenceStore) -> None:
    """The slow round of a healthy node changes nothing."""
    await store.renew(lease(), 0.0)
    await join(store, session())
    report = await store.report("gw-a-0", 1, joined=[], left=[], asserted=[session()], now=1.0)
    assert (list(report.restored), list(report.superseded)) == ([], [])


async def test_a_newer_session_of_a_device_supersedes_the_older(store: PresenceStore) -> None:
    """The newest connect wins; the older node hears of it at its renewals for one lease's time."""
    await store.renew(lease("gw-a-0"), 0.0)
    await store.renew(lease("gw-b-0"), 0.0)
    await join(store, session("gw-a-0", 1))
    await join(store, session("gw-b-0", 2), now=1.0)
    assert await found(store, 1.0) == {session("gw-b-0", 2)}
    for now in (2.0, 7.0):
        assert list((await store.renew(lease("gw-a-0", now=now), now)).superseded) == [session("gw-a-0", 1)]
    assert list((await store.renew(lease("gw-a-0", now=17.0), 17.0)).superseded) == []


async def test_an_older_session_does_not_replace_a_newer(store: PresenceStore) -> None:
    """A late report of an old connect is answered as superseded."""
    await store.renew(lease("gw-a-0"), 0.0)
    await store.renew(lease("gw-b-0"), 0.0)
    await join(store, session("gw-b-0", 2))
    report = await store.report("gw-a-0", 1, joined=[session("gw-a-0", 1)], left=[], asserted=[], now=1.0)
    assert list(report.superseded) == [session("gw-a-0", 1)]
    assert await found(store, 1.0) == {session("gw-b-0", 2)}


async def test_a_session_of_a_dead_node_yields_to_any(store: PresenceStore) -> None:
    """A larger connect number does not count once its node's lease is over."""
    await store.renew(lease("gw-b-0"), 0.0)
    await join(store, session("gw-b-0", 9))
    await store.renew(lease("gw-a-0", now=20.0), 20.0)
    await join(store, session("gw-a-0", 8), now=20.0)
    assert await found(store, 20.0) == {session("gw-a-0", 8)}


async def test_a_replaced_session_on_the_same_node_is_answered_at_once(store: PresenceStore) -> None:
    """A device that reconnects to its node supersedes its old session there."""
    await store.renew(lease(), 0.0)
    await join(store, session(number=1))
    report = await store.report("gw-a-0", 1, joined=[session(number=2)], left=[], asserted=[], now=1.0)
    assert list(report.superseded) == [session(number=1)]
    assert await found(store, 1.0) == {session(number=2)}


async def test_a_late_left_of_an_old_session_changes_nothing(store: PresenceStore) -> None:
    """Only the very session that it names is removed."""
    await store.renew(lease("gw-a-0"), 0.0)
    await store.renew(lease("gw-b-0"), 0.0)
    await join(store, session("gw-a-0", 1))
    await join(store, session("gw-b-0", 2), now=1.0)
    await store.report("gw-a-0", 1, joined=[], left=[session("gw-a-0", 1)], asserted=[], now=2.0)
    assert await found(store, 2.0) == {session("gw-b-0", 2)}


async def test_devices_of_one_recipient_stand_side_by_side(store: PresenceStore) -> None:
    """Two devices are two sessions."""
    await store.renew(lease(), 0.0)
    await join(store, session(device="phone"))
    await join(store, session(device="desk", number=2))
    assert await found(store) == {session(device="phone"), session(device="desk", number=2)}


async def test_nodes_are_listed_in_order_with_what_they_said_last(store: PresenceStore) -> None:
    """Node id order, the newest renewal's data."""
    await store.renew(lease("gw-b-0"), 0.0)
    await store.renew(lease("gw-a-0"), 0.0)
    draining = NodeLease("gw-b-0", 1, True, 4, "127.0.0.1:7421", 20.0)
    await store.renew(draining, 5.0)
    assert list(await store.nodes(5.0)) == [lease("gw-a-0"), draining]


async def test_a_sweep_leaves_what_may_count_again(store: PresenceStore) -> None:
    """Sessions of a node that is gone for good never come back, those of others stay."""
    await store.renew(lease("gw-a-0"), 0.0)
    await join(store, session("gw-a-0"))
    assert await store.sweep(LEASE + 1.0) == 0
    await store.renew(lease("gw-b-0", now=10_000.0), 10_000.0)
    await join(store, session("gw-b-0", key="acme/bob"), now=10_000.0)
    await store.sweep(10_000.0)
    assert await found(store, 10_000.0) == set()
    assert await found(store, 10_000.0, "acme/bob") == {session("gw-b-0", key="acme/bob")}


async def test_a_node_that_is_long_gone_is_forgotten(store: PresenceStore) -> None:
    """Its name may be used again from any epoch on."""
    await store.renew(lease("gw-a-0", epoch=9), 0.0)
    await store.sweep(10_000.0)
    await store.renew(lease("gw-b-0", now=10_000.0), 10_000.0)
    assert (await store.renew(lease("gw-a-0", epoch=1, now=10_001.0), 10_001.0)).lease is not None


async def test_one_report_may_hold_many_recipients(store: PresenceStore) -> None:
    """What a report says of many is found for each of them, in one look-up."""
    await store.renew(lease(), 0.0)
    many = [session(key=f"acme/r{number}", number=number + 1) for number in range(300)]
    report = await store.report("gw-a-0", 1, joined=many, left=[], asserted=many[:10], now=0.0)
    assert (report.accepted, list(report.restored), list(report.superseded)) == (True, [], [])
    await store.report("gw-a-0", 1, joined=[], left=many[::2], asserted=[], now=1.0)
    looked_up = await store.look_up([one.recipient_key for one in many], 1.0)
    assert [list(one) for one in looked_up] == [[] if index % 2 == 0 else [many[index]] for index in range(300)]


async def test_an_empty_report_says_whether_the_lease_lives(store: PresenceStore) -> None:
    """A node may ask with nothing to tell."""
    await store.renew(lease(), 0.0)
    for now, accepted in ((1.0, True), (LEASE, False)):
        report = await store.report("gw-a-0", 1, joined=[], left=[], asserted=[], now=now)
        assert report.accepted is accepted


async def test_large_numbers_stay_what_they_are(store: PresenceStore) -> None:
    """Epochs and connect numbers use all their 63 bits."""
    large = (1 << 63) - 1
    await store.renew(lease(epoch=large - 1), 0.0)
    assert (await store.renew(lease(epoch=large - 2), 0.0)).lease is None
    await join(store, session(number=large - 1), epoch=large - 1)
    report = await store.report("gw-a-0", large - 1, joined=[session(number=large - 2)], left=[], asserted=[], now=0.0)
    assert list(report.superseded) == [session(number=large - 2)]
    assert await found(store) == {session(number=large - 1)}
    assert [node.epoch for node in await store.nodes(0.0)] == [large - 1]


async def test_the_incarnation_does_not_change_by_itself(store: PresenceStore) -> None:
    """It changes only when the store lost what it knew."""
    before = store.incarnation
    await store.renew(lease(), 0.0)
    await store.sweep(1.0)
    assert store.incarnation == before != ""
