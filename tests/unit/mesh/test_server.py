"""The guarded server: who gets in, for how long, and what they are told when it goes wrong."""

from __future__ import annotations

import asyncio
import re
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pool
from google.protobuf.wrappers_pb2 import StringValue
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from mesh import context as calls
from mesh.channel import call
from mesh.clock import ManualClock, SteadyClock
from mesh.errors import (
    DeadlineExceeded,
    Failure,
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    StartError,
    Unauthenticated,
    Unavailable,
    Violation,
)
from mesh.server import CallCount
from mesh.status import from_call
from tests.support import echo
from tests.support.wait import until

HI = StringValue(value="hi")
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def _as(path: str) -> tuple[tuple[str, str], ...]:
    return (("x-heliograph-caller", path),)


def _health(channel: grpc.aio.Channel) -> Any:
    # Any: the stub's methods are made at run time.
    return health_pb2_grpc.HealthStub(channel)


async def _refused(awaited: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await awaited
    return caught.value


@pytest.mark.parametrize("allowed", ["fanout", "producer", "operator", "edge"])
async def test_only_the_tables_roles_get_in(run_dir: Path, allowed: str) -> None:
    """Of all identities exactly those pass whose role the method's access names."""
    paths = {
        "fanout": "svc/fanout",
        "edge": "svc/edge",
        "producer": "producer/acme/billing",
        "operator": "operator/ada",
        "": "nobody/x",
    }
    async with echo.serving(run_dir, access={echo.SAY: frozenset({allowed})}) as running:
        for role, path in paths.items():
            if role == allowed:
                assert await call(running.say, HI, timeout=5, metadata=_as(path)) == HI
                continue
            if (role, allowed) == ("edge", "producer"):
                continue
            with pytest.raises(PermissionDenied) as caught:
                await call(running.say, HI, timeout=5, metadata=_as(path))
            assert caught.value.reason == "CALLER_NOT_ALLOWED"
            assert caught.value.metadata == {"role": role, "method": echo.SAY}


@pytest.mark.parametrize("allowed", ["producer", "recipient"])
async def test_an_outsider_is_asked_who_it_is(run_dir: Path, allowed: str) -> None:
    """Who comes through the edge with neither certificate nor token learns that one is needed."""
    async with echo.serving(run_dir, access={echo.SAY: frozenset({allowed})}) as running:
        with pytest.raises(Unauthenticated) as caught:
            await call(running.say, HI, timeout=5, metadata=_as("svc/edge"))
    assert caught.value.reason == "TOKEN_INVALID"


async def test_a_method_missing_in_the_table_is_refused(run_dir: Path) -> None:
    """Unary or stream, a method without an entry is closed to everybody."""
    async with echo.serving(run_dir, access={}) as running:
        with pytest.raises(PermissionDenied):
            await call(running.say, HI, timeout=5, metadata=running.channels.metadata())
        stream = running.talk(metadata=running.channels.metadata())
        assert await stream.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_a_forged_header_gets_nobody_in_behind_a_sidecar(run_dir: Path) -> None:
    """The development header means nothing there; the forwarded certificate does."""
    async with echo.serving(run_dir, direct=False) as running:
        with pytest.raises(PermissionDenied):
            await call(running.say, HI, timeout=5, metadata=_as("svc/fanout"))
        certificate = "By=x;Hash=y;URI=spiffe://heliograph.local/svc/fanout"
        certified = (*_as("svc/edge"), ("x-forwarded-client-cert", certificate))
        assert await call(running.say, HI, timeout=5, metadata=certified) == HI


async def test_a_refused_callers_bytes_are_not_decoded(run_dir: Path) -> None:
    """Access comes before decoding, and undecodable bytes of an allowed caller are INVALID_ARGUMENT."""
    async with echo.serving(run_dir) as running:
        raw = echo.raw_say_of(running.channels.unary("echo"))
        refused = await _refused(raw(b"\xff\xff", timeout=5, metadata=_as("svc/prefs")))
        assert refused.code() is grpc.StatusCode.PERMISSION_DENIED
        with pytest.raises(InvalidArgument) as caught:
            await call(raw, b"\xff\xff", timeout=5, metadata=_as("svc/fanout"))
        assert caught.value.reason == "FRAME_INVALID"


async def test_the_servicer_sees_the_call(run_dir: Path) -> None:
    """Caller, deadline, trace and method are there without being handed on."""
    seen: list[calls.CallContext] = []

    async def say(request: StringValue, context: echo.Context) -> StringValue:
        seen.append(calls.current())
        left = calls.remaining()
        assert left is not None
        return StringValue(value=f"{left:.3f}")

    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    async with echo.serving(run_dir, say=say) as running:
        answer = await call(
            running.say, HI, timeout=5, metadata=(*_as("producer/acme/billing"), ("traceparent", trace))
        )
        await call(running.say, HI, timeout=5, metadata=_as("svc/fanout"))
    # gRPC rounds a deadline up when it sends it.
    assert 4 < float(answer.value) < 5.1
    assert seen[0].caller == calls.Caller(role="producer", name="billing", tenant="acme")
    assert (seen[0].traceparent, seen[0].method) == (trace, echo.SAY)
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-00", seen[1].traceparent)


async def test_a_unary_call_without_deadline_gets_the_default(run_dir: Path) -> None:
    """It sees a limit, and it is ended when the limit is over."""
    limits: list[float | None] = []

    async def say(request: StringValue, context: echo.Context) -> StringValue:
        limits.append(calls.remaining())
        await asyncio.Event().wait()
        return request

    async with echo.serving(run_dir, say=say, default_deadline=0.2) as running:
        error = await _refused(running.say(HI, metadata=_as("svc/fanout")))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "0.2 s" in (error.details() or "")
        assert running.count(echo.SAY, "DEADLINE_EXCEEDED") == 1
    assert limits[0] is not None
    assert 0 < limits[0] <= 0.2


async def test_a_timeout_of_the_servicers_own_is_no_deadline(run_dir: Path) -> None:
    """An inner TimeoutError is a bug to be found in the log, not the caller's deadline."""

    async def say(request: StringValue, context: echo.Context) -> StringValue:
        raise TimeoutError("inner")

    async with echo.serving(run_dir, say=say) as running:
        error = await _refused(running.say(HI, metadata=_as("svc/fanout")))
        assert error.code() is grpc.StatusCode.INTERNAL


async def test_a_failure_arrives_whole(run_dir: Path) -> None:
    """Category, message, reason, metadata, violations and delay come through, also from inside a task group."""
    sent = ResourceExhausted(
        "too much of 7",
        reason="QUOTA_EXCEEDED",
        metadata={"limit": "7"},
        violations=[Violation(field="event.category", description="must be known")],
        retry_delay=1.5,
    )

    async def say(request: StringValue, context: echo.Context) -> StringValue:
        raise sent

    async def talk(requests: object, context: echo.Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(say(HI, context))

    async with echo.serving(run_dir, say=say, talk=talk) as running:
        with pytest.raises(ResourceExhausted) as caught:
            await call(running.say, HI, timeout=5, metadata=running.channels.metadata())
        stream = running.talk(metadata=running.channels.metadata())
        assert await stream.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await stream.details() == "too much of 7"
        assert dict(await stream.trailing_metadata())["retry-after"] == "2"
        assert running.count(echo.SAY, "RESOURCE_EXHAUSTED") == running.count(echo.TALK, "RESOURCE_EXHAUSTED") == 1
    got = caught.value
    assert (got.message, got.reason, dict(got.metadata)) == (sent.message, sent.reason, {"limit": "7"})
    assert (got.violations, got.retry_delay) == (sent.violations, 1.5)


async def test_an_unknown_exceptions_text_never_leaves(run_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The caller gets INTERNAL and an id; the log has the traceback under that id."""

    async def say(request: StringValue, context: echo.Context) -> StringValue:
        raise ValueError("password=hunter2")

    async def talk(requests: object, context: echo.Context) -> None:
        raise KeyError("password=hunter2")

    async with echo.serving(run_dir, say=say, talk=talk) as running:
        with pytest.raises(Internal) as caught:
            await call(running.say, HI, timeout=5, metadata=running.channels.metadata())
        stream = running.talk(metadata=running.channels.metadata())
        assert await stream.code() is grpc.StatusCode.INTERNAL
        told = [caught.value.message, await stream.details(), str(await stream.trailing_metadata())]
    match = re.fullmatch(r"internal error, id ([0-9a-f]{8})", caught.value.message)
    assert match is not None
    assert not any("hunter2" in text for text in told)
    printed = capfd.readouterr()
    assert match[1] in printed.err + printed.out
    assert "hunter2" in printed.err + printed.out


async def test_a_generator_stream_is_refused_at_registration(run_dir: Path) -> None:
    """The wrong style is a TypeError that names the method, not a failing call."""

    class Generating(echo.EchoServicer):
        async def Talk(self, requests: object, context: echo.Context) -> AsyncIterator[StringValue]:  # type: ignore[override]
            yield HI

    class Plain(echo.EchoServicer):
        def Say(self, request: StringValue, context: echo.Context) -> StringValue:  # type: ignore[override]
            return request

    async with echo.serving(run_dir) as running:
        for servicer, name in ((Generating(), "Talk"), (Plain(), "Say")):
            with pytest.raises(TypeError, match=f"EchoService/{name}"):
                running.server.add(echo.add_echo_to_server, servicer, echo.service_descriptor())


async def test_registration_must_match_the_descriptor(run_dir: Path) -> None:
    """A servicer registered under another service's descriptor is told."""
    other = descriptor_pool.Default().FindServiceByName("grpc.health.v1.Health")
    async with echo.serving(run_dir) as running:
        with pytest.raises(ValueError, match=r"grpc\.health\.v1\.Health: not registered"):
            running.server.add(echo.add_echo_to_server, echo.EchoServicer(), other)


async def test_the_socket_is_the_owners_and_not_stolen(run_dir: Path) -> None:
    """It has mode 0600; a second server on the same path does not start, and the first goes on."""
    async with echo.serving(run_dir) as running:
        assert stat.S_IMODE((run_dir / "echo.sock").stat().st_mode) == 0o600
        with pytest.raises(StartError, match="another process serves"):
            async with echo.serving(run_dir):
                pass
        assert await call(running.say, HI, timeout=5, metadata=running.channels.metadata()) == HI


async def test_health_follows_readiness_under_every_name(run_dir: Path) -> None:
    """Both the empty name and the service's name change together; a watch sees it; an unknown name is NOT_FOUND."""
    async with echo.serving(run_dir) as running:
        stub = _health(running.channels.unary("echo"))
        ask = running.channels.metadata()

        async def all_are(state: int) -> bool:
            names = ("", echo.SERVICE)
            answers = [
                await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5, metadata=ask) for name in names
            ]
            return all(answer.status == state for answer in answers)

        assert await all_are(NOT_SERVING)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=echo.SERVICE), metadata=ask)
        assert (await watch.read()).status == NOT_SERVING
        running.server.set_serving(True)
        assert (await watch.read()).status == SERVING
        assert await all_are(SERVING)
        running.server.set_serving(False)
        await until(lambda: all_are(NOT_SERVING))
        error = await _refused(stub.Check(health_pb2.HealthCheckRequest(service="x"), timeout=5, metadata=ask))
        assert error.code() is grpc.StatusCode.NOT_FOUND
        watch.cancel()


