"""Hooks around effects that no store and no call tells apart: those of a channel's step, and those of a redrive.

Also what a delivery may refuse: rows that its store will not have, and events that it breaks at. The parts are the real
ones; each is told by the name of the port's method. It must not change what a part does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from heliograph.delivery.v1 import delivery_service_pb2
from mesh.clock import Clock
from svc_delivery.channels import PlanWalker
from svc_delivery.ports import RowsRefused, RowWrite
from svc_delivery.redrive import Redriver
from svc_delivery.rows import Rows, Stored
from svc_delivery.writes import FreshWriter
from svc_fanout.parked import Lane, ParkedRecords
from tests.simulation.storage import SimulatedThreads
from tests.simulation.world import current

# What troubles call it when a store will not have rows, and when a delivery breaks at events.
ROWS, EVENTS = "rows", "events"


class Around:
    """A part of a service; its process may die before and after each call of some of its methods.

    Args:
        part: any.
        effects: method → what the hooks around it are called.
    """

    def __init__(self, part: object, effects: Mapping[str, str]) -> None:
        self._part = part
        self._effects = effects

    # Any: whatever the part has.
    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        return partial(_around, found, self._effects[name]) if name in self._effects else found


async def _around(call: Callable[..., Awaitable[Any]], effect: str, *arguments: Any, **named: Any) -> Any:
    _pass(f"before {effect}")
    answer = await call(*arguments, **named)
    _pass(f"after {effect}")
    return answer


def _pass(hook: str) -> None:
    host = current()
    assert host is not None, "an effect is one of a machine's"
    if not host.alive or not SimulatedThreads.world.hook(host, hook):
        raise asyncio.CancelledError


class HookedWalker(PlanWalker):
    """Delivery's, with hooks around the channel's call and around what is written of it."""

    def __init__(self, *, cells: Any, senders: Mapping[int, Any], **parts: Any) -> None:
        hooked: Any = {number: Around(sender, {"send": "channel send"}) for number, sender in senders.items()}
        super().__init__(cells=Around(cells, {"note": "channel note"}), senders=hooked, **parts)


class HookedRedriver(Redriver):
    """Delivery's, with hooks around each of its effects."""

    def __init__(self, *, dead_letters: Any, follow_ups: Any, cells: Any, writer: Any, **parts: Any) -> None:
        hooked: Any = Around(writer, {"write": "redrive write"})
        super().__init__(
            dead_letters=Around(dead_letters, {"remove": "redrive remove"}),
            follow_ups=Around(follow_ups, {"finish": "redrive append"}),
            cells=Around(cells, {"forget": "redrive forget", "note": "redrive note"}),
            writer=hooked,
            **parts,
        )


class HookedParked(ParkedRecords):
    """Fan-out's, with hooks around each effect of a redrive."""

    def __init__(self, lanes: Mapping[str, Lane], clock: Clock) -> None:
        super().__init__(_Lanes(lanes), clock)


class _Lanes(Mapping[str, Lane]):
    """Lanes that are known only later, each with its hooks."""

    def __init__(self, lanes: Mapping[str, Lane]) -> None:
        self._lanes = lanes

    def __getitem__(self, name: str) -> Lane:
        lane = self._lanes[name]
        reader: Any = Around(lane.reader, {"unpark": "redrive unpark"})
        slices: Any = Around(lane.slices, {"append": "redrive append"})
        plan = None if lane.plan_again is None else partial(_around, lane.plan_again, "redrive plan")
        return Lane(reader, slices, plan)

    def __iter__(self) -> Any:
        return iter(self._lanes)

    def __len__(self) -> int:
        return len(self._lanes)


class RefusingWriter(FreshWriter):
    """Delivery's, whose store may refuse every row of a write."""

    def __init__(self, *, inbox: Any, **parts: Any) -> None:
        super().__init__(inbox=_Refusing(inbox), **parts)


class _Refusing(Around):
    def __init__(self, inbox: object) -> None:
        super().__init__(inbox, {})

    async def write(self, rows: Sequence[RowWrite], **rest: Any) -> None:
        """See `svc_delivery.ports.Inbox`."""
        if rows and SimulatedThreads.world.trouble(ROWS) is not None:
            raise RowsRefused(dict.fromkeys(range(len(rows)), "the simulated store will not have it"))
        await self._part.write(rows, **rest)  # type: ignore[attr-defined] # an inbox has it


class BreakingRows(Rows):
    """Delivery's, which may break at events as a version with a fault does."""

    async def take(self, batch: delivery_service_pb2.DispatchBatch) -> Stored:
        """See `Rows`."""
        if SimulatedThreads.world.trouble(EVENTS) is not None:
            raise RuntimeError("the simulated version breaks at it")
        return await super().take(batch)
