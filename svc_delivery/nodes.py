"""Follows presence's list of gateway nodes: one link for each that has a live lease.

Path step 6. Must not drop links because presence does not answer: a link notices by itself when its node is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from heliograph.gateway.v1 import gateway_service_pb2 as pb
from heliograph.type.v1 import envelope_pb2
from mesh.channel import Channels
from mesh.errors import Failure
from mesh.telemetry import logger
from svc_delivery.links import Link
from svc_delivery.ports import NodeAddress, Presence


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

    @property
    def unfinished(self) -> int:
        """Batches and deliveries that open links have not got rid of."""
        return sum(link.unfinished for link, _ in self._links.values() if link.is_open)

    def offer(self, node_id: str, envelope: envelope_pb2.Envelope, recipient_keys: Sequence[str]) -> bool:
        """See `ports.Nodes`."""
        known = self._links.get(node_id)
        return known is not None and known[0].offer(envelope, recipient_keys)

    def change(self, node_id: str, change: pb.Change) -> bool:
        """See `ports.Nodes`."""
        known = self._links.get(node_id)
        return known is not None and known[0].change(change)

    async def run(self) -> None:
        """Follows presence's list of nodes, for good."""
        async with asyncio.TaskGroup() as group:
            while True:
                try:
                    nodes = await self._presence.nodes()
                except Failure as failure:
                    self._log.warning("nodes_not_listed", reason=failure.reason, error=failure.message)
                else:
                    await self._follow(nodes, group)
                await asyncio.sleep(self._poll)

    async def _follow(self, nodes: Sequence[NodeAddress], group: asyncio.TaskGroup) -> None:
        listed = {node.node_id: node for node in nodes}
        for node_id in [node_id for node_id, (link, _) in self._links.items() if listed.get(node_id) != link.node]:
            link, task = self._links.pop(node_id)
            task.cancel()
            await asyncio.wait([task])
            await self._channels.release_node(node_id)
            self._log.info("link_dropped", node_id=node_id, unfinished_count=link.unfinished)
        for node_id, node in listed.items():
            if node_id not in self._links:
                link = self._make_link(node)
                self._links[node_id] = (link, group.create_task(link.run()))
