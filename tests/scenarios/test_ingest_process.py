"""Ingest as a process of its own: it starts, serves, refuses, is killed under load, and comes back."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from heliograph.ingest.v1 import event_record_pb2, ingest_service_pb2, ingest_service_pb2_grpc
from mesh import ids, status
from mesh.errors import Failure
from svc_ingest.limits import REQUEST_LEASE_S
from tests.support.publishing import publish_request, read_lane
from tests.support.wait import until

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
DEMO = (("x-heliograph-caller", "producer/acme/demo"),)
# Generous: two cores may be busy with other things.
START_S = 20.0


def arguments(folder: Path, **settings: Path | int) -> list[str]:
    """The command line of an ingest with everything in one folder."""
    values = {
        "run-dir": folder,
        "data-dir": folder,
        "categories-file": ROOT / "deploy" / "categories.toml",
        "producers-file": ROOT / "deploy" / "producers.example.toml",
        **{name.replace("_", "-"): value for name, value in settings.items()},
    }
    flags = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    return ["-m", "svc_ingest", "--direct", *flags]


async def spawn(words: Sequence[str]) -> Process:
    """Starts an interpreter without our own environment's settings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HELIOGRAPH_")}
    return await asyncio.create_subprocess_exec(
        sys.executable, *words, cwd=ROOT, env=environment, stdout=PIPE, stderr=PIPE
    )


async def outcome(words: Sequence[str]) -> tuple[int | None, str, str]:
    """Exit code, output and errors of a process that ends by itself."""
    process = await spawn(words)
    out, errors = await process.communicate()
    return process.returncode, out.decode(), errors.decode()


class Running:
    """A process that serves, and a producer's connection to it."""

    def __init__(self, process: Process, channel: grpc.aio.Channel) -> None:
        self.process = process
        self.stub = ingest_service_pb2_grpc.IngestServiceStub(channel)

    async def publish(
        self, request: ingest_service_pb2.PublishRequest, metadata: tuple[tuple[str, str], ...] = DEMO
    ) -> ingest_service_pb2.PublishResponse:
        """Publishes one event, or raises the failure."""
        try:
            return await self.stub.Publish(request, metadata=metadata, timeout=10)
        except grpc.aio.AioRpcError as error:
            raise status.from_call(error) from None

    async def publish_until_settled(
        self, request: ingest_service_pb2.PublishRequest
    ) -> ingest_service_pb2.PublishResponse:
        """Repeats a request as a producer does: until the lease of a dead holder has run out."""
        answers: list[ingest_service_pb2.PublishResponse] = []

        async def settled() -> bool:
            try:
                answers.append(await self.publish(request))
            except Failure as failure:
                if failure.reason != "REQUEST_PENDING":
                    raise
            return bool(answers)

        await until(settled, REQUEST_LEASE_S + 5, "the lease has run out")
        return answers[0]


@asynccontextmanager
async def running(folder: Path, **settings: Path | int) -> AsyncIterator[Running]:
    """An ingest that is ready; whatever is left of it is killed afterwards."""
    process = await spawn(arguments(folder, **settings))
    assert process.stderr is not None
    # Read all the time: a full pipe would stop the process.
    logs = asyncio.ensure_future(process.stderr.read())
    channel = grpc.aio.insecure_channel(f"unix:{folder}/ingest.sock")
    try:
        made = Running(process, channel)
        judged = publish_request(validate_only=True)

        async def answers() -> bool:
            assert process.returncode is None, (await logs).decode()
            call = made.stub.Publish(judged, metadata=DEMO, timeout=5)
            return await call.code() is grpc.StatusCode.OK

        await until(answers, START_S, "ingest is ready")
        yield made
    finally:
        await channel.close(None)
        if process.returncode is None:
            process.kill()
        await process.wait()
        await logs


def timed_id(number: int) -> str:
    """A UUIDv7 of now."""
    return ids.to_text(ids.uuid7(int(time.time() * 1_000), number.to_bytes(10, "big")))


async def event_ids(folder: Path) -> list[str]:
    """Every event id in the normal lane."""
    return [
        event_record_pb2.EventRecord.FromString(stored.value).envelope.event_id
        for stored in await read_lane(folder, "normal")
    ]


