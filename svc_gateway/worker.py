"""The loops of a node: lease, reports to presence, rounds, replays, checkpoints, marks without a link, and the clock.

Each loop serves all sessions; what one peer does not answer delays only what needs it. Must not decide for a session.
Steps 6, 7 and 10 of one notification (`architecture.md` §3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from heliograph.delivery.v1.inbox_service_pb2 import ReplayInboxResponse
from mesh.backoff import dither, full_jitter
from mesh.clock import Clock
from mesh.errors import FailedPrecondition, Failure, InvalidArgument
from mesh.telemetry import logger
from svc_gateway.freezer import Freezer
from svc_gateway.gate import Gate
from svc_gateway.host import ClientConnection
from svc_gateway.lease import NodeLease
from svc_gateway.ports import Inbox, Presence
from svc_gateway.service import Gateway
from svc_gateway.sessions import session_of

LARGEST_REPLAY = 100
_LARGEST_ROUND = 1_000
# As many as delivery reads at once.
_LARGEST_CHECKPOINT = 8
_RETRY_BASE, _RETRY_CAP = 0.1, 2.0
_TICK = 1.0
# Marks wait so long for a link before they are stored by calls.
_LINK_PATIENCE = 2.0


class PresenceWorker:
    """Keeps the node's lease and tells presence of its sessions."""

    def __init__(
        self,
        *,
        gateway: Gateway,
        lease: NodeLease,
        presence: Presence,
        clock: Clock,
        random: Callable[[], float],
        renew_interval: float,
    ) -> None:
        self._gateway = gateway
        self._lease = lease
        self._presence = presence
        self._clock = clock
        self._random = random
        self._renew_interval = renew_interval
        self._renew_now = asyncio.Event()
        self._log = logger()

    # ------------------------------------------------------------ the lease

    async def keep_lease(self) -> None:
        """Renews the lease for ever; a lost one is followed by a new epoch at once."""
        while True:
            self._renew_now.clear()
            wait = await self.renew()
            try:
                async with asyncio.timeout(wait):
                    await self._renew_now.wait()
            except TimeoutError:
                pass

    async def renew(self) -> float:
        """Renews once; returns the seconds until the next time."""
        lease, sent = self._lease, self._clock.monotonic()
        if lease.overdue(sent):
            self._lose()
        try:
            answer = await self._presence.renew(lease.node(self._gateway.sessions.count))
        except FailedPrecondition as failure:
            self._log.warning("lease_refused", epoch=lease.epoch, reason=failure.reason)
            self._lose()
            return _RETRY_BASE
        except Failure as failure:
            self._log.warning("lease_not_renewed", epoch=lease.epoch, reason=failure.reason, error=failure.message)
            return full_jitter(2, base=_RETRY_BASE * 2, cap=_RETRY_CAP, random=self._random())
        if lease.renewed(answer.incarnation, sent):
            self.assert_all()
        self._gateway.presence.wake.set()
        self._gateway.superseded(answer.superseded)
        return dither(self._renew_interval, spread=0.2, random=self._random())

    def renew_at_once(self) -> None:
        """The next renewal comes now: the node's state has changed."""
        self._renew_now.set()

    def assert_all(self) -> None:
        """Has every session asserted: presence may have lost them."""
        for connection in self._gateway.sessions:
            self._gateway.presence.assert_again(connection)

    def _lose(self) -> None:
        self._lease.lose(self._clock.wall())
        self._gateway.presence.forget_left()
        self._gateway.metrics.lease_lost.inc()
        self._log.warning("lease_lost", new_epoch=self._lease.epoch)

    # ------------------------------------------------------------ sessions

    async def report_for_ever(self) -> None:
        """Reports what changed, one call at a time; what comes meanwhile is the next call."""
        attempt = 0
        queue = self._gateway.presence
        while True:
            while not self._lease.alive or not len(queue):
                queue.wake.clear()
                await queue.wake.wait()
            if await self.report():
                attempt = 0
            else:
                await asyncio.sleep(full_jitter(attempt, base=_RETRY_BASE, cap=_RETRY_CAP, random=self._random()))
                attempt += 1

    async def report(self) -> bool:
        """Makes one report; False when presence did not take it."""
        queue, lease = self._gateway.presence, self._lease
        report, epoch = queue.take(), lease.epoch
        try:
            answer = await self._presence.report(report.request(lease.node_id, epoch))
        except Failure as failure:
            queue.give_back(report)
            self._log.warning("sessions_not_reported", reason=failure.reason, error=failure.message)
            if failure.reason == "LEASE_STALE" and lease.epoch == epoch:
                self._lose()
                self.renew_at_once()
            return False
        self._gateway.superseded(answer.superseded)
        self._gateway.registered(report.joined)
        self._gateway.registered(report.asserted)
        self._gateway.restored(answer.restored)
        if lease.met(answer.incarnation):
            self.renew_at_once()
        return True


