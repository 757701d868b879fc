"""Clients, producers and services of the contract's baseline, and those of today, understand each other both ways."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from heliograph.prefs.v1 import prefs_service_pb2, prefs_service_pb2_grpc, topic_service_pb2, topic_service_pb2_grpc
from heliograph.type.v1 import notification_pb2
from heliograph_cli.envoys import is_ready
from heliograph_client import Publisher, Subscriber, Tls
from mesh.envoy import certs
from mesh.envoy.layout import Layout
from proto.breaking import baseline
from tests.support import old_peer
from tests.support.cluster import Shape
from tests.support.mesh import running_mesh
from tests.support.old_contract import OldPeer, generated, running
from tests.support.publishing import publish_request
from tests.support.shapes import BOTH
from tests.support.site import Site
from tests.support.stored import records
from tests.support.wait import until

pytestmark = pytest.mark.timeout(90)

RECIPIENT = "olga"
TOPIC = "builds/main"
# The old services judge no token.
TOKEN = "e30.e30.c2ln"
# A oneof of the contract has fewer members.
VARIANTS = 11


# ---------------------------------------------------------------- the old side is the old one


@pytest.mark.processes
async def test_the_old_peer_runs_the_baselines_code() -> None:
    """What follows is no talk of today's code with itself."""
    async with running("where", {}) as peer:
        (found,) = await peer.answers()
    assert Path(found["where"]).is_relative_to(generated())
    assert baseline() in found["where"]
    assert set(found["messages"]) <= set(old_peer.message_names()), "a message was taken away"


# ---------------------------------------------------------------- records


@pytest.mark.processes
async def test_what_today_writes_the_baseline_reads_and_passes_on() -> None:
    """Each message with every field set: the old side sees what it knows and loses nothing that it does not."""
    async with running("where", {}) as peer:
        known = set((await peer.answers())[0]["messages"])
    ours = [one for one in old_peer.written(VARIANTS) if one["name"] in known]
    assert {one["name"] for one in ours} == known
    async with running("read", {"messages": [{"name": one["name"], "bytes": one["bytes"]} for one in ours]}) as peer:
        theirs = await peer.answers()
    for mine, seen in zip(ours, theirs, strict=True):
        _agree(mine["json"], seen["json"], mine["name"])
        lost = set(mine["json"]) & set(seen["fields"]) - set(seen["json"])
        assert lost == set(), f"{mine['name']}: not seen"
        assert _parsed(mine["name"], seen["bytes"]) == _parsed(mine["name"], mine["bytes"]), mine["name"]


@pytest.mark.processes
async def test_what_the_baseline_wrote_today_reads() -> None:
    """Each message that an old process left behind means the same today, field by field."""
    async with running("write", {"variants": VARIANTS}) as peer:
        theirs = await peer.answers()
    assert len(theirs) > 20 * VARIANTS
    for one in theirs:
        message = _parsed(one["name"], one["bytes"])
        assert old_peer.as_json(message) == one["json"], one["name"]


async def test_records_in_todays_lanes_are_readable_to_the_baseline(site: Site) -> None:
    """The very bytes that ingest wrote now, with topics and exclusions, are events to an old fanout."""
    request = publish_request("Into the lane", to=["lana"])
    request.event.audience.topic_ids.append(TOPIC)
    request.event.audience.excluded_recipient_ids.append("otto")
    event_id = (await site.publish(request)).event_id
    name = "heliograph.ingest.v1.EventRecord"
    written = [one for one in await records(site.cluster, "normal") if event_id.encode() in one]
    messages = [{"name": name, "bytes": base64.b64encode(value).decode()} for value in written]
    async with running("read", {"messages": messages}) as peer:
        seen = await peer.answers()
    found = next(one["json"] for one in seen if one["json"]["envelope"]["event_id"] == event_id)
    assert found["audience"]["recipient_ids"] == ["lana"]
    assert found["envelope"]["kind"] == "ENVELOPE_KIND_NOTIFY"
    notification = {"name": "heliograph.type.v1.Notification", "bytes": found["envelope"]["notification"]}
    async with running("read", {"messages": [notification]}) as peer:
        (shown,) = await peer.answers()
    assert shown["json"]["content"]["title"] == "Into the lane"


def _parsed(name: str, content: str) -> Any:
    message = old_peer.empty(name)
    message.ParseFromString(base64.b64decode(content))
    return message


def _agree(mine: Any, seen: Any, where: str) -> None:
    """Checks that everything the old side saw is what was written; a value that its enum lacks is a number there."""
    if isinstance(seen, dict):
        for name, value in seen.items():
            assert name in mine, f"{where}.{name}: seen, not written"
            _agree(mine[name], value, f"{where}.{name}")
    elif isinstance(seen, list):
        assert len(seen) == len(mine), where
        for index, value in enumerate(seen):
            _agree(mine[index], value, f"{where}[{index}]")
    elif not (isinstance(seen, int) and isinstance(mine, str) and mine.isupper()):
        assert seen == mine, where


# ---------------------------------------------------------------- old client, today's services