async def test_health_names_what_is_gone_and_readiness_stays(run_dir: Path) -> None:
    """A dependency has a name of its own in check and list; the others do not follow it."""
    async with echo.serving(run_dir) as running:
        stub = _health(running.channels.unary("echo"))
        ask = running.channels.metadata()

        async def listed() -> dict[str, int]:
            answer = await stub.List(_health_types().HealthListRequest(), timeout=5, metadata=ask)
            return {name: one.status for name, one in answer.statuses.items()}

        own = {"": NOT_SERVING, echo.SERVICE: NOT_SERVING, "clock": SERVING}
        assert await listed() == own
        running.server.set_serving(True)
        running.server.set_dependency("inbox", True)
        own = {"": SERVING, echo.SERVICE: SERVING, "clock": SERVING}
        await until(lambda: _is(listed, {**own, "dependency/inbox": SERVING}))
        running.server.set_dependency("inbox", False)
        await until(lambda: _is(listed, {**own, "dependency/inbox": NOT_SERVING}))
        request = health_pb2.HealthCheckRequest(service="dependency/inbox")
        assert (await stub.Check(request, timeout=5, metadata=ask)).status == NOT_SERVING


def _health_types() -> Any:
    """The package's types are older than its code and lack what belongs to List."""
    return health_pb2


