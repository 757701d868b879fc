"""Leaving service in order: no new sessions, a goodbye, no new deliveries once nobody is left, the last acks, the end.

Until it has left, a session gets what is live: its client is on its way, and not gone. Must not wait without a limit:
the app bounds each step. Steps 6 and 10 of one notification (`architecture.md` §3).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from svc_gateway.lease import NodeLease
from svc_gateway.link import GatewayLinks
from svc_gateway.service import Gateway
from svc_gateway.websocket import Listener
from svc_gateway.worker import PresenceWorker

_PAUSE = 0.02


class Drain:
    """The steps of a node's drain."""

    def __init__(
        self,
        *,
        gateway: Gateway,
        lease: NodeLease,
        links: GatewayLinks,
        listener: Listener,
        presence: PresenceWorker,
        grace: float,
    ) -> None:
        """Keeps what is drained.

        Args:
            gateway: the sessions.
            lease: the node's.
            links: from delivery processes.
            listener: takes WebSockets.
            presence: is told that the node drains.
            grace: seconds sessions are given to leave.
        """
        self._gateway = gateway
        self._lease = lease
        self._links = links
        self._listener = listener
        self._presence = presence
        self._grace = grace

    async def say_goodbye(self) -> None:
        """Takes nothing new and tells sessions to go; returns when they are gone or their time is over."""
        self._lease.draining = True
        self._presence.renew_at_once()
        await self._listener.close()
        self._gateway.go_away(self._grace, self._grace)
        await _until(lambda: self._gateway.sessions.count == 0, self._grace)
        self._lease.left = True
        self._links.drain()
        self._gateway.close_all()

    async def hand_back(self) -> None:
        """Waits until acks are stored and presence knows who left, or their time is over."""
        await _until(lambda: self._gateway.marks.count == 0 and not len(self._gateway.presence), self._grace)


async def _until(condition: Callable[[], bool], limit: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit):
            while not condition():  # noqa: ASYNC110  # the counts change in many places, and this happens once
                await asyncio.sleep(_PAUSE)