async def test_a_kill_under_load_loses_nothing_that_was_answered(run_dir: Path) -> None:
    """What was answered OK is in the lane, and the next process recognises it."""
    answered: dict[str, str] = {}
    sent: dict[str, ingest_service_pb2.PublishRequest] = {}

    async def load(service: Running, worker: int) -> None:
        for number in range(worker * 1_000_000, (worker + 1) * 1_000_000, 10):
            requests = [publish_request(str(n), to=[f"r{n}"], id_=timed_id(n)) for n in range(number, number + 10)]
            sent.update((request.request_id, request) for request in requests)
            batch = ingest_service_pb2.BatchPublishRequest(requests=requests)
            response = await service.stub.BatchPublish(batch, metadata=DEMO, timeout=10)
            for request, result in zip(requests, response.results, strict=True):
                answered[request.request_id] = result.accepted.event_id

    async with running(run_dir) as service:
        workers = [asyncio.ensure_future(load(service, worker)) for worker in range(8)]
        await until(lambda: len(answered) >= 500, START_S, "500 events are accepted")
        service.process.send_signal(signal.SIGKILL)
        results = await asyncio.gather(*workers, return_exceptions=True)
        assert all(isinstance(result, grpc.aio.AioRpcError) for result in results)
    assert all(answered.values())
    assert set(answered.values()) <= set(await event_ids(run_dir))

    async with running(run_dir) as service:
        some = [*answered][:20] + [*answered][-20:]
        repeats = await asyncio.gather(*(service.publish_until_settled(sent[request_id]) for request_id in some))
        assert [repeat.event_id for repeat in repeats] == [answered[request_id] for request_id in some]
        assert any(repeat.replayed for repeat in repeats)
        unanswered = [request for request_id, request in sent.items() if request_id not in answered]
        healed = await asyncio.gather(*(service.publish_until_settled(request) for request in unanswered[:20]))
        assert all(answer.event_id for answer in healed)
        service.process.send_signal(signal.SIGTERM)
        assert await service.process.wait() == 0
    assert {answer.event_id for answer in healed} <= set(await event_ids(run_dir))


async def test_callers_and_mistakes_are_refused_over_the_wire(run_dir: Path) -> None:
    """Only producers may publish, and a refusal travels with its reason, violations and delay."""
    async with running(run_dir) as service:
        for metadata in ((), (("x-heliograph-caller", "svc/fanout"),), (("x-heliograph-caller", "operator/ada"),)):
            with pytest.raises(Failure) as denied:
                await service.publish(publish_request(), metadata)
            assert (denied.value.code, denied.value.reason) == (7, "CALLER_NOT_ALLOWED")
        with pytest.raises(Failure) as unknown:
            await service.publish(publish_request(), (("x-heliograph-caller", "producer/acme/nobody"),))
        assert (unknown.value.code, unknown.value.reason) == (7, "NOT_GRANTED")
        with pytest.raises(Failure) as wrong:
            await service.publish(publish_request("", to=["?"]))
        fields = [violation.field for violation in wrong.value.violations]
        assert (wrong.value.code, wrong.value.reason) == (3, "FIELD_INVALID")
        assert fields == ["event.audience.recipient_ids[0]", "event.content.title"]
        request = publish_request("a", id_=timed_id(1))
        await service.publish(request)
        request.event.content.title = "b"
        with pytest.raises(Failure) as reused:
            await service.publish(request)
        assert (reused.value.code, reused.value.reason) == (6, "REQUEST_ID_REUSED")
        oversized = ingest_service_pb2.PublishRequest(request_id="x" * (4 * 1024 * 1024 + 1))
        with pytest.raises(Failure) as refused:
            await service.publish(oversized)
        assert refused.value.code == 8
        assert (await service.publish(publish_request("still here"))).event_id
    assert len(await event_ids(run_dir)) == 2


QUOTAS = """
[producers."acme/demo"]
categories = ["*"]
priorities = ["normal"]
quota = { events_per_second = 0.01, burst = 2 }
[producers."acme/nothing"]
categories = ["*"]
priorities = ["normal"]
quota = { events_per_second = 0 }
[producers."acme/free"]
categories = ["*"]
priorities = ["normal"]
"""


