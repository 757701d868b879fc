"""The call that is being served: who calls, until when, under which trace.

Set once per call by the server's guard and read from anywhere below it, so that outgoing calls take over deadline and
trace without being handed them. Must not carry business data: what a method needs is in its request.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from mesh.clock import SystemClock

_SYSTEM_MONOTONIC = SystemClock().monotonic


class Caller(msgspec.Struct, frozen=True, gc=False):
    """Who calls, as far as the mesh vouches for it.

    Attributes:
        role: a service's name, "producer", "recipient", "operator", or "" for nobody known.
        name: service, producer, recipient or operator id.
        tenant: the tenant of a producer or recipient; else empty.
    """

    role: str
    name: str
    tenant: str = ""


class CallContext(msgspec.Struct, frozen=True, gc=False):
    """One call at the server.

    Attributes:
        caller: who calls.
        deadline: when the call's time is over, in seconds of `monotonic`; None for a stream without one.
        traceparent: the W3C trace header to pass on.
        method: full path, "/package.Service/Method".
        monotonic: the clock that `deadline` belongs to.
    """

    caller: Caller
    deadline: float | None
    traceparent: str
    method: str
    monotonic: Callable[[], float] = _SYSTEM_MONOTONIC


_current: contextvars.ContextVar[CallContext] = contextvars.ContextVar("mesh_call")


def current() -> CallContext:
    """Returns the call being served; LookupError outside of one."""
    return _current.get()


def traceparent() -> str:
    """Returns the trace header of the call being served, or "" outside of one."""
    call = _current.get(None)
    return "" if call is None else call.traceparent


def remaining() -> float | None:
    """Returns the seconds left for the call being served; None outside of one or when it has no deadline.

    Zero or less means that its time is over. A task that outlives the call must be started in a fresh
    `contextvars.Context`, else it inherits this end.
    """
    call = _current.get(None)
    if call is None or call.deadline is None:
        return None
    return call.deadline - call.monotonic()


def enter(call: CallContext) -> None:
    """Makes this the current call of the running task, for good: each gRPC call runs in a task of its own."""
    _current.set(call)


@contextmanager
def serving(call: CallContext) -> Iterator[None]:
    """Makes this the current call for a block: calls that do not arrive over gRPC, such as client frames."""
    token = _current.set(call)
    try:
        yield
    finally:
        _current.reset(token)
