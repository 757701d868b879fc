"""Whoever reads a simulated cluster when all is quiet: inboxes, lanes, what was put aside, who presence knows.

It reads from a machine of its own, and only what recipients, operators and services may.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from heliograph.delivery.v1 import dead_letter_service_pb2, dead_letter_service_pb2_grpc
from heliograph.fanout.v1 import fanout_service_pb2, fanout_service_pb2_grpc
from heliograph.presence.v1 import presence_service_pb2, presence_service_pb2_grpc
from mesh.ids import join_key
from tests.faults import history, reading
from tests.faults.actors import Screen
from tests.faults.history import Recorder
from tests.simulation.network import Channel
from tests.simulation.people import TENANT, Calls
from tests.simulation.wiring import Cluster
from tests.simulation.world import WALL_BASE_S

_HOST = "reader"
_LIMIT_S = 10.0
_RECORDS_A_CALL = 50


class Reader:
    """Reads one cluster, and writes down what it finds."""

    def __init__(self, cluster: Cluster, recorder: Recorder) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._recorder = recorder
        # When a letter was first sent again.
        self._redriven: dict[str, float] = {}

    async def on_its_machine(self, coroutine: Coroutine[Any, Any, object]) -> object:
        """Runs work where the reader is: no fault of a service's machine ends it."""
        host = self._world.hosts.get(_HOST) or self._world.boot(_HOST)
        return await self._world.start(host, coroutine)

    async def lag(self) -> int:
        """Returns how many records no reader of a lane has finished."""
        return sum(lane.record_count for lane in await self._lanes())

    async def read_everything(
        self, recipients: Sequence[str], accepted: Mapping[str, Sequence[str]], screens: Sequence[Screen]
    ) -> None:
        """Writes down what everybody has.

        Args:
            recipients: whose inboxes.
            accepted: event id → recipients.
            screens: the devices.
        """
        calls, clock = Calls(self._cluster), self._world.loop.time
        await self.on_its_machine(
            reading.read_inboxes(calls, recipients, accepted, tenant=TENANT, recorder=self._recorder, clock=clock)
        )
        for lane in await self._lanes():
            self._recorder.add(
                history.Position(at=clock(), lane=lane.lane, committed=0, first_unfinished=None, lag=lane.record_count)
            )
        await self.on_its_machine(reading.read_aside(calls, recorder=self._recorder, clock=clock))
        await self.on_its_machine(self._read_registry(recipients, screens))
        for screen in screens:
            screen.finish()
        await self.on_its_machine(self._letters(recipients))

    async def redrive(self, recipients: Sequence[str]) -> int:
        """Sends everything that was given up or put aside on its way again; returns how much of it goes.

        Raises:
            Failure: somebody does not answer; what went is gone from the lists.
        """
        return int(str(await self.on_its_machine(self._redrive(recipients))))

    async def _redrive(self, recipients: Sequence[str]) -> int:
        calls, now = Calls(self._cluster), self._world.loop.time()
        parked = await calls.call(
            "fanout",
            lambda channel: fanout_service_pb2_grpc.FanoutServiceStub(channel).ListParked,
            fanout_service_pb2.ListParkedRequest(page_size=500),
            reading.OPERATOR,
        )
        went = 0
        ids = [one.parked_id for one in parked.records]
        for start in range(0, len(ids), _RECORDS_A_CALL):
            answer = await calls.call(
                "fanout",
                lambda channel: fanout_service_pb2_grpc.FanoutServiceStub(channel).RedriveParked,
                fanout_service_pb2.RedriveParkedRequest(parked_ids=ids[start : start + _RECORDS_A_CALL]),
                reading.OPERATOR,
            )
            went += answer.redriven_count
        # What was put aside may be about the same deliveries.
        letter_ids = await self._letters(recipients, redrive=now)
        for letter_id in letter_ids:
            self._redriven.setdefault(letter_id, now)
        if letter_ids:
            done = await calls.call(
                "delivery",
                lambda channel: dead_letter_service_pb2_grpc.DeadLetterServiceStub(channel).RedriveDeadLetters,
                dead_letter_service_pb2.RedriveDeadLettersRequest(dead_letter_ids=letter_ids),
                reading.OPERATOR,
            )
            went += done.redriven_count
        return went

    async def _letters(self, recipients: Sequence[str], *, redrive: float | None = None) -> list[str]:
        """Writes letters down, those that are about to be sent again or those that are left."""
        clock = self._world.loop.time
        return await reading.read_letters(
            Calls(self._cluster),
            recipients,
            tenant=TENANT,
            recorder=self._recorder,
            clock=clock,
            wall=lambda: WALL_BASE_S + clock(),
            redriven=lambda letter_id: self._redriven.get(letter_id, redrive),
            left=redrive is None,
        )

    async def _lanes(self) -> Sequence[fanout_service_pb2.LaneLag]:
        async def ask() -> fanout_service_pb2.GetLagResponse:
            return await Calls(self._cluster).call(
                "fanout",
                lambda channel: fanout_service_pb2_grpc.FanoutServiceStub(channel).GetLag,
                fanout_service_pb2.GetLagRequest(),
                reading.OPERATOR,
            )

        answer = await self.on_its_machine(ask())
        assert isinstance(answer, fanout_service_pb2.GetLagResponse)
        return answer.lanes

    async def _read_registry(self, recipients: Sequence[str], screens: Sequence[Screen]) -> None:
        made: Any = Channel("presence")
        stub = presence_service_pb2_grpc.PresenceServiceStub(made)
        request = presence_service_pb2.BatchGetPresenceRequest(
            recipient_keys=[join_key(TENANT, recipient) for recipient in recipients], with_sessions=True
        )
        metadata = (("x-heliograph-caller", "svc/delivery"),)
        answer = await stub.BatchGetPresence(request, timeout=_LIMIT_S, metadata=metadata)
        known = [f"{one.recipient_key} {one.device_id}" for one in answer.sessions]
        real = [
            f"{join_key(screen.device.tenant, screen.device.recipient)} {screen.device.name}"
            for screen in screens
            if screen.subscriber.connected
        ]
        self._recorder.add(
            history.Registry(
                at=self._world.loop.time(), by_presence=tuple(sorted(known)), by_sockets=tuple(sorted(real))
            )
        )