async def _is(found: Callable[[], Awaitable[object]], wanted: object) -> bool:
    return await found() == wanted


async def test_the_standard_services_have_rules_too(run_dir: Path) -> None:
    """Health is closed to the outside; reflection and channelz answer the operator and nobody else."""
    async with echo.serving(run_dir) as running:
        # Any: the stubs' types know synchronous channels only.
        channel: Any = running.channels.unary("echo")
        check = _health(channel).Check
        servers: Any = channelz_pb2_grpc.ChannelzStub(channel).GetServers
        reflect: Any = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        for path in ("producer/acme/billing", "nobody/x"):
            error = await _refused(check(health_pb2.HealthCheckRequest(), timeout=5, metadata=_as(path)))
            assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        error = await _refused(servers(channelz_pb2.GetServersRequest(), timeout=5, metadata=_as("svc/fanout")))
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        refused = reflect(metadata=_as("svc/fanout"))
        assert await refused.code() is grpc.StatusCode.PERMISSION_DENIED

        operator = _as("operator/ada")
        assert (await servers(channelz_pb2.GetServersRequest(), timeout=5, metadata=operator)).server
        listing = reflect(metadata=operator)
        await listing.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        names = {service.name for service in (await listing.read()).list_services_response.service}
        assert {echo.SERVICE, "grpc.health.v1.Health"} <= names
        await listing.done_writing()
        assert await listing.code() is grpc.StatusCode.OK


