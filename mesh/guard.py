"""What happens around every call, in this order: identity, access, deadline, trace, run, errors, metrics.

Path step: stands before every servicer method. It wraps each method once, when it is registered, so a call costs no
look-up and no object beyond its context. A request is decoded only after its caller was let in. Must not know what a
method does.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from typing import Any, Never, Protocol, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from mesh import status
from mesh.access import PRODUCER, RECIPIENT, Access, allowed_roles
from mesh.clock import Clock, require_agreement
from mesh.context import CallContext, enter
from mesh.errors import (
    DeadlineExceeded,
    Failure,
    Internal,
    InvalidArgument,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from mesh.identity import EDGE, TRACE_HEADER, Identifier, pick
from mesh.telemetry import Telemetry, logger

# Any: one wrapper stands around methods of every request and response type.
_Behaviour: TypeAlias = Callable[[Any, Any], Awaitable[Any]]
_Method: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

_SECONDS_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
_TRACE_LENGTH = 55


class _Context(Protocol):
    """What the guard uses of gRPC's context, with the types that it has in fact."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]]: ...
    def time_remaining(self) -> float | None: ...
    def code(self) -> grpc.StatusCode | None: ...
    async def abort_with_status(self, status: status.Ending) -> Never: ...


class Guard:
    """Wraps servicer methods.

    Args:
        access: who may call what.
        direct: no sidecar stands in front.
        identifier: tells who calls.
        telemetry: where the metrics are registered; one guard for each.
        clock: what deadlines are measured with.
        default_deadline: seconds a unary call gets that brings no deadline.
    """

    def __init__(
        self,
        *,
        access: Access,
        direct: bool,
        identifier: Identifier,
        telemetry: Telemetry,
        clock: Clock,
        default_deadline: float,
    ) -> None:
        self._access = access
        self._direct = direct
        self._identify = identifier.identify
        self._clock = clock
        self._monotonic = clock.monotonic
        self._default_deadline = default_deadline
        self._closed = False
        self._calls = telemetry.counter("rpc", "Calls served, by method and status code.", ["method", "code"])
        self._seconds = telemetry.histogram(
            "rpc_seconds", "Time from a unary call's arrival to its answer.", ["method"], buckets=_SECONDS_BUCKETS
        )

    def close(self) -> None:
        """Refuses every further call, so that its caller tries elsewhere or later; those that run go on."""
        self._closed = True

    def wrap(self, path: str, method: _Method, *, by_wall_clock: bool) -> _Method:
        """Returns the method with everything around it.

        Args:
            path: full method path, "/package.Service/Method".
            method: what the generated registration function made of the servicer's method.
            by_wall_clock: refuse calls once the machine's clock was set.

        Raises:
            TypeError: the servicer's method is no coroutine function, such as an async generator.
        """
        behaviour = _behaviour(method)
        if not inspect.iscoroutinefunction(behaviour):
            raise TypeError(
                f"{path}: write it as `async def` that uses context.read() and context.write(); "
                "a generator or a plain function is not supported"
            )
        decode = _decoder(path, method.request_deserializer)
        if method.request_streaming:
            # The context decodes frames as they are read; by then the caller has been let in.
            guarded = self._around(path, behaviour, decode=None, encode=None, unary=False, wall=by_wall_clock)
            if method.response_streaming:
                return grpc.stream_stream_rpc_method_handler(guarded, decode, method.response_serializer)
            return grpc.stream_unary_rpc_method_handler(guarded, decode, method.response_serializer)
        if method.response_streaming:
            guarded = self._around(path, behaviour, decode=decode, encode=None, unary=False, wall=by_wall_clock)
            return grpc.unary_stream_rpc_method_handler(guarded, None, method.response_serializer)
        encode = method.response_serializer
        guarded = self._around(path, behaviour, decode=decode, encode=encode, unary=True, wall=by_wall_clock)
        return grpc.unary_unary_rpc_method_handler(guarded, None, None)

    def _around(
        self,
        path: str,
        behaviour: _Behaviour,
        *,
        decode: Callable[[bytes], Any] | None,
        encode: Callable[[Any], bytes] | None,
        unary: bool,
        wall: bool,
    ) -> _Behaviour:
        allowed = allowed_roles(self._access, path, direct=self._direct)
        succeeded = self._calls.labels(path, "OK").inc
        observe = self._seconds.labels(path).observe if unary else None
        count, clock = self._count, time.perf_counter

        async def guarded(request: Any, context: _Context) -> Any:
            started = clock()
            try:
                capped = self._admit(path, allowed, context, unary, wall)
                if decode is not None:
                    request = decode(request)
                if capped:
                    response = await self._run_capped(behaviour, request, context)
                else:
                    response = await behaviour(request, context)
                if encode is not None and response is not None:
                    response = encode(response)
                code = context.code()
                if code is None:
                    succeeded()
                else:
                    count(path, code)
                return response
            except grpc.aio.AbortError:
                count(path, context.code())
                raise
            except asyncio.CancelledError:
                count(path, grpc.StatusCode.CANCELLED)
                raise
            except Exception as error:
                failure = explain(error, path)
                count(path, grpc_code(failure))
                await context.abort_with_status(status.to_ending(failure))
            finally:
                if observe is not None:
                    observe(clock() - started)

        return guarded

    def _admit(self, path: str, allowed: Container[str], context: _Context, unary: bool, wall: bool) -> bool:
        """Makes the call's context or refuses it; returns whether the default deadline has to be enforced here."""
        if self._closed:
            raise Unavailable("the process is leaving service; try again", reason="DRAINING")
        headers = pick(context.invocation_metadata())
        caller = self._identify(headers)
        if caller.role not in allowed:
            if caller.role == EDGE and (PRODUCER in allowed or RECIPIENT in allowed):
                raise Unauthenticated(
                    f"{path} needs a client certificate or a token: send `authorization: Bearer …`",
                    reason="TOKEN_INVALID",
                    metadata={"method": path},
                )
            raise PermissionDenied(
                f"{caller.role or 'a caller without identity'} may not call {path}",
                reason="CALLER_NOT_ALLOWED",
                metadata={"role": caller.role, "method": path},
            )
        if wall:
            require_agreement(self._clock)
        left = context.time_remaining()
        capped = unary and left is None
        if capped:
            left = self._default_deadline
        elif left is not None and left <= 0:
            raise DeadlineExceeded("the call's deadline had passed when it arrived", reason="DEADLINE_EXPIRED")
        trace = headers.get(TRACE_HEADER, "")
        if len(trace) != _TRACE_LENGTH:
            # The trace ids need no secrecy, only to be different.
            trace = f"00-{random.getrandbits(128):032x}-{random.getrandbits(64):016x}-00"
        now = self._monotonic()
        enter(CallContext(caller, None if left is None else now + left, trace, path, self._monotonic))
        return capped

    async def _run_capped(self, behaviour: _Behaviour, request: Any, context: _Context) -> Any:
        timer = asyncio.timeout(self._default_deadline)
        try:
            async with timer:
                return await behaviour(request, context)
        except TimeoutError:
            if not timer.expired():
                raise
            raise DeadlineExceeded(
                f"not done within {self._default_deadline:g} s, the limit of calls without a deadline",
                reason="DEADLINE_EXPIRED",
            ) from None

    def _count(self, path: str, code: grpc.StatusCode | None) -> None:
        self._calls.labels(path, "UNKNOWN" if code is None else code.name).inc()


