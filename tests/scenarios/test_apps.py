"""Sessions over gRPC at a running site, as an app comes: through the edge, or at a node's own socket without one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import grpc
import grpc.aio
import pytest

from heliograph.prefs.v1 import topic_service_pb2, topic_service_pb2_grpc
from heliograph.type.v1.notification_pb2 import MarkKind
from mesh.errors import Aborted, Failure, InvalidArgument, Unauthenticated
from mesh.identity import CALLER_HEADER
from tests.support.publishing import publish_request
from tests.support.site import IN_A_MESH, IN_EVERY_SHAPE, Metadata, Site
from tests.support.stream_device import METHOD, StreamDevice, streaming
from tests.support.wait import until

APP = "app-owner"
FORGED: Metadata = (
    ("x-heliograph-caller", "svc/delivery"),
    ("x-heliograph-producer", "spiffe://heliograph.local/producer/acme/demo"),
    ("x-forwarded-client-cert", "By=x;Hash=y;URI=spiffe://heliograph.local/svc/delivery"),
    ("x-heliograph-node", "gw-nowhere-0"),
    ("x-heliograph-node-addr", "127.0.0.1:1"),
)


def _target(site: Site) -> str:
    running = site.cluster.running
    return running.edge if site.mesh else f"unix:{running.run_dir}/{site.cluster.node(0)}.sock"


def _streaming(site: Site, metadata: Metadata = (), recipient: str = APP) -> AbstractAsyncContextManager[StreamDevice]:
    """Opens a stream; without an edge the call has to say whose it is."""
    if site.mesh:
        credentials = grpc.ssl_channel_credentials(site.roots())
        return streaming(_target(site), metadata, credentials=credentials)
    return streaming(_target(site), (*metadata, *site.bearer("recipient", recipient)))


@asynccontextmanager
async def _session(site: Site, device_id: str, metadata: Metadata = ()) -> AsyncIterator[StreamDevice]:
    async with _streaming(site, metadata) as device:
        await device.hello(site.cluster.token(APP), device_id)
        await device.ready()
        yield device


@IN_EVERY_SHAPE
async def test_an_app_gets_what_a_browser_gets(site: Site) -> None:
    """Live, acked, confirmed; and a second device replays it."""
    async with site.undisturbed(stored=1), _session(site, "phone") as phone:
        answer = await site.publish(publish_request("For apps", to=[APP]))
        await phone.has(answer.event_id)
        await phone.has_confirmed(await phone.mark(MarkKind.MARK_KIND_READ, answer.event_id))
        async with _session(site, "tablet") as tablet:
            assert answer.event_id in tablet.ids
            assert tablet.checkpoints[0].checksum != 0
        assert phone.closed is None


@IN_EVERY_SHAPE
async def test_a_session_changes_its_own_recipients_topics(site: Site) -> None:
    """Confirmed means stored, where everybody else reads it."""

    async def subscribed() -> list[str]:
        answer = await site.call(
            "prefs",
            lambda channel: topic_service_pb2_grpc.TopicServiceStub(channel).ListSubscriptions,
            topic_service_pb2.ListSubscriptionsRequest(),
            site.bearer("recipient", APP),
        )
        return [one.topic_id for one in answer.subscriptions]

    async with site.undisturbed(), _session(site, "phone") as phone:
        await phone.has_confirmed(await phone.subscribe("releases", "team/blue"))
        assert await subscribed() == ["releases", "team/blue"]
        await phone.has_confirmed(await phone.unsubscribe("releases", "team/blue", "never-there"))
        assert await subscribed() == []
        await phone.subscribe("no topic")
        await until(lambda: phone.refusals == ["FIELD_INVALID"], 5.0, "the malformed topic is refused")


async def test_ids_of_others_are_refused_in_every_frame(site: Site) -> None:
    """Alice's notifications cannot be marked by anybody else, nor by naming them in hello under another name."""
    async with site.undisturbed(), _session(site, "phone") as phone:
        for count, kind in enumerate(MarkKind.values()[1:], start=1):
            await phone.mark(kind, *site.gifts)
            await until(lambda: len(phone.refusals) == count, 5.0, "the mark is refused")  # noqa: B023
        assert set(phone.refusals) == {"NOTIFICATION_UNKNOWN"}
        async with _streaming(site) as tablet:
            await tablet.hello(
                site.cluster.token(APP), "tablet", received=[(id_, 1) for id_ in site.gifts], cursor="1.other-epoch"
            )
            await tablet.ready()
            assert not set(site.gifts) & set(tablet.ids)