async def test_stopping_lets_running_calls_finish(run_dir: Path) -> None:
    """A call that runs when the server stops is answered; a new one is refused; an open watch does not hold it up."""
    arrived, release = asyncio.Event(), asyncio.Event()
    reasons: list[str] = []

    async def say(request: StringValue, context: echo.Context) -> StringValue:
        arrived.set()
        await release.wait()
        return request

    async with echo.serving(run_dir, say=say) as running:
        metadata = running.channels.metadata()
        stub = _health(running.channels.stream("echo"))
        watch = stub.Watch(health_pb2.HealthCheckRequest(), metadata=metadata)
        await watch.read()
        first = asyncio.ensure_future(call(running.say, HI, timeout=10, metadata=metadata))
        await arrived.wait()
        stopping = asyncio.ensure_future(running.server.stop(10.0))

        async def refused() -> bool:
            try:
                await call(running.say, HI, timeout=0.1, metadata=metadata)
            except Unavailable as failure:
                reasons.append(failure.reason)
                return True
            except DeadlineExceeded:
                return False
            return False

        await until(refused)
        assert reasons == ["DRAINING"]
        assert await watch.code() is grpc.StatusCode.UNAVAILABLE
        assert not stopping.done()
        release.set()
        assert await first == HI
        async with asyncio.timeout(5):
            await stopping


async def test_stop_cuts_what_does_not_end(run_dir: Path) -> None:
    """After the grace an open stream is ended by force, and the servicer is cancelled."""
    ended = asyncio.Event()

    async def talk(requests: object, context: echo.Context) -> None:
        await context.send_initial_metadata(())
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with echo.serving(run_dir, talk=talk) as running:
        stream = running.talk(metadata=running.channels.metadata())
        await stream.initial_metadata()
        await running.server.stop(0.05)
        assert await stream.code() is not grpc.StatusCode.OK
        await asyncio.wait_for(ended.wait(), 5)
        assert running.count(echo.TALK, "CANCELLED") == 1


