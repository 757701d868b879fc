"""Presence, nodes, marks and unsteady stores for tests of delivery: in-process adapters of its ports.

Must not assert anything.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

from heliograph.gateway.v1 import gateway_service_pb2
from heliograph.type.v1 import envelope_pb2, notification_pb2
from mesh.errors import Failure, Unavailable
from svc_delivery.ports import (
    Body,
    DecisionWrite,
    FollowUpWrite,
    Inbox,
    MarkOutcome,
    MarkWrite,
    NodeAddress,
    RowKey,
    RowsRefused,
    RowState,
    RowWrite,
    Window,
)


class InProcessPresence:
    """Implements `ports.Presence`.

    Attributes:
        where: node ids of each recipient that is connected.
        listed: the nodes with a live lease.
        failure: raised instead of any answer, until it is taken away.
        fail_times: so many look-ups raise it, then it is taken away; None: no end.
        looked_up: the keys of each look-up.
        gate: a look-up waits until it is set.
    """

    def __init__(self) -> None:
        self.where: dict[str, Sequence[str]] = {}
        self.listed: list[NodeAddress] = []
        self.failure: Failure | None = None
        self.fail_times: int | None = None
        self.looked_up: list[list[str]] = []
        self.listings = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def look_up(self, recipient_keys: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """See the port."""
        self.looked_up.append(list(recipient_keys))
        await self.gate.wait()
        if (failure := self.failure) is not None:
            if self.fail_times is not None:
                self.fail_times -= 1
                self.failure = failure if self.fail_times else None
            raise failure
        return {key: self.where[key] for key in recipient_keys if key in self.where}

    async def nodes(self) -> Sequence[NodeAddress]:
        """See the port."""
        self.listings += 1
        if self.failure is not None:
            raise self.failure
        return list(self.listed)


class InProcessNodes:
    """Implements `ports.Nodes`: keeps what is offered to nodes that take it.

    Attributes:
        offered: node, event and recipients, in order.
        changed: node and change, in order.
        closed: nodes that take nothing.
        missed_count: how often something was offered to nobody.
    """

    def __init__(self) -> None:
        self.missed_count = 0
        self.offered: list[tuple[str, envelope_pb2.Envelope, list[str]]] = []
        self.changed: list[tuple[str, gateway_service_pb2.Change]] = []
        self.closed: set[str] = set()

    def offer(self, node_id: str, envelope: envelope_pb2.Envelope, recipient_keys: Sequence[str]) -> bool:
        """See the port."""
        if node_id in self.closed:
            return False
        self.offered.append((node_id, envelope, list(recipient_keys)))
        return True

    def change(self, node_id: str, change: gateway_service_pb2.Change) -> bool:
        """See the port."""
        if node_id in self.closed:
            return False
        self.changed.append((node_id, change))
        return True

    def missed(self) -> None:
        """See the port."""
        self.missed_count += 1


class InProcessMarks:
    """Keeps marks in memory, after the gate is open and unless it fails; a link's `MarkKeeper`."""

    def __init__(self) -> None:
        self.kept: list[notification_pb2.Mark] = []
        self.calls = 0
        self.failure: Failure | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def keep(self, marks: Sequence[notification_pb2.Mark]) -> None:
        """Stores marks."""
        self.calls += 1
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        self.kept += marks


class UnsteadyInbox:
    """An inbox in front of a real one that counts calls, can fail, and can make writes wait.

    Attributes:
        calls: how often each method was called.
        failure: raised by writes, until it is taken away.
        poison: a content that no write may contain.
        gate: a write waits until it is set, before anything happens.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self.calls: Counter[str] = Counter()
        self.failure: Failure | RowsRefused | None = None
        self.read_failure: Failure | None = None
        self.poison: bytes | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    @property
    def epoch(self) -> str:
        """See the port."""
        return self._inbox.epoch

    async def write(
        self,
        rows: Sequence[RowWrite],
        *,
        stamp: int,
        follow_up: FollowUpWrite | None = None,
        decisions: Sequence[DecisionWrite] = (),
    ) -> None:
        """See the port."""
        self.calls["write"] += 1
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        if self.poison is not None and any(row.content == self.poison for row in rows):
            raise OverflowError("this row cannot be stored")
        await self._inbox.write(rows, stamp=stamp, follow_up=follow_up, decisions=decisions)

    async def mark(self, marks: Sequence[MarkWrite], *, stamp: int, again: bool = False) -> Sequence[MarkOutcome]:
        """See the port."""
        self.calls["mark"] += 1
        return await self._inbox.mark(marks, stamp=stamp, again=again)

    async def window(self, recipient_key: str, now_us: int) -> Window:
        """See the port."""
        self.calls["window"] += 1
        return await self._inbox.window(recipient_key, now_us)

    async def bodies(self, keys: Sequence[RowKey]) -> Mapping[RowKey, Body]:
        """See the port."""
        self._read("bodies")
        return await self._inbox.bodies(keys)

    async def heads(self, recipient_keys: Sequence[str]) -> Sequence[int]:
        """See the port."""
        self.calls["heads"] += 1
        return await self._inbox.heads(recipient_keys)

    async def states(self, keys: Sequence[RowKey]) -> Sequence[RowState | None]:
        """See the port."""
        self._read("states")
        return await self._inbox.states(keys)

    async def decisions(self, tenant_id: str, event_id: bytes) -> Sequence[DecisionWrite]:
        """See the port."""
        self.calls["decisions"] += 1
        return await self._inbox.decisions(tenant_id, event_id)

    async def sweep(self, now_us: int, limit: int) -> int:
        """See the port."""
        self._read("sweep")
        return await self._inbox.sweep(now_us, limit)

    def _read(self, method: str) -> None:
        self.calls[method] += 1
        if self.read_failure is not None:
            raise self.read_failure


def store_down() -> Failure:
    """What a store that does not answer raises."""
    return Unavailable("the disk is gone", reason="STORE_UNAVAILABLE")
