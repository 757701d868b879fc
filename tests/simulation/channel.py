"""The channel behind live of a simulated run: a provider outside of all machines, and delivery's way to it.

A call may be slow, refused, put off or lost on either way. It must not know who is to be sent what.
"""

from __future__ import annotations

import asyncio

from heliograph.type.v1 import envelope_pb2
from mesh.errors import Unavailable
from mesh.ids import split_key
from svc_delivery.ports_channels import Attempt, Outcome, Refused, Retry, Sent
from tests.faults import history
from tests.faults.history import Recorder
from tests.simulation.world import World

# What troubles call it.
NAME = "channel"


class Provider:
    """Takes what is sent, and keeps a record of that.

    Attributes:
        taken: recipient and notification of what it has.
    """

    def __init__(self, world: World, recorder: Recorder) -> None:
        self.taken: set[tuple[str, str]] = set()
        self._world = world
        self._recorder = recorder

    def hear(self, recipient_key: str, notification_id: str, attempt: Attempt, outcome: str) -> None:
        """A call has arrived."""
        tenant, recipient = split_key(recipient_key)
        if outcome == "taken":
            self.taken.add((recipient, notification_id))
        self._recorder.add(
            history.ChannelCall(
                at=self._world.loop.time(),
                tenant=tenant,
                recipient=recipient,
                notification_id=notification_id,
                attempt_id=attempt.attempt_id,
                collapse_id=attempt.collapse_id,
                outcome=outcome,
            )
        )


class Sender:
    """Implements `svc_delivery.ports_channels.ChannelSender`."""

    def __init__(self, world: World, provider: Provider) -> None:
        self._world = world
        self._provider = provider

    async def send(self, envelope: envelope_pb2.Envelope, recipient_key: str, attempt: Attempt) -> Outcome:
        """See the port."""
        world, trouble = self._world, self._world.trouble(NAME)
        seconds = 0.0 if trouble is None else trouble.seconds
        call = (recipient_key, envelope.notification_id, attempt)
        await asyncio.sleep(world.latency())
        match None if trouble is None else trouble.kind:
            case "refused":
                self._provider.hear(*call, "refused")
                return Refused("the simulated channel will not have it")
            case "busy":
                self._provider.hear(*call, "later")
                return Retry("the simulated channel has no time")
            case "stalled":
                # It may be given up before it arrives.
                await asyncio.sleep(seconds)
                self._provider.hear(*call, "taken")
            case "late":
                world.loop.call_later(seconds, self._provider.hear, *call, "taken")
                raise Unavailable("the simulated channel does not answer", reason="PEER_UNAVAILABLE")
            case "lost":
                self._provider.hear(*call, "taken")
                raise Unavailable("the answer was lost", reason="PEER_UNAVAILABLE")
            case _:
                self._provider.hear(*call, "taken")
                await asyncio.sleep(seconds)
        await asyncio.sleep(world.latency())
        return Sent()