async def test_calls_are_counted_and_timed(run_dir: Path) -> None:
    """Each call is counted once by method and code; unary ones are timed."""

    async def say(request: StringValue, context: echo.Context) -> StringValue:
        if request.value == "missing":
            raise NotFound("no such thing", reason="NOTIFICATION_UNKNOWN")
        return request

    async with echo.serving(run_dir, say=say) as running:
        metadata = running.channels.metadata()
        for _ in range(3):
            await call(running.say, HI, timeout=5, metadata=metadata)
        with pytest.raises(NotFound):
            await call(running.say, StringValue(value="missing"), timeout=5, metadata=metadata)
        assert running.count(echo.SAY, "OK") == 3
        assert running.count(echo.SAY, "NOT_FOUND") == 1
        timed = running.telemetry.registry.get_sample_value("heliograph_echo_rpc_seconds_count", {"method": echo.SAY})
        assert timed == 4


async def test_oversized_requests_and_headers_harm_nobody(run_dir: Path) -> None:
    """A message above the limit is RESOURCE_EXHAUSTED, a flood of headers is refused, and the next call works."""
    async with echo.serving(run_dir) as running:
        metadata = running.channels.metadata()
        raw = echo.raw_say_of(running.channels.unary("echo"))
        limit = 4 * 1024 * 1024
        with pytest.raises(ResourceExhausted):
            await call(raw, StringValue(value="x" * limit).SerializeToString(), timeout=10, metadata=metadata)
        with pytest.raises(Failure):
            await call(running.say, HI, timeout=5, metadata=(*metadata, ("x-flood", "y" * 20_000)))
        assert await call(running.say, HI, timeout=5, metadata=metadata) == HI


async def test_open_calls_are_those_of_this_server(run_dir: Path) -> None:
    """What has arrived counts from its arrival to its answer; another server of the process counts by itself."""
    release = asyncio.Event()

    async def say(request: StringValue, context: echo.Context) -> StringValue:
        await release.wait()
        return request

    (run_dir / "a").mkdir()
    async with echo.serving(run_dir / "a", say=say) as busy, echo.serving(run_dir) as idle:
        assert busy.server.count_calls() == CallCount(0, 0)
        metadata = busy.channels.metadata()
        waiting = [asyncio.ensure_future(call(busy.say, HI, timeout=10, metadata=metadata)) for _ in range(30)]
        await until(lambda: busy.server.count_calls() == CallCount(30, 0))
        assert await call(idle.say, HI, timeout=5, metadata=metadata) == HI
        await until(lambda: idle.server.count_calls() == CallCount(1, 1))
        release.set()
        await asyncio.gather(*waiting)
        await until(lambda: busy.server.count_calls() == CallCount(30, 30))
    assert busy.server.count_calls() == CallCount(30, 30)


async def test_calls_are_refused_while_the_clock_is_doubtful(run_dir: Path) -> None:
    """With a reason and a delay; health still answers, and names the clock."""
    machine = ManualClock()
    async with echo.serving(run_dir, clock=SteadyClock(machine)) as running:
        ask = running.channels.metadata()
        health_of = _health(running.channels.unary("echo"))
        machine.step_wall(-60.0)
        running.server.set_clock(False)
        failure = from_call(await _refused(running.say(StringValue(value="x"), timeout=5, metadata=ask)))
        assert (failure.reason, failure.retry_delay) == ("CLOCK_SET", 1.0)
        request = health_pb2.HealthCheckRequest(service="clock")

        async def is_named() -> bool:
            return bool((await health_of.Check(request, timeout=5, metadata=ask)).status == NOT_SERVING)

        await until(is_named)
        machine.step_wall(60.0)
        assert (await running.say(StringValue(value="x"), timeout=5, metadata=ask)).value == "x"
