"""Mutants about stamps, cursors and the order of steps. Most are healed by a second rule, so that is broken as well.

Which rule heals what, within the promise of 30 seconds:

- *Stamp repeated on retry, late answer counted, cursor without overlap*: the row is in the inbox under a stamp that a
  cursor has passed, so no comparison of heads finds it. The follow-up offers it after ten seconds; every replay has
  the window's checksum, by which a device sees that it lacks something. They are broken together with the follow-up,
  and their scripts leave the device connected, so that it has no reason to replay.
- *Presence asked before the row is written, inbox read before the session registers*: the device connects between the
  two, and the follow-up finds it there after ten seconds. Broken together with the follow-up.
- *Acks confirmed before they are stored* needs nothing else.

Each mutant's script with the second rule broken alone must be valid: `run_mutants` looks at that too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import svc_delivery.offers
import svc_delivery.replay
import svc_delivery.writes
import svc_gateway.service
from mesh.errors import Failure
from svc_gateway.marks import Waiting
from tests.simulation.mutant import Mutant, Replace, away, crash, events, script
from tests.simulation.script import NODES, Act, Store

# The device whose story the scripts tell, in their order of devices: r0 has two.
_DEVICE = 2


def no_follow_up(replace: Replace) -> None:
    """Rows are written without anything that looks after them."""
    write = svc_delivery.writes.FreshWriter.write

    async def without(self: Any, rows: Any, follow_up: Any = None, decisions: Any = ()) -> int:
        return await write(self, rows, None, decisions)

    replace(svc_delivery.writes.FreshWriter, "write", without)


def _repeat_the_stamp(replace: Replace) -> None:
    async def write(self: Any, rows: Any, follow_up: Any = None, decisions: Any = ()) -> int:
        stamp: int = self._stamper.next()
        for _ in range(self._tries):
            began = self._stamper.next()
            await self._inbox.write(rows, stamp=stamp, follow_up=follow_up, decisions=decisions)
            if self._stamper.age(began) <= self._limit:
                break
            follow_up, decisions = None, ()
        return stamp

    replace(svc_delivery.writes.FreshWriter, "write", write)


def _believe_late_answers(replace: Replace) -> None:
    begin = svc_delivery.writes.FreshWriter.__init__

    def patient(self: Any, **parts: Any) -> None:
        begin(self, **{**parts, "limit": float("inf")})

    replace(svc_delivery.writes.FreshWriter, "__init__", patient)


def _no_overlap(replace: Replace) -> None:
    replace(svc_delivery.replay, "cursor_after", lambda read_us, margin: read_us)


def _ask_before_the_row(replace: Replace) -> None:
    offers: list[Any] = []
    asked: dict[str, Sequence[str]] = {}
    run, write = svc_delivery.offers.Offers.run, svc_delivery.writes.FreshWriter.write

    async def running(self: Any) -> None:
        offers.append(self)
        await run(self)

    async def asking(self: Any, rows: Any, follow_up: Any = None, decisions: Any = ()) -> int:
        keys = list({row.recipient_key for row in rows})
        try:
            found = await offers[-1]._look_up(keys) if keys else {}
        except Failure:
            found = {}
        asked.update({key: found.get(key, ()) for key in keys})
        return await write(self, rows, follow_up, decisions)

    async def remembered(self: Any, keys: Sequence[str]) -> dict[str, Sequence[str]]:
        return {key: asked[key] for key in keys if asked.get(key)}

    replace(svc_delivery.offers.Offers, "run", running)
    replace(svc_delivery.offers.Offers, "_find", remembered)
    replace(svc_delivery.writes.FreshWriter, "write", asking)


def _read_before_registering(replace: Replace) -> None:
    register = svc_gateway.service.Gateway._register
    registered = svc_gateway.service.Gateway.registered

    def at_once(self: Any, connection: Any) -> None:
        register(self, connection)
        registered(self, [connection])

    replace(svc_gateway.service.Gateway, "_register", at_once)
    replace(svc_gateway.service.Gateway, "registered", lambda self, connections: None)


def _confirm_before_store(replace: Replace) -> None:
    store = svc_gateway.service.Gateway._store

    def told(self: Any, connection: Any, session: Any, decision: Any) -> None:
        store(self, connection, session, decision)
        self.stored([Waiting(mark, connection, decision.frame_number) for mark in decision.marks])

    replace(svc_gateway.service.Gateway, "_store", told)


# ---------------------------------------------------------------- scripts


def _one_late(delay: float, *more: Act, store: Store = "file") -> Any:
    """Early events, and one at 5 s whose row is in the inbox so much later."""
    early = [Act(at=0.5 + 0.2 * number, kind="publish", number=2 * number, numbers=(0, 1)) for number in range(10)]
    return script(
        early,
        Act(at=4.9, kind="trouble", target="inbox.db", seconds=1.0, how="stalled", delay=delay),
        Act(at=5.0, kind="publish", number=100, numbers=(1,)),
        *more,
        length=30.0,
        store=store,
    )


def _between(back: float, dies: float) -> list[Act]:
    """The device is back before the row is there; delivery dies before it has offered it, and has answered fanout."""
    return [
        *away(_DEVICE, 4.0, seconds=back - 4.0),
        Act(at=back + 0.5, kind="cut", target="delivery", other="presence", seconds=12.0),
        *crash("delivery", dies),
    ]


_LATE = _one_late(9.0, *_between(12.5, 16.0))
_IN_TIME = _one_late(3.0, *_between(6.5, 10.0))
_UNREGISTERED = script(
    events(8, 2.0),
    *away(_DEVICE, 4.0, seconds=2.0),
    *(Act(at=5.5, kind="cut", target=node, other="presence", seconds=5.0) for node in NODES),
    Act(at=8.5, kind="publish", number=100, numbers=(1,)),
)

MUTANTS: Sequence[Mutant] = (
    Mutant("a stamp is repeated on retry", _repeat_the_stamp, _LATE, beside=no_follow_up),
    Mutant("a late answer counts", _believe_late_answers, _LATE, beside=no_follow_up),
    Mutant("a cursor has no overlap", _no_overlap, _IN_TIME, beside=no_follow_up),
    Mutant(
        "a cursor has no overlap, on replicas",
        _no_overlap,
        _one_late(3.0, *_between(6.5, 10.0), store="replicas"),
        beside=no_follow_up,
    ),
    Mutant(
        "presence is asked before the row is written",
        _ask_before_the_row,
        _one_late(3.0, *away(_DEVICE, 4.0, seconds=2.5)),
        beside=no_follow_up,
    ),
    Mutant(
        "the inbox is read before the session registers", _read_before_registering, _UNREGISTERED, beside=no_follow_up
    ),
    Mutant(
        "acks are confirmed before they are stored",
        _confirm_before_store,
        script(
            # Acks are on their way when the links are cut, and go down with the nodes.
            [Act(at=3.9 + 0.005 * number, kind="publish", number=2 * number, numbers=(0, 1)) for number in range(40)],
            *(Act(at=4.0, kind="cut", target="delivery", other=node, seconds=4.0) for node in NODES),
            *(act for node in NODES for act in crash(node, 6.0)),
        ),
    ),
)