@pytest.mark.parametrize("cursor", ["-1.x", f"{10**17}.x", "9" * 40 + ".x", "1.other-epoch", "%00"])
async def test_a_tampered_cursor_brings_the_own_window_and_nothing_else(site: Site, cursor: str) -> None:
    """Whatever it says, it cannot lead into another inbox."""
    async with site.undisturbed(), _streaming(site) as phone:
        await phone.hello(site.cluster.token(APP), "phone", cursor=cursor)
        assert (await phone.ready()).reload
        assert not set(site.gifts) & set(phone.ids)


@pytest.mark.parametrize(("token", "kind"), [("", Unauthenticated), ("e30.e30.e30", Unauthenticated)])
async def test_a_forged_token_gets_no_session(site: Site, token: str, kind: type[Failure]) -> None:
    """The status comes through every proxy, with its reason."""
    async with site.undisturbed(), _streaming(site) as device:
        await device.hello(token, "phone")
        failure = await device.ends_with()
        assert (type(failure), failure.reason, failure.metadata["close_code"]) == (kind, "TOKEN_INVALID", "4501")
        assert device.refusals == ["TOKEN_INVALID"]


@IN_EVERY_SHAPE
async def test_the_same_device_ends_the_older_session_with_a_status(site: Site) -> None:
    """Also when the newer one is at another node."""
    async with site.undisturbed(), _session(site, "phone") as older, _session(site, "phone") as newer:
        failure = await older.ends_with()
        assert (type(failure), failure.reason) == (Aborted, "SUPERSEDED")
        assert newer.closed is None


async def test_a_frame_that_is_too_large_ends_its_own_session_only(site: Site) -> None:
    """With a status; the neighbour's sessions stay."""
    async with site.undisturbed(), _session(site, "phone") as device:
        await device.subscribe(*("x" * 128 for _ in range(600)))
        failure = await device.ends_with()
        assert (type(failure), failure.reason) == (InvalidArgument, "FRAME_INVALID")


@IN_A_MESH
async def test_forged_headers_change_nothing_at_the_edge(site: Site) -> None:
    """They are taken off: the session is that of the token in hello, at a node that the edge chose."""
    async with site.undisturbed(stored=1), _session(site, "phone", FORGED) as device:
        answer = await site.publish(publish_request("For apps", to=[APP]))
        await device.has(answer.event_id)


@IN_A_MESH
async def test_a_token_in_the_head_must_be_that_of_hello(site: Site) -> None:
    """One that is given as well may not be another recipient's."""
    async with site.undisturbed(), _streaming(site, site.bearer("recipient", "alice")) as device:
        await device.hello(site.cluster.token(APP), "phone")
        failure = await device.ends_with()
        assert (type(failure), device.refusals) == (Unauthenticated, ["CALLER_NOT_ALLOWED"])


@pytest.mark.parametrize("site", [pytest.param("processes", marks=[pytest.mark.processes])], indirect=True)
@pytest.mark.parametrize("caller", ["svc/ingest", "operator/dev", "producer/acme/demo"])
async def test_nobody_else_gets_a_stream(site: Site, caller: str) -> None:
    """Services, operators and producers have no sessions."""
    channel = grpc.aio.insecure_channel(_target(site))
    try:
        async with site.undisturbed():
            call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(METHOD)(
                metadata=((CALLER_HEADER, caller),)
            )
            assert await call.code() is grpc.StatusCode.PERMISSION_DENIED
    finally:
        await channel.close()
