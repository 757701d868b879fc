"""A gateway node as a whole, over real sockets: WebSockets on one side, a link, presence and inbox on the other."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import pytest

from heliograph.gateway.v1 import gateway_service_pb2 as pb
from heliograph.type.v1.notification_pb2 import MarkKind, NotificationRef, NotificationState
from mesh.errors import InvalidArgument, Unavailable
from tests.support.device import Form, connected
from tests.support.nodes import Node, delivery_of
from tests.support.sessions import id_of
from tests.support.wait import until

ALICE = "acme/alice"


@pytest.fixture
def node(run_dir: Path, tmp_path: Path) -> Node:
    """A node that does not run yet."""
    return Node(run_dir, tmp_path)


@pytest.mark.parametrize("form", ["proto", "json"])
async def test_a_notification_goes_through_and_its_ack_comes_home(node: Node, form: Form) -> None:
    """Offered over the link, written, acked, stored, confirmed."""
    async with node.running(), node.link() as link, node.device(form=form) as device:
        result = await link.result(link.offer(delivery_of(id_of(1), ALICE, title="Deployed")))
        assert list(result.refusals) == []
        await device.has(id_of(1))
        assert device.titles == ["Deployed"]
        number = await device.mark(MarkKind.MARK_KIND_RECEIVED, id_of(1))
        await device.has_confirmed(number)
        mark = link.marks[0]
        assert (mark.recipient_key, mark.device_id, mark.refs[0].notification_id) == (ALICE, "phone", id_of(1))


async def test_a_session_is_in_presence_before_its_inbox_is_read(node: Node) -> None:
    """And it is gone from there when it has ended."""
    async with node.running():
        async with node.device():
            assert node.inbox.replays
            entries = await node.present(ALICE)
            assert [(entry.device_id, entry.node_id) for entry in entries] == [("phone", "gw-test-0")]

        async def gone() -> bool:
            return not await node.present(ALICE)

        await until(gone, 5.0, "presence has forgotten the session")


async def test_what_lies_in_the_inbox_is_replayed(node: Node) -> None:
    """The client gets it before the checkpoint."""
    node.inbox.of(ALICE).write(id_of(1), 1, time.time())
    async with node.running(), node.device() as device:
        assert device.ids == [id_of(1)]
        assert device.checkpoints[0].item_count == 1


async def test_who_is_not_here_is_refused_by_name(node: Node) -> None:
    """The others get theirs; a delivery for nobody here is refused as a whole."""
    async with node.running(), node.link() as link, node.device() as device:
        result = await link.result(
            link.offer(delivery_of(id_of(1), ALICE, "acme/bob"), delivery_of(id_of(2), "acme/carol"))
        )
        assert [(one.delivery_index, one.kind, list(one.recipient_keys)) for one in result.refusals] == [
            (0, pb.REFUSAL_KIND_ABSENT, ["acme/bob"]),
            (1, pb.REFUSAL_KIND_ABSENT, []),
        ]
        await device.has(id_of(1))


async def test_a_known_batch_is_skipped_after_a_break(node: Node) -> None:
    """The next link is told what arrived; a new process of the same name begins anew."""
    async with node.running(), node.device() as device:
        async with node.link() as link:
            await link.result(link.offer(delivery_of(id_of(1), ALICE)))
        async with node.link() as link:
            assert link.ready.taken_sequence == 1
            assert (link.ready.window_count, link.ready.node_id) == (4, "gw-test-0")
            await link.result(link.offer(delivery_of(id_of(2), ALICE), sequence=1))
            await link.result(link.offer(delivery_of(id_of(3), ALICE), sequence=2))
        async with node.link(epoch=2) as link:
            assert link.ready.taken_sequence == 0
        assert device.ids == [id_of(1), id_of(3)]


@pytest.mark.parametrize("opening", [{"node_id": "gw-other-0"}, {"node_epoch": 7}])
async def test_a_link_for_another_node_or_epoch_is_refused(node: Node, opening: dict[str, Any]) -> None:
    """Whoever means another process must not hand over anything here."""
    async with node.running(), node.link(**opening) as link:
        assert (await link.end()).reason == "NODE_MISMATCH"


async def test_marks_are_sent_again_over_another_link_when_theirs_breaks(node: Node) -> None:
    """Nothing is confirmed before it is stored."""
    async with node.running(), node.device() as device:
        async with node.link(stores=False) as link:
            await link.result(link.offer(delivery_of(id_of(1), ALICE)))
            await device.has(id_of(1))
            number = await device.mark(MarkKind.MARK_KIND_SEEN, id_of(1))
            await until(lambda: bool(link.marks), 5.0, "the mark has arrived")
        assert device.confirmed < number
        async with node.link("another") as link:
            await device.has_confirmed(number)
            assert link.marks[0].kind == MarkKind.MARK_KIND_SEEN
            assert link.mark_batches[0].sequence == 1


async def test_marks_are_stored_by_calls_when_there_is_no_link(node: Node) -> None:
    """After two seconds without any."""
    async with node.running():
        node.inbox.of(ALICE).write(id_of(1), 1, time.time())
        async with node.device() as device:
            number = await device.mark(MarkKind.MARK_KIND_READ, id_of(1))
            await device.has_confirmed(number)
            assert [mark.kind for mark in node.inbox.marks] == [MarkKind.MARK_KIND_READ]


async def test_changes_are_told_to_the_other_sessions(node: Node) -> None:
    """The device that said it is not told again."""
    async with node.running(), node.link() as link, node.device() as phone, node.device(device_id="tablet") as tablet:
        change = pb.Change(
            recipient_key=ALICE,
            refs=[NotificationRef(notification_id=id_of(1), revision=1)],
            state=NotificationState.NOTIFICATION_STATE_READ,
            origin_device_id="phone",
        )
        change.unread.unread_count = 3
        link.send(changes=pb.ChangeBatch(changes=[change]))
        await tablet.is_told(id_of(1), NotificationState.NOTIFICATION_STATE_READ)
        await until(lambda: tablet.unread == 3, 5.0, "the number has come")
        assert phone.states(id_of(1)) == []


async def test_a_device_has_one_session_and_the_newest_wins(node: Node) -> None:
    """The older one is told not to come back."""
    async with node.running(), node.device() as older, node.device() as newer:
        assert await older.is_closed() == 4500
        assert newer.closed is None
        assert len(await node.present(ALICE)) == 1


async def test_a_device_that_connected_elsewhere_is_closed_here(node: Node) -> None:
    """Presence tells it with the next renewal."""
    async with node.running("--lease-renewal=0.2"), node.device() as device:
        await node.connect_elsewhere(ALICE, "phone")
        assert await device.is_closed() == 4500


async def test_an_absent_presence_delays_nobody_for_long(node: Node) -> None:
    """The inbox is read anyway; the session is registered when presence comes, and read again."""
    async with node.running("--peer-timeout=0.5", with_presence=False), node.device() as device:
        node.inbox.of(ALICE).write(id_of(1), 1, time.time())
        async with node.serving_presence():
            await device.has(id_of(1))
            assert len(await node.present(ALICE)) == 1


async def test_an_inbox_that_does_not_answer_leaves_sessions_open(node: Node) -> None:
    """Live notifications go on; the replay comes when the inbox is back."""
    node.inbox.refused = Unavailable("away", reason="STORE_UNAVAILABLE", retry_delay=0.1)
    async with node.running(), node.link() as link, connected(node.url) as device:
        await device.hello(node.token(), "phone")
        await until(lambda: bool(node.inbox.replays), 5.0, "a replay was tried")
        await link.result(link.offer(delivery_of(id_of(1), ALICE)))
        await device.has(id_of(1))
        assert device.checkpoints == []
        node.inbox.refused = None
        node.inbox.of(ALICE).write(id_of(1), 1, time.time())
        node.inbox.of(ALICE).write(id_of(2), 1, time.time())
        await device.ready()
        assert device.ids == [id_of(1), id_of(2)]


@pytest.mark.parametrize(
    ("token", "code", "reason"),
    [("", 4501, "TOKEN_INVALID"), ("producer", 4501, "TOKEN_INVALID"), ("old", 4003, "TOKEN_EXPIRED")],
)
async def test_a_bad_token_gets_a_typed_refusal_and_a_code(node: Node, token: str, code: int, reason: str) -> None:
    """Nothing is registered for it."""
    async with node.running(), connected(node.url) as device:
        tokens = {"producer": node.token(role="producer"), "old": node.token(lifetime=-60.0)}
        await device.hello(tokens.get(token, ""), "phone")
        assert await device.is_closed() == code
        assert device.refusals == [reason]
        assert await node.present(ALICE) == []


async def test_a_full_node_says_when_to_come_back(node: Node) -> None:
    """The one session too many gets a goodbye with a delay, and its code."""
    async with node.running("--session-limit=1"), node.device(), connected(node.url) as device:
        await device.hello(node.token("bob"), "phone")
        assert await device.is_closed() == 4004
        away = next(frame.go_away for frame in device.frames if frame.HasField("go_away"))
        assert (away.reason, away.reconnect) == ("OVERLOADED", True)
        assert away.HasField("reconnect_delay")


async def test_a_drain_says_goodbye_stores_the_last_acks_and_leaves_presence(node: Node) -> None:
    """Sessions are told and get what is live until they have left; then links refuse, marks are stored, all is gone."""
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(node.running("--drain-grace=1.0"))
        link = await stack.enter_async_context(node.link(stores=False))
        device = await stack.enter_async_context(node.device())
        await link.result(link.offer(delivery_of(id_of(1), ALICE)))
        await device.has(id_of(1))
        number = await device.mark(MarkKind.MARK_KIND_RECEIVED, id_of(1))
        await until(lambda: bool(link.mark_batches), 5.0, "the mark has arrived")
        node.app.request_stop("drain")
        await until(lambda: any(frame.HasField("go_away") for frame in device.frames), 5.0, "the session is told")
        assert not (await link.result(link.offer(delivery_of(id_of(2), ALICE)))).refusals
        await device.has(id_of(2))
        link.send(stored=pb.MarksStored(sequence=link.mark_batches[-1].sequence))
        await device.has_confirmed(number)
        assert not link.drained
        await device.mark(MarkKind.MARK_KIND_RECEIVED, id_of(2))
        assert await device.is_closed() == 4001
        assert any(frame.go_away.reason == "DRAINING" for frame in device.frames if frame.HasField("go_away"))
        await until(lambda: link.drained, 5.0, "the link is drained")
        result = await link.result(link.offer(delivery_of(id_of(3), ALICE)))
        assert [one.kind for one in result.refusals] == [pb.REFUSAL_KIND_DRAINING]
        await until(lambda: len(link.mark_batches) == 2, 5.0, "the last mark has arrived")
        link.send(stored=pb.MarksStored(sequence=link.mark_batches[-1].sequence))

        async def gone() -> bool:
            return not await node.present(ALICE)

        await until(gone, 5.0, "presence has forgotten the session")


async def test_a_device_that_does_not_read_is_refused_and_caught_up(node: Node) -> None:
    """Its neighbour notices nothing; when it reads again the inbox brings what was not kept."""
    body = "x" * 15_000
    inbox = node.inbox.of("acme/slow")
    async with (
        node.running(),
        node.link() as link,
        node.device("healthy") as healthy,
        connected(node.url, narrow=True) as slow,
    ):
        await slow.hello(node.token("slow"), "phone")
        await slow.ready()
        slow.stop_reading()
        kinds: list[int] = []
        count = 0
        while pb.REFUSAL_KIND_BEHIND not in kinds and count < 2_000:
            count += 1
            inbox.write(id_of(count), 1, time.time())
            result = await link.result(link.offer(delivery_of(id_of(count), "acme/slow", "acme/healthy", title=body)))
            kinds = [one.kind for one in result.refusals]
        assert pb.REFUSAL_KIND_BEHIND in kinds
        await healthy.has(id_of(count))
        slow.go_on_reading()
        await slow.has(*(id_of(number) for number in range(1, count + 1)))


async def test_a_restart_finds_its_socket_free(node: Node) -> None:
    """What a node leaves behind does not stop the next one."""
    for _ in range(2):
        async with node.running(), node.device() as device:
            assert device.closed is None
        await asyncio.sleep(0)


async def test_a_cursor_that_the_inbox_refuses_is_dropped(node: Node) -> None:
    """The client is told, and gets the whole window."""
    node.inbox.of(ALICE).write(id_of(1), 1, time.time())
    node.inbox.refused = InvalidArgument("foreign", reason="CURSOR_INVALID")
    async with node.running(), connected(node.url) as device:
        await device.hello(node.token(), "phone", cursor="1.elsewhere")
        await until(lambda: bool(node.inbox.replays), 5.0, "a replay was tried")
        node.inbox.refused = None
        await device.ready()
        assert device.ids == [id_of(1)]
        assert not node.inbox.replays[-1].HasField("cursor")
