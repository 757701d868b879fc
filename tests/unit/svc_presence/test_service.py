"""What PresenceService adds to its rules and its store."""

from __future__ import annotations

from typing import Any, cast

import grpc.aio

from heliograph.presence.v1 import presence_service_pb2 as pb
from mesh.clock import ManualClock, SteadyClock
from mesh.telemetry import Telemetry
from mesh.times import micros_of
from svc_presence.metrics import Metrics
from svc_presence.service import PresenceService
from svc_presence.store import open_store

# Any: unary methods do not use it.
_NO_CONTEXT = cast("grpc.aio.ServicerContext[Any, Any]", None)


async def test_a_list_of_nodes_shows_the_time_unless_nobody_knows_it() -> None:
    """Whoever asks compares clocks; after a step of the machine's clock there is nothing to compare with."""
    machine = ManualClock(wall=1_000.0)
    clock = SteadyClock(machine)
    store = open_store("memory://", lease=15.0, clock=clock)
    presence = PresenceService(store=store, clock=clock, metrics=Metrics(Telemetry("presence")), lease=15.0)
    machine.advance(2.5)
    shown = await presence.ListNodes(pb.ListNodesRequest(), _NO_CONTEXT)
    assert micros_of(shown.answer_time) == 1_002_500_000
    machine.step_wall(60.0)
    shown = await presence.ListNodes(pb.ListNodesRequest(), _NO_CONTEXT)
    assert not shown.HasField("answer_time")