@pytest.mark.parametrize("form", ["json", "proto"])
async def test_an_old_client_uses_todays_services(site: Site, form: str) -> None:
    """It publishes, receives live, marks, lists and changes preferences, beside fields that it has never heard of.

    At the services' own doors, and through the edge.
    """
    recipient = f"{RECIPIENT}-{form}"
    owner = site.bearer("recipient", recipient)
    await _give_wishes(site, owner)
    told = {
        "form": form,
        "roots": str(site.certs_dir / "ca" / "bundle.pem") if site.mesh else "",
        "recipient": recipient,
        "websocket": site.live_url,
        "producer_token": site.cluster.token("demo", role="producer"),
        "recipient_token": site.cluster.token(recipient),
        "expected": 3,
        **{service: _target(site, service) for service in ("ingest", "delivery", "prefs")},
    }
    async with running("client", told) as peer:
        assert (await peer.answer("ready"))["cursor"]
        published = await peer.answer("published")
        batch = await peer.answer("batch")
        request = publish_request("From today", to=[])
        request.event.audience.topic_ids.append(TOPIC)
        todays = (await site.publish(request)).event_id
        notified = [await peer.answer("notified") for _ in range(3)]
        rest = await peer.answers()
    assert (published["again"], published["replayed"]) == (published["id"], True)
    assert batch["refused"] == "FIELD_INVALID"
    assert {one["id"]: one["title"] for one in notified} == {
        published["id"]: "Alone",
        batch["id"]: "Of two",
        todays: "From today",
    }
    listed, changed = rest
    assert sorted(listed["items"]) == sorted(
        [[title, notification_pb2.NOTIFICATION_STATE_READ] for title in ("Alone", "Of two", "From today")]
    )
    assert listed["unread"] == 0
    assert (changed["mention"], changed["general"]) == (False, True)
    # Its update named categories alone; a mute that it does not know of is still there.
    wishes = await _wishes(site, owner)
    assert [mute.topic_id for mute in wishes.preferences.mutes] == ["weather"]


def _target(site: Site, service: str) -> str:
    """Returns where an app or a producer calls a service."""
    running = site.cluster.running
    return running.edge if site.mesh else f"unix:{running.run_dir}/{service}.sock"


async def _give_wishes(site: Site, owner: tuple[tuple[str, str], ...]) -> None:
    """Gives the recipient what the old contract lacks: a subscription and a mute."""
    await site.call(
        "prefs",
        lambda door: topic_service_pb2_grpc.TopicServiceStub(door).Subscribe,
        topic_service_pb2.SubscribeRequest(topic_ids=[TOPIC]),
        owner,
    )
    mute = prefs_service_pb2.Mute(topic_id="weather")
    await site.call(
        "prefs",
        lambda door: prefs_service_pb2_grpc.PrefsServiceStub(door).UpdatePreferences,
        prefs_service_pb2.UpdatePreferencesRequest(preferences=prefs_service_pb2.Preferences(mutes=[mute])),
        owner,
    )


async def _wishes(site: Site, owner: tuple[tuple[str, str], ...]) -> prefs_service_pb2.GetPreferencesResponse:
    return await site.call(
        "prefs",
        lambda door: prefs_service_pb2_grpc.PrefsServiceStub(door).GetPreferences,
        prefs_service_pb2.GetPreferencesRequest(),
        owner,
    )


# ---------------------------------------------------------------- today's client, old services


class OldServices(msgspec.Struct, frozen=True):
    """Where an old ingest and two old gateway nodes are found, and by whom."""

    peer: OldPeer
    target: str
    live_url: str
    tls: Tls | None


@asynccontextmanager
async def _old_services(shape: Shape, folder: Path) -> AsyncIterator[OldServices]:
    """Runs them alone, or behind today's sidecars and edge."""
    async with AsyncExitStack() as stack:
        layout, nodes, mesh = Layout(folder, folder, folder, folder), ["gw-old-0", "gw-old-1"], None
        if shape == "mesh":
            mesh = await stack.enter_async_context(running_mesh(folder, apart=("ingest", "gateway")))
            layout, nodes = mesh.layout, [node.node_id for node in mesh.nodes]
        told = {
            "ingest": layout.socket("ingest"),
            "nodes": [{"socket": layout.socket(node), "websocket": layout.websocket(node)} for node in nodes],
        }
        peer = await stack.enter_async_context(running("serve", told))
        await peer.answer("serving")
        if mesh is None:
            yield OldServices(peer, f"unix:{layout.socket('ingest')}", f"unix:{layout.websocket(nodes[0])}", None)
            return
        await until(lambda: is_ready(mesh.layout.admin("edge")), 10.0, "the edge to find the old services")
        tls = Tls(ca_file=certs.bundle_file(mesh.layout.certs_dir))
        yield OldServices(peer, mesh.edge, mesh.live_url, tls)


@pytest.mark.parametrize("shape", BOTH)
async def test_todays_sdk_uses_old_services(shape: Shape, run_dir: Path) -> None:
    """It publishes to an old ingest, and receives from an old gateway and acks there; through today's edge as well."""
    async with (
        _old_services(shape, run_dir) as old,
        Subscriber(old.live_url, token=TOKEN, device_id="new", tls=old.tls) as subscriber,
        Publisher(old.target, token=TOKEN, tls=old.tls) as publisher,
    ):
        hello = await old.peer.answer("hello")
        assert hello["json"]["hello"]["device_id"] == "new"
        receipt = await publisher.publish(category="general", to=["olga"], title="To the old one")
        accepted = await old.peer.answer("accepted")
        assert accepted["id"] == receipt.event_id
        assert accepted["json"]["event"]["content"] == {"title": "To the old one"}
        notification = await anext(aiter(subscriber))
        assert (notification.id, notification.title) == (receipt.event_id, "To the old one")
        mark = (await old.peer.answer("mark"))["json"]["mark"]
        assert mark["kind"] == "MARK_KIND_RECEIVED"
        assert [ref["notification_id"] for ref in mark["refs"]] == [receipt.event_id]