async def test_quotas_are_kept_over_the_wire(run_dir: Path) -> None:
    """Used up: with a delay; zero: without one and in clear words. A neighbour goes on, and repeats are answered."""
    file = run_dir / "producers.toml"
    file.write_text(QUOTAS, encoding="utf-8")
    async with running(run_dir, producers_file=file) as service:
        first = publish_request("1", id_=timed_id(1))
        accepted = [await service.publish(first), await service.publish(publish_request("2", id_=timed_id(2)))]
        third = publish_request("3", id_=timed_id(3))
        with pytest.raises(Failure) as used_up:
            await service.publish(third)
        assert (used_up.value.code, used_up.value.reason) == (8, "QUOTA_EXCEEDED")
        assert 50 < (used_up.value.retry_delay or 0.0) < 101
        assert (await service.publish(first)).event_id == accepted[0].event_id
        with pytest.raises(Failure) as nothing:
            await service.publish(third, (("x-heliograph-caller", "producer/acme/nothing"),))
        assert (nothing.value.code, nothing.value.reason, nothing.value.retry_delay) == (8, "QUOTA_EXCEEDED", None)
        assert "nothing may be published" in nothing.value.message
        free = (("x-heliograph-caller", "producer/acme/free"),)
        accepted += [await service.publish(publish_request(str(number)), free) for number in range(20)]
    assert await event_ids(run_dir) == [answer.event_id for answer in accepted]


async def test_more_than_there_is_room_for_is_shed_by_priority(run_dir: Path) -> None:
    """A flood of bulk over the wire: high goes through whole, bulk is refused with a delay, then all is as before."""
    bulk = ingest_service_pb2.BatchPublishRequest(
        requests=[publish_request("b", to=[f"r{n}"], category="newsletter") for n in range(500)]
    )
    # The other limits are out of the way: how slow the machine is must not matter.
    async with running(run_dir, in_flight_limit=1_000, call_limit=60, loop_lag_limit=60, append_limit=60) as service:

        async def flood() -> Counter[str]:
            response = await service.stub.BatchPublish(bulk, metadata=DEMO, timeout=30)
            refusals = [result.refused for result in response.results if result.HasField("refused")]
            assert all(refusal.HasField("retry_delay") for refusal in refusals)
            return Counter(result.refused.reason or "accepted" for result in response.results)

        calls = [asyncio.ensure_future(flood()) for _ in range(60)]
        high = [await service.publish(publish_request("h", category="security")) for _ in range(20)]
        found = sum(await asyncio.gather(*calls), Counter[str]())
        assert set(found) == {"accepted", "OVERLOADED"}
        assert found.total() == 60 * 500
        assert len({answer.event_id for answer in high}) == 20

        async def everybody_is_let_in() -> bool:
            return (await flood()) == Counter(accepted=500)

        await until(everybody_is_let_in, 20, "bulk is let in again")
    assert len(await read_lane(run_dir, "high")) == 20
    assert len(await read_lane(run_dir, "bulk")) >= found["accepted"]


async def test_the_configuration_can_be_checked(run_dir: Path) -> None:
    """Without starting anything."""
    code, out, errors = await outcome([*arguments(run_dir), "--check-config"])
    assert (code, errors) == (0, "")
    assert "valid" in out
    assert os.listdir(run_dir) == []


@pytest.mark.parametrize(
    ("setting", "content", "names"),
    [
        ("categories_file", "[categories.general]\npriority = 'urgent'", "urgent"),
        ("producers_file", "[producers.'acme/demo']\ncategories = ['gossip']\npriorities = ['high']", "gossip"),
        ("producers_file", None, "No such file"),
        (
            "producers_file",
            "[producers.'acme/demo']\ncategories = ['*']\npriorities = ['high']\nquota = { events_per_second = -1 }",
            'producers."acme/demo".quota.events_per_second',
        ),
    ],
)
async def test_a_broken_registry_stops_the_start(run_dir: Path, setting: str, content: str | None, names: str) -> None:
    """With one line that names the file and the key."""
    path = run_dir / "broken.toml"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    code, _, errors = await outcome(arguments(run_dir, **{setting: path}))
    assert code == 2
    (line,) = errors.splitlines()
    assert str(path) in line
    assert names in line


@pytest.mark.parametrize(
    ("flag", "url", "names"),
    [
        ("--request-log-url", "mongodb://x", "sqlite:///"),
        ("--lanes-url", "mongodb://x", "sqlite:///"),
        ("--request-log-url", "sqlite:///broken.db", "broken.db"),
    ],
)
async def test_a_store_that_cannot_be_used_stops_the_start(run_dir: Path, flag: str, url: str, names: str) -> None:
    """An unknown scheme lists the known ones; a file that is no database is named."""
    (run_dir / "broken.db").write_bytes(b"this is no database, and longer than its header would be" * 10)
    code, _, errors = await outcome([*arguments(run_dir), flag, url])
    assert code == 2
    assert names in errors.splitlines()[-1]
