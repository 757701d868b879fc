"""Follows presence's list of gateway nodes: one link for each that has a live lease.

Path step 6. Must not drop links because presence does not answer: a link notices by itself when its node is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from heliograph.gateway.v1 import gateway_service_pb2 as pb
from heliograph.type.v1 import envelope_pb2
from mesh.channel import Channels
from mesh.errors import Failure
from mesh.telemetry import logger
from svc_delivery.links import Link
from svc_delivery.ports import NodeAddress, Presence

# Recipients that may wait for nodes without a link, until the list was read.
_LARGEST_EARLY = 10_000
# Between two looks of all sessions: half of what a connected device may have to wait, and no storm where presence fails
# again and again.
_LOOK_PAUSE = 15.0

_Early: TypeAlias = dict[str, tuple[list[pb.Delivery], list[pb.Change]]]


class Links:
    """The links to all nodes that presence lists; implements `ports.Nodes`."""

    def __init__(
        self, *, channels: Channels, presence: Presence, make_link: Callable[[NodeAddress], Link], poll: float
    ) -> None:
        """Holds on to its parts.

        Args:
            channels: where a dropped node's channel is given back.
            presence: lists the nodes.
            make_link: makes the link to a node, not running yet.
            poll: seconds between two looks at the list.
        """
        self._channels = channels
        self._presence = presence
        self._make_link = make_link
        self._poll = poll
        self._log = logger()
        self._links: dict[str, tuple[Link, asyncio.Task[None]]] = {}
        # What is for nodes that presence names and that the list did not show yet.
        self._early: _Early = {}
        self._early_count = 0
        self._wake = asyncio.Event()
        self._missed = False
        self._next_look = 0.0

    @property
    def unfinished(self) -> int:
        """Batches and deliveries that open links have not got rid of."""
        return sum(link.unfinished for link, _ in self._links.values() if link.is_open)

    def offer(self, node_id: str, envelope: envelope_pb2.Envelope, recipient_keys: Sequence[str]) -> bool:
        """See `ports.Nodes`."""
        known = self._links.get(node_id)
        if known is not None:
            return known[0].offer(envelope, recipient_keys)
        waiting = self._wait_for(node_id, len(recipient_keys))
        if waiting is not None:
            waiting[0].append(pb.Delivery(envelope=envelope, recipient_keys=recipient_keys))
        return waiting is not None

    def change(self, node_id: str, change: pb.Change) -> bool:
        """See `ports.Nodes`."""
        known = self._links.get(node_id)
        if known is not None:
            return known[0].change(change)
        waiting = self._wait_for(node_id, 1)
        if waiting is not None:
            waiting[1].append(change)
        return waiting is not None

    def missed(self) -> None:
        """See `ports.Nodes`."""
        self._missed = True

    async def run(self) -> None:
        """Follows presence's list of nodes, for good."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                # What comes while the list is read may be for a node that it does not show yet.
                early, count, self._early = self._early, self._early_count, {}
                try:
                    nodes = await self._presence.nodes()
                except Failure as failure:
                    self._log.warning("nodes_not_listed", reason=failure.reason, error=failure.message)
                    # Nothing brings a change of marks again at once: it waits on, in its order.
                    self._give_back(early)
                    await asyncio.sleep(self._poll)
                    continue
                self._early_count -= count
                await self._follow(nodes, group)
                for node_id, (deliveries, changes) in early.items():
                    # A node that is not listed is gone again, and its sessions with it.
                    if node_id in self._links:
                        _hand_on(self._links[node_id][0], deliveries, changes)
                self._look_for_missed()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._poll):
                        await self._wake.wait()

    def _look_for_missed(self) -> None:
        now = asyncio.get_running_loop().time()
        if not self._missed or now < self._next_look:
            return
        self._missed, self._next_look = False, now + _LOOK_PAUSE
        for link, _ in self._links.values():
            link.look()

    def _wait_for(self, node_id: str, count: int) -> tuple[list[pb.Delivery], list[pb.Change]] | None:
        """Presence names a node that is so new that it has no link: has the list read now; None when too much waits."""
        if self._early_count + count > _LARGEST_EARLY:
            return None
        self._early_count += count
        self._wake.set()
        return self._early.setdefault(node_id, ([], []))

    def _give_back(self, early: _Early) -> None:
        since, self._early = self._early, early
        for node_id, (deliveries, changes) in since.items():
            waiting = self._early.setdefault(node_id, ([], []))
            waiting[0].extend(deliveries)
            waiting[1].extend(changes)

    async def _follow(self, nodes: Sequence[NodeAddress], group: asyncio.TaskGroup) -> None:
        listed = {node.node_id: node for node in nodes}
        left: _Early = {}
        for node_id in [node_id for node_id, (link, _) in self._links.items() if listed.get(node_id) != link.node]:
            link, task = self._links.pop(node_id)
            task.cancel()
            await asyncio.wait([task])
            await self._channels.release_node(node_id)
            left[node_id] = link.hand_over()
            self._log.info("link_dropped", node_id=node_id, unfinished_count=len(left[node_id][0]))
        for node_id, node in listed.items():
            if node_id not in self._links:
                link = self._make_link(node)
                self._links[node_id] = (link, group.create_task(link.run()))
                # Its sessions may be there again, or still, and know this by nothing else at once.
                _hand_on(link, *left.get(node_id, ((), ())))


def _hand_on(link: Link, deliveries: Iterable[pb.Delivery], changes: Iterable[pb.Change]) -> None:
    for delivery in deliveries:
        link.offer(delivery.envelope, delivery.recipient_keys)
    for change in changes:
        link.change(change)
