"""Wishes that prefs decided, remembered: in steady state a page of events asks nobody.

Path step 4. What is remembered is true as of the last look at the changes: every second prefs is asked whose wishes
changed, and those are forgotten; without an answer everything is forgotten after a minute. Also says whether prefs
answers at all, so that nobody waits for it in vain. It must not decide what happens to events meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Mapping

from heliograph.prefs.v1 import prefs_service_pb2 as pb
from mesh.clock import Clock
from mesh.errors import Failure, Unimplemented
from mesh.ids import split_key
from mesh.telemetry import logger
from svc_fanout import core
from svc_fanout.core import Decision, Way
from svc_fanout.metrics import Metrics
from svc_fanout.ports import Prefs
from svc_fanout.turns import Turns, in_pieces

# Nothing older is used, whatever happens; see the promise about cached wishes.
OLDEST_S = 60.0
# Ways remembered of one recipient; those first learnt go first.
LARGEST_WAYS = 8

_MICROS = 1_000_000


class Wishes:
    """The decisions of one process, shared by its lanes."""

    def __init__(
        self,
        *,
        prefs: Prefs,
        clock: Clock,
        metrics: Metrics,
        most_recipients: int = 200_000,
        poll_interval: float = 1.0,
    ) -> None:
        """Knows nothing yet.

        Args:
            prefs: decides.
            clock: its monotonic time makes what is remembered old, its wall time ends decisions.
            metrics: counts.
            most_recipients: remembered at once; those not needed for longest are forgotten.
            poll_interval: seconds between two looks at the changes.
        """
        self._prefs = prefs
        self._clock = clock
        self._metrics = metrics
        self._most = most_recipients
        self._poll_interval = poll_interval
        # (tenant, recipient) → way → decision
        self._known: OrderedDict[tuple[str, str], dict[str, Decision]] = OrderedDict()
        # Up to which change that is true; None: nothing is remembered.
        self._number: int | None = None
        # When the call began whose answer said so.
        self._confirmed = 0.0
        # Rises when everything is forgotten: answers to earlier questions are not remembered.
        self._generation = 0
        self._answering = True

    @property
    def most_recipients(self) -> int:
        """How many recipients are remembered at once."""
        return self._most

    @property
    def answering(self) -> bool:
        """Whether prefs answered when it was last asked; while not, only `poll` asks."""
        return self._answering

    async def ask(
        self, wanted: Mapping[Way, Collection[str]], *, remember: bool = True
    ) -> Mapping[Way, Mapping[str, Decision]]:
        """Returns the decisions of these recipients; those that are not known while prefs does not answer are missing.

        Args:
            wanted: recipients by way.
            remember: False for audiences so large that they would push everybody else out.
        """
        self._forget_old()
        found: dict[Way, dict[str, Decision]] = {}
        unknown: dict[Way, list[str]] = {}
        now_us = round(self._clock.wall() * _MICROS)
        turns = Turns()
        for way, recipient_ids in wanted.items():
            decisions: dict[str, Decision] = {}
            missing: list[str] = []
            for piece in in_pieces(recipient_ids):
                missing += self._look_up(way, piece, now_us, decisions)
                await turns.worked(len(piece))
            found[way] = decisions
            if missing:
                unknown[way] = missing
        for request in core.questions(unknown) if self.answering else ():
            generation, sent = self._generation, self._clock.monotonic()
            try:
                response = await self._prefs.resolve(request)
                decided = core.answers(request, response)
            except Failure as failure:
                self.lose(failure)
                break
            for way, answered in decided:
                found[way].update(answered)
            if remember and generation == self._generation:
                self._remember(decided, response.change_number, sent)
        return found

    def lose(self, failure: Failure) -> None:
        """Notes that prefs did not answer, or not sensibly: nobody asks until it is heard again."""
        self._metrics.retries["prefs"].inc()
        if self.answering:
            logger().warning("prefs_lost", reason=failure.reason, error=failure.message)
        self._answering = False

    async def run(self) -> None:
        """Looks at the changes regularly, until cancelled."""
        while True:
            await asyncio.sleep(self._poll_interval)
            await self.poll()

    async def poll(self) -> None:
        """Forgets whose wishes changed; finds out whether prefs is back."""
        more = self._number is not None or not self.answering
        while more:
            number, generation, sent = self._number, self._generation, self._clock.monotonic()
            # Where nothing is remembered any answer will do.
            request = pb.ListWishChangesRequest(change_number=number or 0, page_size=1 if number is None else 0)
            try:
                response = await self._prefs.list_changes(request)
            except Failure as failure:
                self._poll_failed(failure)
                return
            self._heard()
            more = number is not None and generation == self._generation and self._apply(response, sent)

    def _poll_failed(self, failure: Failure) -> None:
        self._metrics.poll_failures.inc()
        if isinstance(failure, Unimplemented):
            # An older prefs answers all the same; what it decides is remembered for a minute.
            self._heard()
        self._forget_old()

    def _heard(self) -> None:
        if not self.answering:
            logger().info("prefs_back")
        self._answering = True

    def _apply(self, response: pb.ListWishChangesResponse, sent: float) -> bool:
        """Takes changes; says whether more follow."""
        if response.reset:
            logger().info("wishes_reset", recipient_count=len(self._known))
            self._forget_all()
            return False
        dropped = 0
        for key in response.recipient_keys:
            try:
                tenant_id, recipient_id = split_key(key)
            except ValueError:
                logger().error("change_not_understood", recipient_key=key)
                self._forget_all()
                return False
            dropped += self._known.pop((tenant_id, recipient_id), None) is not None
        self._metrics.wishes_dropped.inc(dropped)
        self._number = response.change_number
        if not response.more:
            self._confirmed = sent
        self._metrics.wishes.set(len(self._known))
        return response.more

    def _look_up(self, way: Way, recipient_ids: Collection[str], now_us: int, found: dict[str, Decision]) -> list[str]:
        """Adds what is known to what was found; returns those of whom nothing is."""
        missing: list[str] = []
        known, tenant_id, key = self._known, way.tenant_id, _key(way)
        for recipient_id in recipient_ids:
            owner = (tenant_id, recipient_id)
            ways = known.get(owner)
            decision = None if ways is None else ways.get(key)
            if decision is None or 0 < decision.end_us <= now_us:
                missing.append(recipient_id)
                continue
            found[recipient_id] = decision
            known.move_to_end(owner)
        self._metrics.wishes_found.inc(len(recipient_ids) - len(missing))
        self._metrics.wishes_asked.inc(len(missing))
        return missing

    def _remember(self, decided: list[tuple[Way, dict[str, Decision]]], number: int, sent: float) -> None:
        if self._number is None:
            self._number, self._confirmed = number, sent
        elif number < self._number:
            # Decided before a change that was taken already.
            return
        for way, decisions in decided:
            key = _key(way)
            for recipient_id, decision in decisions.items():
                ways = self._known.setdefault((way.tenant_id, recipient_id), {})
                ways[key] = decision
                if len(ways) > LARGEST_WAYS:
                    del ways[next(iter(ways))]
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        self._metrics.wishes.set(len(self._known))

    def _forget_old(self) -> None:
        if self._number is not None and self._clock.monotonic() - self._confirmed > OLDEST_S:
            self._forget_all()

    def _forget_all(self) -> None:
        self._known.clear()
        self._number = None
        self._generation += 1
        self._metrics.wishes.set(0)


def _key(way: Way) -> str:
    # A string and no tuple: a dictionary of strings and values costs the garbage collector nothing.
    return f"{way.category}\n{way.priority}\n{way.topic_id}"
