"""The life of follow-ups on retry lanes: ten seconds, a minute, ten minutes, a dead letter; and processes that die.

The service's own objects in one loop, over in-process ports; time is the test's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from heliograph.delivery.v1 import dead_letter_service_pb2 as pb
from heliograph.delivery.v1 import lane_record_pb2
from svc_delivery.ports import FollowUpRecord, FollowUps, FollowUpWrite
from svc_delivery.ports_dead_letters import DeadLetterRecord
from tests.support.backends import SqlitePoison
from tests.support.far_ends import running
from tests.support.follow_ups import EMBEDDED, fresh_kafka, make
from tests.support.retrying import Retrying, envelope_of, id_of, retrying
from tests.support.wait import until

STAGES = ((10, "retry-10s"), (60, "retry-1m"), (600, "retry-10m"))


@pytest.fixture(
    params=[
        pytest.param(lambda: EMBEDDED, id="embedded"),
        pytest.param(fresh_kafka, id="kafka", marks=pytest.mark.engines),
    ]
)
async def lanes(request: pytest.FixtureRequest) -> str:
    """Lanes of each kind."""
    url: str = request.param()
    await make(url)
    return url


class ProcessDied(BaseException):
    """What ends a process in the middle of its work."""


class MortalFollowUps:
    """Follow-ups of a process that dies once what is left of its records is durable."""

    def __init__(self, real: FollowUps) -> None:
        self._real = real
        self.due, self.next_due = real.due, real.next_due
        self.containing, self.backlog = real.containing, real.backlog

    async def finish(
        self,
        record_ids: Sequence[int],
        again: Sequence[FollowUpWrite] = (),
        letters: Sequence[DeadLetterRecord] = (),
    ) -> None:
        """See the port."""
        await self._real.finish([], again, letters)
        raise ProcessDied


async def held(delivery: Retrying, count: int) -> Sequence[FollowUpRecord]:
    """Everything that waits, once there is so much of it: what is appended may take a moment to arrive."""

    async def is_there() -> bool:
        return len(await delivery.waiting()) == count

    await until(is_there)
    return await delivery.store.follow_ups.due(delivery.now_us() + 10**13, count)


async def test_a_refused_row_goes_through_every_lane_and_is_buried(tmp_path: Path, lanes: str) -> None:
    """Not before each delay is over, and with every try in its letter; nothing is left behind."""
    async with retrying(tmp_path, follow_ups_url=lanes) as delivery:
        SqlitePoison(tmp_path / "inbox.db").refuse()
        await delivery.dispatch(envelope_of(1, category="poison"))
        for delay_s, lane in STAGES:
            (record,) = await held(delivery, 1)
            assert (record.origin.partition("/")[0], record.due_us) == (lane, delivery.now_us() + delay_s * 1_000_000)
            delivery.clock.advance(delay_s - 0.1)
            assert not await delivery.worker.step()
            await delivery.after(0.1)
        (letter,) = await delivery.buried()
        assert letter.reason == pb.DEAD_LETTER_REASON_STORE_REFUSED
        assert len(pb.DeadLetter.FromString(letter.letter).attempts) == 4
        assert await delivery.waiting() == []


async def test_nobody_who_is_there_is_given_up_too_early(tmp_path: Path, lanes: str) -> None:
    """A notification that nobody acks is offered after 10 s, 1 min and 10 min, across restarts in between."""
    for tries, (delay_s, lane) in enumerate(STAGES):
        async with retrying(tmp_path, follow_ups_url=lanes) as delivery:
            delivery.clock.advance(sum(seconds for seconds, _ in STAGES[:tries]))
            delivery.presence.where = {"acme/alice": ("n1",)}
            if tries == 0:
                await delivery.dispatch(envelope_of(1))
            (record,) = await held(delivery, 1)
            assert record.origin.partition("/")[0] == lane
            await delivery.after(delay_s)
            async with running(delivery.offers.run):
                await until(lambda: delivery.offers.waiting == 0)
            assert [envelope.event_id for _, envelope, _ in delivery.nodes.offered] == [id_of(1)]
    async with retrying(tmp_path, follow_ups_url=lanes) as delivery:
        assert await delivery.waiting() == []


async def test_an_heir_repeats_what_a_crash_cut_off(tmp_path: Path, lanes: str) -> None:
    """Appended again and not finished: both are looked at, the rows decide, and in the end nothing is left."""
    async with retrying(tmp_path, follow_ups_url=lanes) as first:
        first.presence.where = {"acme/alice": ("n1",)}
        await first.dispatch(envelope_of(1))
        await held(first, 1)
        mortal = MortalFollowUps(first.store.follow_ups)
        dying = Retrying(first.store, presence=first.presence, clock=first.clock, follow_ups=mortal)
        first.clock.advance(10.0)
        with pytest.raises(ProcessDied):
            await dying.worker.step()
    async with retrying(tmp_path, follow_ups_url=lanes) as heir:
        heir.presence.where = {"acme/alice": ("n1",)}
        heir.clock.advance(10.0)
        tries = [
            item.try_count
            for record in await held(heir, 2)
            for item in lane_record_pb2.LaneRecord.FromString(record.record).follow_ups.items
        ]
        assert sorted(tries) == [0, 1]
        await heir.after(0.0)
        await held(heir, 2)
        await heir.after(60.0)
        # Both are due again after ten minutes, as one record.
        await held(heir, 1)
        await heir.after(600.0)
        assert await heir.waiting() == []
        assert await heir.buried() == []