def explain(error: Exception, where: str) -> Failure:
    """Returns the failure to tell the caller: the error itself, or INTERNAL with an id when it says nothing to him.

    What is not a `Failure` is a bug: its text may hold anything, so it goes to the log under the id and nowhere else.
    A group (a stream's task group) is told by the first failure in it.
    """
    failure = _first_failure(error)
    if failure is not None:
        if failure.alert:
            logger().error("call_failed", method=where, code=failure.code, reason=failure.reason, error=failure.message)
        return failure
    error_id = secrets.token_hex(4)
    logger().error("call_crashed", method=where, id=error_id, exc_info=error)
    return Internal(f"internal error, id {error_id}", reason="INTERNAL", metadata={"id": error_id})


def grpc_code(failure: Failure) -> grpc.StatusCode:
    """Returns gRPC's name for a failure's category."""
    return _CODES[failure.code]


def _first_failure(error: BaseException) -> Failure | None:
    if isinstance(error, Failure):
        return error
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            failure = _first_failure(inner)
            if failure is not None:
                return failure
    return None


def _behaviour(method: _Method) -> _Behaviour:
    # Any: the stub knows the synchronous signatures only.
    behaviours: Iterable[Any] = (method.unary_unary, method.unary_stream, method.stream_unary, method.stream_stream)
    found: _Behaviour = next(behaviour for behaviour in behaviours if behaviour is not None)
    return found


def _decoder(path: str, parse: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    if parse is None:
        return None

    def decode(raw: bytes) -> Any:
        try:
            return parse(raw)
        except DecodeError:
            raise InvalidArgument(
                f"a message to {path} is not of the method's request type", reason="FRAME_INVALID"
            ) from None

    return decode


_CODES: Mapping[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
