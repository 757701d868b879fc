"""The calls of PrefsService on a real store, as callers see them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from heliograph.prefs.v1 import prefs_service_pb2 as pb
from heliograph.type.v1 import plan_pb2
from mesh.clock import ManualClock
from mesh.context import CallContext, Caller, serving
from mesh.errors import Aborted, InvalidArgument, PermissionDenied
from mesh.telemetry import Telemetry
from svc_prefs.metrics import Metrics
from svc_prefs.ports import Changes, Found, LogLimits, PrefsStore, Stored
from svc_prefs.service import PrefsService
from svc_prefs.store import open_store
from tests.support.wishes import HOUR_US, NOW_US, REGISTRY, changed, choice, mute, update

# No method of the service uses it.
NO_CONTEXT = cast(Any, None)
ALICE = Caller("recipient", "alice", "acme")
BOB = Caller("recipient", "bob", "acme")
FANOUT = Caller("fanout", "fanout")
OPERATOR = Caller("operator", "ada")
HOUR = HOUR_US / 1_000_000


class World:
    """The service, with a clock that stands still."""

    def __init__(self, service: PrefsService, store: PrefsStore, clock: ManualClock) -> None:
        self.service = service
        self.store = store
        self.clock = clock

    async def get(self, caller: Caller = ALICE, **fields: str) -> pb.Preferences:
        """Reads preferences as somebody."""
        with serving(CallContext(caller, None, "", "")):
            answer = await self.service.GetPreferences(pb.GetPreferencesRequest(**fields), NO_CONTEXT)
        return answer.preferences

    async def update(self, request: pb.UpdatePreferencesRequest, caller: Caller = ALICE) -> pb.Preferences:
        """Changes preferences as somebody."""
        with serving(CallContext(caller, None, "", "")):
            return (await self.service.UpdatePreferences(request, NO_CONTEXT)).preferences

    async def resolve(self, *items: pb.ResolveItem, tenant_id: str = "acme") -> pb.BatchResolveResponse:
        """Asks for decisions as fanout."""
        with serving(CallContext(FANOUT, None, "", "")):
            request = pb.BatchResolveRequest(tenant_id=tenant_id, items=items)
            return await self.service.BatchResolve(request, NO_CONTEXT)

    async def changes(self, number: int, page_size: int = 0) -> pb.ListWishChangesResponse:
        """Asks whose wishes changed, as fanout."""
        with serving(CallContext(FANOUT, None, "", "")):
            request = pb.ListWishChangesRequest(change_number=number, page_size=page_size)
            return await self.service.ListWishChanges(request, NO_CONTEXT)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A service on an empty store that remembers four changes."""
    store = open_store("sqlite:///prefs.db", data_dir=tmp_path, limits=LogLimits(count=4))
    clock = ManualClock(wall=NOW_US / 1_000_000)
    metrics = Metrics(Telemetry("prefs"))
    await store.open()
    try:
        service = PrefsService(store=store.prefs, registry=REGISTRY, clock=clock, metrics=metrics)
        yield World(service, store.prefs, clock)
    finally:
        await store.close()


def ask(category: str, *recipient_ids: str, topic_id: str = "") -> pb.ResolveItem:
    """One question."""
    return pb.ResolveItem(category=category, recipient_ids=recipient_ids, topic_id=topic_id)


async def test_a_mute_holds_until_the_clock_passes_its_end(world: World) -> None:
    """Both for the recipient, who sees it, and for fanout, who decides by it."""
    shown = await world.update(update(muted=[mute("billing", hours=1)]))
    assert [one.category for one in shown.mutes] == ["billing"]
    (item,) = (await world.resolve(ask("billing", "alice", "bob"))).items
    assert [list(group.recipient_ids) for group in item.groups] == [["alice"]]
    assert item.groups[0].resolution.suppress_reason == plan_pb2.SUPPRESS_REASON_MUTED
    assert (item.groups[0].resolution.version, shown.etag) == (1, "1")
    world.clock.advance(HOUR)
    assert not (await world.get()).mutes
    assert not (await world.resolve(ask("billing", "alice"))).items[0].groups


async def test_items_are_answered_each_for_its_way(world: World) -> None:
    """The same recipient is muted on one topic and reached by name and by another topic."""
    await world.update(update(muted=[mute(topic_id="builds"), mute("quiet", "news")]))
    asked = [
        ask("quiet", "alice", topic_id="builds"),
        ask("quiet", "alice", topic_id="news"),
        ask("billing", "alice", topic_id="news"),
        ask("quiet", "alice"),
        ask("security", "alice", topic_id="builds"),
    ]
    answer = await world.resolve(*asked)
    assert [len(item.groups) for item in answer.items] == [1, 1, 0, 0, 0]


