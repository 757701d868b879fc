"""What cannot be delivered is put aside where an operator finds it, and comes back; others notice nothing of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from google.protobuf import json_format

from bench.demo_letters import CATEGORY
from heliograph.delivery.v1 import dead_letter_service_pb2 as letters_pb2
from heliograph.delivery.v1 import dead_letter_service_pb2_grpc as letters_grpc
from heliograph.fanout.v1 import fanout_service_pb2 as fanout_pb2
from heliograph.fanout.v1 import fanout_service_pb2_grpc as fanout_grpc
from heliograph.ingest.v1.event_record_pb2 import EventRecord
from heliograph.type.v1.notification_pb2 import MARK_KIND_RECEIVED, Notification
from heliograph_cli.connection import OPERATOR, Actor
from heliograph_cli.failures import REFUSED
from mesh.ids import derive_id, join_key, to_text
from mesh.lanes import Record
from tests.support import damage, stored
from tests.support.apps import Apps
from tests.support.cluster import TENANT, Cluster
from tests.support.device import Device
from tests.support.shapes import EVERY, running
from tests.support.wait import until

pytestmark = pytest.mark.timeout(60)

_LIMIT_S = 20.0
_LANE = "normal"
_AS_OPERATOR = Actor("operator", OPERATOR)
# Three further tries, as the schedule has them, without its waits.
_SETTINGS = {"DELIVERY_RETRY_DELAYS": "0.2,0.2,0.2"}
_DONE = 0


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=EVERY)
async def apps(request: pytest.FixtureRequest) -> AsyncIterator[Apps]:
    """One installation for all tests here; each test has recipients of its own.

    None leaves anything aside, but for a record on engines, where nobody can mend it.
    """
    async with running(request.param, settings=_SETTINGS) as cluster:
        yield Apps(cluster)


async def _take(device: Device, id_: str) -> None:
    await device.has(id_)
    await device.has_confirmed(await device.mark(MARK_KIND_RECEIVED, id_))


# ---------------------------------------------------------------- rows


async def _all_buried(cluster: Cluster, count: int) -> list[str]:
    """Waits until so many rows are given up, and returns the ids of their dead letters."""
    found: list[letters_pb2.DeadLetter] = []

    async def are_buried() -> bool:
        async with cluster.connection() as connection:
            answer = await connection.call(
                "delivery",
                lambda channel: letters_grpc.DeadLetterServiceStub(channel).ListDeadLetters,
                letters_pb2.ListDeadLettersRequest(),
                _AS_OPERATOR,
            )
        found[:] = answer.dead_letters
        return len(found) >= count

    await until(are_buried, _LIMIT_S, f"{count} rows are given up")
    assert len(found) == count
    return [letter.dead_letter_id for letter in found]


async def _buried(cluster: Cluster) -> str:
    """Waits until the only row is given up, and returns the id of its dead letter."""
    (letter_id,) = await _all_buried(cluster, 1)
    return letter_id


async def _shows(cluster: Cluster, letter_id: str, event_id: str, recipient: str) -> None:
    """Checks what the command tells of the only letter, in the list and alone."""
    (code, listed, _), (got, text, _) = await asyncio.gather(
        cluster.run("dead-letters", "list", "--reason", "store-refused", "--json"),
        cluster.run("dead-letters", "get", letter_id),
    )
    assert (code, got) == (_DONE, _DONE)
    letter = json_format.Parse(listed, letters_pb2.DeadLetter())
    assert letter.reason == letters_pb2.DEAD_LETTER_REASON_STORE_REFUSED
    assert (letter.dead_letter_id, letter.envelope.event_id) == (letter_id, event_id)
    assert letter.recipient_key == join_key(TENANT, recipient)
    assert "store-refused" in text
    tries = [line for line in text.splitlines() if "the store refused the row" in line]
    assert [line.split()[0] for line in tries] == ["1", "2", "3", "4"]


async def _stays(cluster: Cluster, letter_id: str, why: str) -> None:
    """Checks that a letter is not sent on its way, and that the operator is told the reason."""
    code, output, errors = await cluster.run("dead-letters", "redrive", letter_id)
    assert (code, output) == (REFUSED, "0 redriven, 1 stay\n")
    assert f"{letter_id}: {why}" in errors


async def _is_empty(cluster: Cluster, what: str) -> None:
    code, output, errors = await cluster.run(what, "list")
    assert (code, errors) == (_DONE, "")
    # Behind that may stand what the other kind has.
    assert output.splitlines()[0] == "0 listed"


async def test_a_row_that_the_store_refuses_comes_back_from_the_dead_letters(apps: Apps) -> None:
    """Given up with a typed reason; it stays while the store refuses it or nobody wants it, and is shown once then."""
    cluster = apps.cluster
    async with apps.device("anna") as phone, apps.device("bert") as neighbour, cluster.publisher() as publisher:
        await phone.ready()
        await neighbour.ready()
        with damage.refusing_store(cluster, "anna").refusing():
            event_id = (await publisher.publish(category=CATEGORY, to=["anna", "bert"], title="An invoice")).event_id
            await _take(neighbour, event_id)
            letter_id = await _buried(cluster)
            await _shows(cluster, letter_id, event_id, "anna")
            await _stays(cluster, letter_id, "the store refuses it still: ")
        await apps.choose("anna", CATEGORY, enabled=False)
        await _stays(cluster, letter_id, "the recipient does not want it now: opted_out")
        await apps.choose("anna", CATEGORY)
        rehearsed = await cluster.run("dead-letters", "redrive", letter_id, "--dry-run")
        assert rehearsed == (_DONE, "1 would be redriven, 0 would stay\n", "")
        assert await _buried(cluster) == letter_id
        assert phone.ids == []
        assert await cluster.run("dead-letters", "redrive", letter_id) == (_DONE, "1 redriven, 0 stay\n", "")
        await _take(phone, event_id)
        await _is_empty(cluster, "dead-letters")
        last = (await publisher.publish(category=CATEGORY, to=["anna", "bert"], title="The last one")).event_id
        for device in (phone, neighbour):
            await device.has(last)
            assert device.ids == [event_id, last]


async def test_redriving_by_filter_goes_on_where_it_was_broken_off(apps: Apps) -> None:
    """What went has left the list: the same order again takes what is left, and nothing twice; others match nothing."""
    cluster, count = apps.cluster, 4
    filtered = ("dead-letters", "redrive", "--reason", "store-refused", "--tenant", TENANT)
    async with apps.device("finn") as phone, cluster.publisher() as publisher:
        await phone.ready()
        with damage.refusing_store(cluster, "finn").refusing():
            event_ids = [
                (await publisher.publish(category=CATEGORY, to="finn", title=f"Invoice {number}")).event_id
                for number in range(count)
            ]
            letter_ids = await _all_buried(cluster, count)
        assert await cluster.run(*filtered, "--dry-run") == (_DONE, "4 would be redriven, 0 would stay\n", "")
        # Somebody began, and got no further than this.
        assert await cluster.run("dead-letters", "redrive", letter_ids[0]) == (_DONE, "1 redriven, 0 stay\n", "")
        others = await cluster.run("dead-letters", "redrive", "--tenant", "initech")
        assert others == (_DONE, "0 redriven, 0 stay\n", "")
        assert await cluster.run(*filtered) == (_DONE, "3 redriven, 0 stay\n", "")
        assert await cluster.run(*filtered) == (_DONE, "0 redriven, 0 stay\n", "")
        await phone.has(*event_ids)
        await _is_empty(cluster, "dead-letters")
        assert sorted(phone.ids) == sorted(event_ids)


# ---------------------------------------------------------------- records


async def _torn(cluster: Cluster, event_id: str, recipient: str) -> tuple[str, Record, bytes]:
    """Returns another event like a stored one, for one recipient: its id, its record without an end, and the whole."""
    read = (EventRecord.FromString(value) for value in await stored.records(cluster, _LANE))
    record = next(one for one in read if one.envelope.event_id == event_id)
    note = Notification.FromString(record.envelope.notification)
    id_ = to_text(derive_id(int(time.time() * 1_000), [b"torn"], False))
    note.notification_id = record.envelope.event_id = record.envelope.notification_id = id_
    record.envelope.notification = note.SerializeToString()
    record.audience.recipient_ids[:] = [recipient]
    whole = record.SerializeToString()
    return id_, Record(id_.encode(), whole[:-1]), whole


async def _parked(cluster: Cluster) -> str:
    """Waits until something is parked, and returns its id."""
    found: list[str] = []

    async def is_parked() -> bool:
        async with cluster.connection() as connection:
            answer = await connection.call(
                "fanout",
                lambda channel: fanout_grpc.FanoutServiceStub(channel).ListParked,
                fanout_pb2.ListParkedRequest(),
                _AS_OPERATOR,
            )
        found[:] = [one.parked_id for one in answer.records]
        return bool(found)

    await until(is_parked, _LIMIT_S, "the record is parked")
    (parked_id,) = found
    return parked_id


async def _is_shown(cluster: Cluster, parked_id: str, value: bytes, file: Path) -> None:
    """Checks what the command tells of the only record, in the list and alone, with its bytes."""
    listed, got = await asyncio.gather(
        cluster.run("parked", "list"), cluster.run("parked", "get", parked_id, "--output", str(file))
    )
    for code, text, errors in (listed, got):
        assert (code, errors) == (_DONE, "")
        (line,) = (line for line in text.splitlines() if parked_id in line)
        assert "event record cannot be read" in line
        assert f" {len(value)} " in line
    assert listed[1].endswith("1 listed\n")
    assert await asyncio.to_thread(file.read_bytes) == value


async def test_a_record_that_nobody_can_read_is_parked_and_tried_again(apps: Apps, tmp_path: Path) -> None:
    """The lane goes on; the record is kept with its bytes while it cannot be read, and delivered once when it can."""
    cluster = apps.cluster
    async with apps.device("cleo") as phone, apps.device("dora") as neighbour, cluster.publisher() as publisher:
        await phone.ready()
        await neighbour.ready()
        first = (await publisher.publish(category="general", to=["cleo", "dora"], title="Before")).event_id
        for device in (phone, neighbour):
            await _take(device, first)
        event_id, record, whole = await _torn(cluster, first, "cleo")
        await damage.append(cluster, _LANE, record)
        last = (await publisher.publish(category="general", to=["cleo", "dora"], title="After")).event_id
        for device in (phone, neighbour):
            await _take(device, last)
        parked_id = await _parked(cluster)
        await _is_shown(cluster, parked_id, record.value, tmp_path / "record")
        code, output, errors = await cluster.run("parked", "redrive", parked_id)
        assert (code, output) == (REFUSED, "0 redriven, 1 stay\n")
        assert parked_id in errors
        assert await _parked(cluster) == parked_id
        if cluster.on_engines:
            return
        damage.mend(cluster, _LANE, record.value, whole)
        rehearsed = await cluster.run("parked", "redrive", parked_id, "--dry-run")
        assert rehearsed == (_DONE, "1 would be redriven, 0 would stay\n", "")
        assert phone.ids == [first, last]
        assert await cluster.run("parked", "redrive", "--all") == (_DONE, "1 redriven, 0 stay\n", "")
        await _take(phone, event_id)
        await _is_empty(cluster, "parked")
        assert phone.ids == [first, last, event_id]
        assert neighbour.ids == [first, last]
