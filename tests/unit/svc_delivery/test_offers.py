"""From durable rows to the links: one look-up for all that waits, and bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from heliograph.gateway.v1 import gateway_service_pb2 as pb
from mesh.errors import Unavailable
from mesh.ids import from_text
from mesh.telemetry import Telemetry
from svc_delivery.intake import Offer
from svc_delivery.metrics import Metrics
from svc_delivery.offers import Offers
from svc_delivery.settled import Settled
from tests.support.delivering import InProcessNodes, InProcessPresence
from tests.support.dispatching import id_of, make_envelope
from tests.support.far_ends import running
from tests.support.wait import until


class Case:
    """A queue between an in-process presence and in-process nodes."""

    def __init__(self, *, limit: int = 50_000, byte_limit: int = 1 << 20) -> None:
        self.presence = InProcessPresence()
        self.nodes = InProcessNodes()
        self.settled = Settled(keep=60.0)
        self.telemetry = Telemetry("delivery")
        self.offers = Offers(
            presence=self.presence,
            nodes=self.nodes,
            settled=self.settled,
            metrics=Metrics(self.telemetry),
            limit=limit,
            byte_limit=byte_limit,
            pauses=(0.0,),
        )

    def count(self, name: str) -> float:
        """A metric."""
        return self.telemetry.registry.get_sample_value(f"heliograph_delivery_{name}") or 0.0

    def is_settled(self, key: str, number: int) -> bool:
        """Whether this delivery needs no further look."""
        return (key, from_text(id_of(number))) in self.settled

    async def handed_on(self) -> None:
        """Waits until nothing waits."""
        await until(lambda: self.offers.waiting == 0, what="everything handed on")


@pytest.fixture
async def case() -> AsyncIterator[Case]:
    """A queue that is running."""
    made = Case()
    async with running(made.offers.run):
        yield made


def offer(number: int, *keys: str, size: int = 0) -> Offer:
    """Event `number` for recipients."""
    return Offer(make_envelope(number, content=b"x" * size), from_text(id_of(number)), keys)


def offered(nodes: InProcessNodes) -> list[tuple[str, str, Sequence[str]]]:
    """What was offered: node, event, recipients."""
    return [(node_id, envelope.event_id, keys) for node_id, envelope, keys in nodes.offered]


async def test_recipients_are_offered_where_they_are(case: Case) -> None:
    """Content once a node, recipients packed; on two nodes, to both."""
    case.presence.where = {"acme/a": ("n1",), "acme/b": ("n2", "n1"), "acme/c": ("n1",)}
    case.offers.add([offer(1, "acme/a", "acme/b", "acme/c")])
    await case.handed_on()
    assert sorted(offered(case.nodes)) == [
        ("n1", id_of(1), ["acme/a", "acme/b", "acme/c"]),
        ("n2", id_of(1), ["acme/b"]),
    ]
    assert not case.is_settled("acme/a", 1)


async def test_who_is_nowhere_is_settled(case: Case) -> None:
    """Whoever comes later reads the row: a follow-up has nothing to look for."""
    case.presence.where = {"acme/a": ("n1",)}
    case.offers.add([offer(1, "acme/a", "acme/b")])
    await case.handed_on()
    assert case.is_settled("acme/b", 1)
    assert not case.is_settled("acme/a", 1)
    assert case.count("absent_total") == 1


async def test_all_that_waits_is_one_look_up(case: Case) -> None:
    """While one look-up is under way the next one collects; each recipient is asked about once."""
    case.presence.gate.clear()
    case.offers.add([offer(0, "acme/a")])
    await until(lambda: len(case.presence.looked_up) == 1)
    for number in range(1, 50):
        case.offers.add([offer(number, "acme/a", f"acme/r{number % 7}")])
    case.offers.offer([pb.Change(recipient_key="acme/a"), pb.Change(recipient_key="acme/z")])
    case.presence.gate.set()
    await case.handed_on()
    assert len(case.presence.looked_up) == 2
    assert sorted(case.presence.looked_up[1]) == sorted(["acme/a", "acme/z", *[f"acme/r{one}" for one in range(7)]])


async def test_the_order_of_offers_is_kept(case: Case) -> None:
    """Over many look-ups: what was added first is offered first."""
    case.presence.where = {"acme/a": ("n1",)}
    for number in range(300):
        case.offers.add([offer(number, "acme/a")])
        if number % 3 == 0:
            await asyncio.sleep(0)
    await case.handed_on()
    assert [event_id for _, event_id, _ in offered(case.nodes)] == [id_of(number) for number in range(300)]


async def test_a_look_up_stays_within_what_presence_takes(case: Case) -> None:
    """At most 5,000 keys a call, also when one offer has more."""
    case.presence.gate.clear()
    case.offers.add([offer(0, "acme/first")])
    await until(lambda: len(case.presence.looked_up) == 1)
    for number in range(1, 8):
        case.offers.add([offer(number, *[f"acme/r{number}-{index}" for index in range(2_000)])])
    case.offers.add([offer(9, *[f"acme/x{index}" for index in range(12_000)])])
    case.presence.gate.set()
    await case.handed_on()
    assert max(len(keys) for keys in case.presence.looked_up) <= 5_000
    assert len({key for keys in case.presence.looked_up for key in keys}) == 1 + 14_000 + 12_000


async def test_a_presence_that_does_not_answer_offers_nothing_and_settles_nothing(case: Case) -> None:
    """That is not "absent": the follow-up will decide. The queue goes on when presence does."""
    case.presence.where = {"acme/a": ("n1",)}
    case.presence.failure = Unavailable("no presence", reason="PEER_UNAVAILABLE")
    case.offers.add([offer(1, "acme/a", "acme/b")])
    await case.handed_on()
    assert case.nodes.offered == []
    assert not case.is_settled("acme/b", 1)
    assert (case.count("presence_failures_total"), case.count("not_offered_total")) == (2, 2)
    assert case.nodes.missed_count == 1
    case.presence.failure = None
    case.offers.add([offer(2, "acme/a")])
    await case.handed_on()
    assert offered(case.nodes) == [("n1", id_of(2), ["acme/a"])]
    assert case.nodes.missed_count == 1


async def test_a_presence_that_comes_back_is_asked_again(case: Case) -> None:
    """What was on its way when presence failed is offered with the next answer, not with the follow-up."""
    case.presence.where = {"acme/a": ("n1",)}
    case.presence.failure = Unavailable("no presence", reason="PEER_UNAVAILABLE")
    case.presence.gate.clear()
    case.offers.add([offer(1, "acme/a")])
    await until(lambda: len(case.presence.looked_up) == 1)
    case.presence.fail_times = 1
    case.presence.gate.set()
    await case.handed_on()
    assert offered(case.nodes) == [("n1", id_of(1), ["acme/a"])]
    assert (case.count("presence_failures_total"), case.count("not_offered_total")) == (1, 0)


async def test_what_a_node_does_not_take_is_counted(case: Case) -> None:
    """The row stays; nobody waits for the node."""
    case.presence.where = {"acme/a": ("n1", "n2"), "acme/b": ("n1",)}
    case.nodes.closed = {"n1"}
    case.offers.add([offer(1, "acme/a", "acme/b")])
    case.offers.offer([pb.Change(recipient_key="acme/b")])
    await case.handed_on()
    assert offered(case.nodes) == [("n2", id_of(1), ["acme/a"])]
    assert case.count("not_offered_total") == 3
    assert not case.is_settled("acme/b", 1)


async def test_changes_go_to_every_node_of_their_recipient(case: Case) -> None:
    """Also to the one that it came from: the node knows the device that needs no telling."""
    case.presence.where = {"acme/a": ("n1", "n2")}
    change = pb.Change(recipient_key="acme/a", origin_device_id="phone")
    case.offers.offer([change, pb.Change(recipient_key="acme/nobody")])
    await case.handed_on()
    assert case.nodes.changed == [("n1", change), ("n2", change)]


async def test_the_queue_is_bounded() -> None:
    """Recipients, changes and bytes that do not fit are counted; what fits behind them is taken."""
    case = Case(limit=10, byte_limit=1_000)
    case.offers.add([offer(1, *["acme/a"] * 8), offer(2, *["acme/a"] * 8), offer(3, "acme/a")])
    case.offers.offer([pb.Change(recipient_key="acme/a")] * 3)
    assert (case.offers.waiting, case.offers.is_crowded) == (10, True)
    assert case.count("not_offered_total") == 8 + 2
    case.presence.where = {"acme/a": ("n1",)}
    async with running(case.offers.run):
        await case.handed_on()
        assert [event_id for _, event_id, _ in offered(case.nodes)] == [id_of(1), id_of(3)]
        assert (case.offers.waiting, case.offers.is_crowded) == (0, False)
        case.presence.gate.clear()
        case.offers.add([offer(4, "acme/a")])
        await until(lambda: len(case.presence.looked_up) == 2)
        case.offers.add([offer(5, "acme/a", size=2_000), offer(6, "acme/a")])
        case.presence.gate.set()
        await case.handed_on()
    assert [event_id for _, event_id, _ in offered(case.nodes)][2:] == [id_of(4), id_of(5)]