async def test_a_decision_that_is_remembered_from_its_number_on_misses_no_change(world: World) -> None:
    """Whoever changes after the answer is listed after the answer's number, and nobody else."""
    await world.update(update(muted=[mute("billing")]), BOB)
    answer = await world.resolve(ask("billing", "alice", "bob"))
    assert (await world.changes(answer.change_number)).recipient_keys == []
    await world.update(update(choice("billing", False)))
    listed = await world.changes(answer.change_number)
    assert listed.recipient_keys == ["acme/alice"]
    assert (listed.more, listed.reset) == (False, False)
    again = await world.resolve(ask("billing", "alice"))
    assert again.change_number == listed.change_number
    assert again.items[0].groups


async def test_changes_come_in_pages_and_reset_who_is_too_late(world: World) -> None:
    """A page says that more follow; a number that was forgotten, or of another store, says to forget everything."""
    begin = (await world.resolve(ask("billing", "alice"))).change_number
    for name in ("alice", "bob", "carol"):
        await world.update(update(choice("billing", False)), Caller("recipient", name, "acme"))
    first = await world.changes(begin, 2)
    assert (list(first.recipient_keys), first.more) == (["acme/alice", "acme/bob"], True)
    rest = await world.changes(first.change_number, 2)
    assert (list(rest.recipient_keys), rest.more) == (["acme/carol"], False)
    for _ in range(5):
        await world.update(update(choice("billing")))
    for number in (0, begin, 1 << 62):
        reset = await world.changes(number)
        assert (reset.reset, list(reset.recipient_keys), reset.more) == (True, [], False)
    assert not (await world.changes(reset.change_number)).reset


async def test_a_refused_update_changes_nothing(world: World) -> None:
    """Neither what is stored, nor its etag, nor the log of changes."""
    before = await world.update(update(choice("quiet", False), muted=[mute("billing")]))
    number = (await world.resolve(ask("billing", "alice"))).change_number
    refused = [
        update(choice("quiet"), choice("security", False)),
        update(choice("quiet"), muted=[mute("security")]),
        update(choice("quiet"), paths=("categories.quiet", "quiet_hours")),
        update(choice("quiet"), muted=[mute(topic_id="two words")]),
    ]
    for request in refused:
        with pytest.raises(InvalidArgument):
            await world.update(request)
    with pytest.raises(Aborted):
        await world.update(update(choice("quiet"), etag="7"))
    assert await world.get() == before
    assert (await world.changes(number)).recipient_keys == []


async def test_nobody_touches_the_wishes_of_another_recipient(world: World) -> None:
    """A recipient reads and changes itself; an operator whom it names."""
    request = update(muted=[mute("billing")])
    request.preferences.recipient_id = "bob"
    with pytest.raises(PermissionDenied):
        await world.update(request)
    with pytest.raises(PermissionDenied):
        await world.get(recipient_id="bob")
    with pytest.raises(InvalidArgument):
        await world.get(OPERATOR, recipient_id="bob")
    request.tenant_id = "acme"
    await world.update(request, OPERATOR)
    assert (await world.get(OPERATOR, recipient_id="bob", tenant_id="acme")).mutes
    assert not (await world.get()).mutes


async def test_mutes_that_are_set_side_by_side_are_all_kept(world: World) -> None:
    """Changes of one recipient at the same time are merged, none overwrites another."""
    topics = [f"t{number}" for number in range(4)]
    await asyncio.gather(*(world.update(update(muted=[mute(topic_id=topic)])) for topic in topics))
    assert [one.topic_id for one in (await world.get()).mutes] == topics


class MixedUp:
    """A store, or a pool before it, that answers what somebody else asked."""

    def __init__(self, store: PrefsStore, *answers: Stored) -> None:
        self._store = store
        self._answers = answers

    async def get_many(self, tenant_id: str, recipient_ids: Sequence[str]) -> Found:
        found = await self._store.get_many(tenant_id, recipient_ids)
        return msgspec.structs.replace(found, rows=[*found.rows, *self._answers])

    async def replace(self, stored: Stored, now_us: int) -> bool:
        return await self._store.replace(stored, now_us)

    async def list_changes(self, change_number: int, page_size: int) -> Changes:
        return await self._store.list_changes(change_number, page_size)


async def test_rows_of_somebody_else_are_dropped_and_counted(world: World) -> None:
    """Neither another recipient's wishes nor those of another tenant's recipient decide; the counter says how many."""
    muted = update(muted=[mute("billing")])
    strangers = [changed(muted), msgspec.structs.replace(changed(muted), tenant_id="globex", recipient_id="bob")]
    telemetry = Telemetry("prefs")
    store = MixedUp(world.store, *strangers)
    mixed = PrefsService(store=store, registry=REGISTRY, clock=world.clock, metrics=Metrics(telemetry))
    with serving(CallContext(FANOUT, None, "", "")):
        request = pb.BatchResolveRequest(tenant_id="acme", items=[ask("billing", "bob")])
        answer = await mixed.BatchResolve(request, NO_CONTEXT)
    assert answer.items == (await world.resolve(ask("billing", "bob"))).items
    assert telemetry.registry.get_sample_value("heliograph_prefs_foreign_rows_total") == len(strangers)
