"""Fan-out beside a real prefs over its socket: topics, mutes, opt-outs, and prefs that goes away and comes back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from heliograph.access.v1 import access_pb2
from heliograph.prefs.v1 import prefs_service_pb2, prefs_service_pb2_grpc, topic_service_pb2, topic_service_pb2_grpc
from heliograph.type.v1 import plan_pb2
from mesh.access import read_access
from mesh.channel import Channels, call
from mesh.clock import Clock
from mesh.server import Server
from mesh.telemetry import Telemetry
from mesh.times import timestamp_of
from svc_fanout.peers import GrpcPrefs
from svc_prefs.metrics import Metrics
from svc_prefs.registry import parse_registry
from svc_prefs.service import PrefsService
from svc_prefs.service_topics import TopicService
from svc_prefs.store import open_store
from tests.support.dispatching import everything, id_of
from tests.support.fanning import Fanout, fanning
from tests.support.far_ends import calling, running
from tests.support.wait import until

_REGISTRY = """
[categories.general]
[categories.mention]
[categories.security]
mandatory = true
essential = true
"""
_OPERATOR = (("x-heliograph-caller", "operator/olga"),)
_LIMIT_S = 5.0


@asynccontextmanager
async def serving_prefs(folder: Path, run_dir: Path, clock: Clock) -> AsyncIterator[None]:
    """A prefs with its store; one after the other may have the same."""
    store = open_store("sqlite:///prefs.db", data_dir=folder)
    telemetry = Telemetry("prefs")
    metrics = Metrics(telemetry)
    services = (
        prefs_service_pb2.DESCRIPTOR.services_by_name["PrefsService"],
        topic_service_pb2.DESCRIPTOR.services_by_name["TopicService"],
    )
    server = Server(
        name="prefs",
        socket=run_dir / "prefs.sock",
        access=read_access(services, access_pb2.callers),
        direct=True,
        trust_domain="heliograph.local",
        tokens=None,
        telemetry=telemetry,
        clock=clock,
    )
    registry = parse_registry(_REGISTRY, "here")
    wishes = PrefsService(store=store.prefs, registry=registry, clock=clock, metrics=metrics)
    topics = TopicService(store=store.topics, clock=clock, metrics=metrics)
    server.add(prefs_service_pb2_grpc.add_PrefsServiceServicer_to_server, wishes, services[0])
    server.add(topic_service_pb2_grpc.add_TopicServiceServicer_to_server, topics, services[1])
    await store.open()
    await server.start()
    try:
        yield
    finally:
        await server.stop(0.0)
        await store.close()


class Site:
    """Fan-out, and what recipients do with their wishes, as operators of their tenant."""

    def __init__(self, fanout: Fanout, channels: Channels, folder: Path, run_dir: Path) -> None:
        self.fanout = fanout
        self._channel = channels.unary("prefs")
        self._folder = folder
        self._run_dir = run_dir

    def prefs(self) -> AbstractAsyncContextManager[None]:
        """A prefs, to be entered."""
        return serving_prefs(self._folder, self._run_dir, self.fanout.clock)

    async def subscribe(self, recipient_id: str, *topic_ids: str) -> None:
        """Subscribes; returns when it is durable."""
        request = topic_service_pb2.SubscribeRequest(tenant_id="acme", recipient_id=recipient_id, topic_ids=topic_ids)
        stub = topic_service_pb2_grpc.TopicServiceStub(self._channel)
        await call(stub.Subscribe, request, timeout=_LIMIT_S, metadata=_OPERATOR)

    async def wish(
        self,
        recipient_id: str,
        *,
        categories: Sequence[prefs_service_pb2.CategoryPreference] = (),
        mutes: Sequence[prefs_service_pb2.Mute] = (),
    ) -> None:
        """Sets choices and mutes."""
        preferences = prefs_service_pb2.Preferences(recipient_id=recipient_id, categories=categories, mutes=mutes)
        request = prefs_service_pb2.UpdatePreferencesRequest(tenant_id="acme", preferences=preferences)
        stub = prefs_service_pb2_grpc.PrefsServiceStub(self._channel)
        await call(stub.UpdatePreferences, request, timeout=_LIMIT_S, metadata=_OPERATOR)

    async def polled(self, count: int) -> None:
        """Waits until so many remembered recipients were dropped after a change."""
        await until(lambda: self.fanout.count("wishes_dropped_total") == count, what="the change is known")


@pytest.fixture
async def site(tmp_path: Path, run_dir: Path) -> AsyncIterator[Site]:
    """An empty lane and a fan-out that asks over the socket; delivery takes everything."""
    async with fanning(tmp_path, run_dir) as fanout, calling(run_dir, "fanout") as channels:
        fanout.delivery.reply = everything
        fanout.ask = GrpcPrefs(channels)
        await fanout.start_anew(large_audience=1_000, slice_size=200)
        yield Site(fanout, channels, tmp_path, run_dir)


async def test_topics_mutes_and_opt_outs_are_obeyed(site: Site) -> None:
    """Each recipient once: any way that is not muted is enough, a mandatory category ignores mutes."""
    fanout = site.fanout
    async with site.prefs(), running(fanout.run):
        for name in ("anna", "bert", "cleo", "dora"):
            await site.subscribe(name, "team/a")
        await site.subscribe("bert", "all")
        mute = prefs_service_pb2.Mute(topic_id="team/a")
        await site.wish("anna", mutes=[mute])
        await site.wish("bert", mutes=[mute])
        await site.wish("cleo", categories=[prefs_service_pb2.CategoryPreference(category="general")])
        await fanout.append_topic(1, "team/a", "all", excluded=["dora"])
        await fanout.append_topic(2, "team/a", category="security")
        await fanout.committed()
    assert fanout.outcomes(id_of(1)) == {
        ("anna", plan_pb2.SUPPRESS_REASON_MUTED): 1,
        ("bert", 0): 1,
        ("cleo", plan_pb2.SUPPRESS_REASON_OPTED_OUT): 1,
        ("dora", plan_pb2.SUPPRESS_REASON_EXCLUDED): 1,
    }
    assert fanout.outcomes(id_of(2)) == {(name, 0): 1 for name in ("anna", "bert", "cleo", "dora")}
    # Whose wishes made the plan is known afterwards.
    plans = {plan.suppress_reason: plan.wish_version for batch in fanout.delivery.batches for plan in batch.plans}
    assert plans[plan_pb2.SUPPRESS_REASON_MUTED] == 1


async def test_a_change_counts_from_the_next_poll(site: Site) -> None:
    """What is remembered is used until then, without a call; a mute that runs out needs no change to end."""
    fanout = site.fanout
    async with site.prefs(), running(fanout.run):
        await site.subscribe("anna", "t")
        await fanout.append_topic(1, "t")
        await fanout.committed()
        end = timestamp_of(round((fanout.clock.wall() + 60.0) * 1_000_000))
        await site.wish("anna", mutes=[prefs_service_pb2.Mute(topic_id="t", expire_time=end)])
        await site.polled(1)
        await fanout.append_topic(2, "t")
        await fanout.committed()
        fanout.clock.advance(60.0)
        await fanout.append_topic(3, "t")
        await fanout.committed()
    assert fanout.outcomes(id_of(1)) == {("anna", 0): 1}
    assert fanout.outcomes(id_of(2)) == {("anna", plan_pb2.SUPPRESS_REASON_MUTED): 1}
    assert fanout.outcomes(id_of(3)) == {("anna", 0): 1}


async def test_prefs_goes_and_another_one_comes(site: Site) -> None:
    """Essential events pass, the others wait; the next prefs on the same store decides about them."""
    fanout = site.fanout
    async with running(fanout.run):
        async with site.prefs():
            await site.subscribe("anna", "t")
            await site.wish("anna", categories=[prefs_service_pb2.CategoryPreference(category="mention")])
        await fanout.append(1, recipient_ids=["anna"], category="mention")
        await fanout.append(2, recipient_ids=["anna"], category="security")
        await fanout.append_topic(3, "t")
        await until(lambda: fanout.sent() == [id_of(2)])
        assert (await fanout.lane.lag()).record_count == 3
        async with site.prefs():
            await fanout.committed()
    assert fanout.outcomes(id_of(1)) == {("anna", plan_pb2.SUPPRESS_REASON_OPTED_OUT): 1}
    assert fanout.outcomes(id_of(3)) == {("anna", 0): 1}


async def test_a_large_topic_is_read_page_by_page(site: Site) -> None:
    """Every subscriber once, in slices, also those whose wishes differ."""
    fanout = site.fanout
    names = [f"r{number:05}" for number in range(1_500)]
    async with site.prefs(), running(fanout.run):
        for name in names:
            await site.subscribe(name, "t")
        for name in names[::100]:
            await site.wish(name, categories=[prefs_service_pb2.CategoryPreference(category="general")])
        await fanout.append_topic(1, "t")
        await fanout.committed()
    outcomes = fanout.outcomes(id_of(1))
    assert sorted(name for name, _ in outcomes) == names
    assert set(outcomes.values()) == {1}
    off = sorted(name for name, reason in outcomes if reason == plan_pb2.SUPPRESS_REASON_OPTED_OUT)
    assert off == names[::100]
    assert len(await fanout.slices()) == 8
