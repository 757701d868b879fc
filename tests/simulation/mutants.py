"""The services with one rule broken each: what the judge must notice. For tests of the tests only.

Each mutant replaces something of the real code for as long as its context is open, and names the scripts that bring it
to light. None of them is in the code itself.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

import heliograph_client.inbound
import heliograph_client.resume
import mesh.lanes
import mesh.lanes.positions
import mesh.lanes.sqlite
import svc_delivery.counts
import svc_delivery.intake
import svc_delivery.links
import svc_delivery.marks
import svc_delivery.offers
import svc_delivery.replay
import svc_delivery.rows
import svc_delivery.store.sqlite
import svc_delivery.worker
import svc_delivery.writes
import svc_fanout.core
import svc_fanout.flight
import svc_fanout.wishes
import svc_gateway.connect
import svc_gateway.given
import svc_gateway.link
import svc_gateway.queues
import svc_gateway.service
import svc_gateway.worker
import svc_ingest.core
from mesh.ids import join_key
from tests.simulation.mutant import CALM, Mutant, Replace, away, crash, cuts, events, script
from tests.simulation.mutants_aside import MUTANTS as ASIDE
from tests.simulation.mutants_of_time import MUTANTS as OF_TIME
from tests.simulation.mutants_of_time import no_follow_up
from tests.simulation.script import NODES, Act


def _ok_before_append(replace: Replace) -> None:
    append = mesh.lanes.sqlite.SqliteLaneWriter.append

    async def later(self: Any, records: Any) -> None:
        async def soon() -> None:
            await asyncio.sleep(0.5)
            await append(self, records)

        asyncio.get_running_loop().create_task(soon())

    replace(mesh.lanes.sqlite.SqliteLaneWriter, "append", later)


def _commit_before_write(replace: Replace) -> None:
    begin = svc_fanout.flight.Flight.begin

    def begun(self: Any, record: Any, event_id: str) -> None:
        begin(self, record, event_id)
        self._low_water.done(record.position)

    replace(svc_fanout.flight.Flight, "begin", begun)


def _commit_the_largest(replace: Replace) -> None:
    done = mesh.lanes.positions.LowWater.done

    def all_below(self: Any, position: int) -> None:
        for mark in self._marks.values():
            for below in [one for one in mark.open if one <= position]:
                done(self, below)

    replace(mesh.lanes.positions.LowWater, "done", all_below)


def _show_every_copy(replace: Replace) -> None:
    remember = heliograph_client.resume.Resume.remember

    def always(self: Any, id_: str, revision: int, now: float) -> bool:
        remember(self, id_, revision, now)
        return True

    replace(heliograph_client.resume.Resume, "remember", always)


def _offer_what_was_given(replace: Replace) -> None:
    replace(svc_gateway.given.GivenIds, "has", lambda self, id_, revision: False)


def _cursor_ahead(replace: Replace) -> None:
    replace(svc_delivery.replay, "cursor_after", lambda read_us, margin: read_us + 20_000_000)


def _wrong_key_order(replace: Replace) -> None:
    replace(svc_delivery.intake, "join_key", lambda tenant, recipient: join_key(recipient, tenant))


def _drop_when_full(replace: Replace) -> None:
    write = svc_gateway.connect.StreamConnection.write

    def dropping(self: Any, frame: bytes) -> None:
        if self._queue is None or len(self._queue) < 3:
            write(self, frame)

    replace(svc_gateway.connect.StreamConnection, "write", dropping)


def _trust_presence(replace: Replace) -> None:
    replace(svc_gateway.worker.PresenceWorker, "assert_all", lambda self: None)


def _wishes_for_ever(replace: Replace) -> None:
    async def never(self: Any) -> None:
        await asyncio.Event().wait()

    replace(svc_fanout.wishes.Wishes, "run", never)
    replace(svc_fanout.wishes.Wishes, "_forget_old", lambda self: None)


def _new_id_each_time(replace: Replace) -> None:
    derive = svc_ingest.core.derive_event_id

    def drawn(draft: Any, tenant_id: str, producer_id: str, request_id: bytes, id_time_ms: int) -> bytes:
        return derive(draft, tenant_id, producer_id, os.urandom(16), id_time_ms)

    replace(svc_ingest.core, "derive_event_id", drawn)


def _ignore_expiry(replace: Replace) -> None:
    replace(svc_delivery.intake, "is_expired", lambda envelope, now_us: False)
    replace(svc_gateway.link.GatewayLinks, "_seconds_left", lambda self, delivery: float("inf"))


def _skip_poison(replace: Replace) -> None:
    async def passed(self: Any, record: Any, failure: Any) -> None:
        self._low_water.add(record.position)
        self._low_water.done(record.position)

    replace(svc_fanout.flight.Flight, "pass_by", passed)


def _no_follow_up(replace: Replace) -> None:
    no_follow_up(replace)
    # It would find after ten seconds what is connected.
    _look_at_no_link(replace)


def _unread_as_a_counter(replace: Replace) -> None:
    async def always(self: Any, recipient_key: str) -> Any:
        return self._known.get(recipient_key)

    replace(svc_delivery.counts.Counts, "known", always)


def _leak_to_everybody(replace: Replace) -> None:
    offer = svc_gateway.service.Gateway.offer

    def both(self: Any, key: str, *rest: Any) -> Any:
        outcome = offer(self, key, *rest)
        for other in ("acme/r0", "acme/r1"):
            if other != key:
                offer(self, other, *rest)
        return outcome

    replace(svc_gateway.service.Gateway, "offer", both)


def _look_at_no_link(replace: Replace) -> None:
    replace(svc_gateway.service.Gateway, "look_soon", lambda self, within: None)


def _rounds_assert_nothing(replace: Replace) -> None:
    replace(svc_gateway.queues.PresenceQueue, "assert_again", lambda self, connection: None)


# Presence lost who is there and does not know it; what comes then must be there within a round.
_FORGOTTEN = msgspec.structs.replace(
    script(
        [Act(at=5.5 + number / 4, kind="publish", number=2 * number, numbers=(0, 1)) for number in range(10)],
        Act(at=5.0, kind="forget", target="presence", count=5),
        length=10.0,
    ),
    round=60.0,
)

MUTANTS: Sequence[Mutant] = (
    *OF_TIME,
    *ASIDE,
    Mutant("rounds assert nothing", _rounds_assert_nothing, _FORGOTTEN),
    Mutant("OK before the lane has it", _ok_before_append, script(events(), *crash("ingest", 3.0, 6.0, 9.0))),
    Mutant(
        "the position moves before the rows are written",
        _commit_before_write,
        script(
            events(40),
            Act(at=1.0, kind="cut", target="fanout", other="delivery", seconds=6.0),
            *crash("fanout", 5.0),
        ),
    ),
    Mutant(
        "the position moves to the largest that is done",
        _commit_the_largest,
        script(
            events(80),
            Act(at=1.0, kind="trouble", target="inbox.db", seconds=8.0, how="stalled", delay=1.5, share=0.3),
            *crash("delivery", 2.5, 5.5),
            *crash("fanout", 2.5, 5.5),
        ),
    ),
    # A repeat comes when the request log is too slow to know it, and after the cursor has passed the first row.
    Mutant(
        "an app shows every copy",
        _show_every_copy,
        script(
            [
                Act(at=2.0 + 0.1 * number, kind="publish", number=2 * number, numbers=(0, 1), count=2)
                for number in range(5)
            ],
            *away(0, 9.5, seconds=0.2),
            Act(at=11.0, kind="trouble", target="requests.db", seconds=4.0, how="slow", delay=0.5),
            length=25.0,
        ),
    ),
    Mutant(
        "a node offers what it gave", _offer_what_was_given, script(events(60), *away(0, 2.0, 5.0, 8.0, seconds=0.5))
    ),
    Mutant("a cursor is ahead of its read", _cursor_ahead, script(events(40, 20.0), *away(1, 3.0, 8.0, seconds=9.0))),
    Mutant("tenant and recipient are mixed up", _wrong_key_order, CALM),
    Mutant(
        "what does not fit is dropped",
        _drop_when_full,
        script(events(80, 8.0, size=3_500), *cuts("device:r0/0", 2.0, 9.0)),
    ),
    Mutant(
        "presence that forgot is trusted",
        _trust_presence,
        # Nothing is offered while it is away: sessions would look for that.
        script(
            [Act(at=8.0 + number / 4, kind="publish", number=2 * number, numbers=(0, 1)) for number in range(20)],
            *crash("presence", 3.0),
        ),
    ),
    Mutant(
        "wishes are remembered for ever",
        _wishes_for_ever,
        script(
            [Act(at=1.0 + number, kind="publish", number=2 * number + 1, numbers=(0, 1)) for number in range(20)],
            Act(at=5.0, kind="mute", number=0, count=1),
        ),
    ),
    Mutant(
        "a repeat gets another id",
        _new_id_each_time,
        script(
            events(30),
            *(
                Act(at=2.0, kind="trouble", target=store, seconds=5.0, how="lost", share=0.7)
                for store in ("normal.db", "high.db")
            ),
        ),
    ),
    Mutant(
        "expired events are delivered",
        _ignore_expiry,
        script(
            events(),
            Act(at=4.0, kind="publish", number=100, numbers=(0, 1), seconds=3.0),
            Act(at=3.9, kind="cut", target="fanout", other="delivery", seconds=8.0),
        ),
    ),
    Mutant(
        "records that nobody can read are skipped",
        _skip_poison,
        script(events(), Act(at=3.0, kind="poison", target="normal")),
    ),
    Mutant(
        "nothing looks after what was accepted",
        _no_follow_up,
        script(
            events(40),
            Act(at=2.0, kind="cut", target="delivery", other="presence", seconds=9.0),
            *crash("delivery", 6.0),
        ),
    ),
    Mutant(
        "unread is a number of its own",
        _unread_as_a_counter,
        script(events(), *(Act(at=3.0 + at, kind="read", number=at) for at in range(6))),
    ),
    Mutant(
        "notifications go to strangers",
        _leak_to_everybody,
        script([Act(at=2.0 + number, kind="publish", number=2 * number, numbers=(0,)) for number in range(15)]),
    ),
    # What waited for a node in a process that died; the recipient's other device has acked it meanwhile.
    Mutant(
        "nobody looks when a link is back",
        _look_at_no_link,
        script(
            [Act(at=1.0 + number * 0.5, kind="publish", number=2 * number, numbers=(0,)) for number in range(50)],
            *(
                act
                for at, node in ((3.0, NODES[0]), (15.0, NODES[1]))
                for act in (
                    Act(at=at, kind="cut", target="delivery", other=node, seconds=8.0),
                    Act(at=at + 5.0, kind="crash", target="delivery"),
                )
            ),
        ),
    ),
)

BY_NAME: Mapping[str, Mutant] = {mutant.name: mutant for mutant in MUTANTS}