class InboxWorker:
    """Reads replays and heads, and stores marks for which there is no link."""

    def __init__(self, *, gateway: Gateway, inbox: Inbox, clock: Clock, random: Callable[[], float]) -> None:
        self._gateway = gateway
        self._inbox = inbox
        self._clock = clock
        self._random = random
        self._log = logger()

    async def replay_for_ever(self, count: int) -> None:
        """Reads replays, so many sessions' in one call; what waits meanwhile is the next call.

        Args:
            count: sessions of a call; as many of these loops as run, so many times more are read at once.
        """
        while True:
            await self.replay(await self._gateway.replays.take(count))

    async def replay(self, connections: Sequence[ClientConnection]) -> None:
        """Reads the replays of some sessions, each to its end, its pause or its failure."""
        gateway, now = self._gateway, self._clock.monotonic()
        asked = [(one, request) for one in connections if (request := session_of(one).begin_replay(now)) is not None]
        gateway.metrics.replays.inc(len(asked))
        while asked:
            try:
                answers = await self._inbox.replay([request for _, request in asked])
            except Failure as failure:
                for connection, _ in asked:
                    gateway.replay_failed(connection, failure)
                return
            for (connection, _), answer in zip(asked, answers, strict=False):
                self._take(connection, answer)
            # Those whose page was the last one ask for nothing any more; those without an answer ask again.
            following = [(one, session_of(one).next_page()) for one, _ in asked]
            asked = [(one, request) for one, request in following if request is not None]

    def _take(self, connection: ClientConnection, answer: ReplayInboxResponse | InvalidArgument) -> None:
        if isinstance(answer, InvalidArgument):
            self._gateway.replay_failed(connection, answer)
            return
        session = session_of(connection)
        self._gateway.run(connection, session, session.replayed(answer, self._clock.monotonic()))
        session.page_written()

    async def checkpoint_for_ever(self) -> None:
        """Moves the cursors of busy sessions on, a few at a time, and rests as long as that took.

        Nobody waits for it, and the subscribers of a busy topic want it all at once: it leaves room for all else.
        """
        while True:
            connections = await self._gateway.checkpoints.take(_LARGEST_CHECKPOINT)
            began = self._clock.monotonic()
            await self.checkpoint(connections)
            await asyncio.sleep(self._clock.monotonic() - began)

    async def checkpoint(self, connections: Sequence[ClientConnection]) -> None:
        """Reads the inboxes of those that still need it."""
        for connection in connections:
            session_of(connection).seek_checkpoint()
        await self.replay(connections)

    async def round_for_ever(self) -> None:
        """Compares heads with cursors; a failed round is left out, the next one comes by itself."""
        while True:
            connections = await self._gateway.rounds.take(_LARGEST_ROUND)
            await self.round(connections)

    async def round(self, connections: list[ClientConnection]) -> None:
        """Compares the heads of these sessions' inboxes."""
        try:
            stamps = await self._inbox.heads([session_of(one).recipient_key for one in connections])
        except Failure as failure:
            self._log.warning("heads_not_read", reason=failure.reason, error=failure.message)
            return
        self._gateway.heads(connections, stamps)

    async def store_for_ever(self) -> None:
        """Stores marks by calls while there is no link."""
        while True:
            await asyncio.sleep(_TICK)
            while await self.store():
                pass

    async def store(self) -> bool:
        """Stores one batch of marks if no link has been there for a while; False when there is nothing to do now."""
        marks = self._gateway.marks
        if marks.idle_since is None or self._clock.monotonic() - marks.idle_since < _LINK_PATIENCE:
            return False
        items = marks.take()
        if not items:
            return False
        try:
            await self._inbox.mark([item.mark for item in items])
        except InvalidArgument as failure:
            # They will never be stored; as over a link, they are logged, dropped and not held against the client.
            self._log.error("marks_refused", count=len(items), error=failure.message)
        except Failure as failure:
            marks.give_back(items)
            self._log.warning("marks_not_stored", reason=failure.reason, error=failure.message)
            return False
        marks.done(items)
        self._gateway.stored(items)
        return True


async def run_clock(gateway: Gateway, sweep: Callable[[float], None], gate: Gate, clock: Clock) -> None:
    """Moves the sessions' time on once a second, and keeps the collector away from sessions that stay.

    Args:
        gateway: whose sessions.
        sweep: ends handshakes that take too long.
        gate: counts those that it did not let in.
        clock: tells the time.
    """
    freezer, metrics = Freezer(), gateway.metrics
    while True:
        await asyncio.sleep(_TICK)
        sweep(clock.monotonic())
        gateway.tick()
        freezer.note(gateway.sessions.joined)
        metrics.frozen.set(freezer.frozen)
        metrics.deferred.set(gate.deferred)
        metrics.marks_waiting.set(gateway.marks.count)
        metrics.replays_waiting.set(len(gateway.replays))
        metrics.topics_waiting.set(gateway.topics.count)
