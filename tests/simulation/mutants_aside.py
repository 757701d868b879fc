"""Mutants of what comes behind live, and of what operators try again: effects that are left out or made too soon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

import svc_delivery.channels
import svc_delivery.letters
import svc_delivery.redrive
import svc_fanout.parked
from svc_fanout import core
from tests.simulation.mutant import Mutant, Replace, events, script
from tests.simulation.script import Act, Script


def _forget_the_unanswered(replace: Replace) -> None:
    replace(svc_delivery.channels.PlanWalker, "_wait_for_an_answer", lambda self, turns, walked: None)


def _remove_before_append(replace: Replace) -> None:
    async def go(self: Any, letter: Any, again: Any) -> None:
        await self._dead_letters.remove([letter.letter_id])
        if again:
            await self._follow_ups.finish([], again)

    replace(svc_delivery.redrive.Redriver, "_go", go)


def _forget_before_planning(replace: Replace) -> None:
    async def redrive(self: Any, name: str, record: Any, *, validate_only: bool) -> None:
        event = core.decode(record.position, record.value)
        await self._lanes[name].reader.unpark(record)
        await self._lanes[name].plan_again(event, round(self._clock.wall() * 1_000_000))

    replace(svc_fanout.parked.ParkedRecords, "_redrive", redrive)


def _same_letter(replace: Replace) -> None:
    of_step = svc_delivery.letters._of_step

    def without(*what: Any, orders: Sequence[int] = (), **rest: Any) -> Any:
        return of_step(*what, **rest)

    replace(svc_delivery.letters, "_of_step", without)


def _channelled(*more: Act, length: float = 30.0) -> Script:
    """Some early events to two recipients, who have a channel behind live."""
    return msgspec.structs.replace(script(events(10, 4.0), *more, length=length), channel=True)


def _crash_in_redrive(target: str, hook: str) -> Script:
    """Something is given up; the process that is to try it again dies over that."""
    return _channelled(
        Act(at=0.5, kind="trouble", target=target, seconds=15.0, how="refused"),
        Act(at=1.0, kind="crash at", target=hook),
        Act(at=20.0, kind="redrive"),
    )


MUTANTS: Sequence[Mutant] = (
    Mutant(
        "nobody looks after a call of a channel that was not answered",
        _forget_the_unanswered,
        # It takes longer than delivery waits.
        _channelled(Act(at=0.5, kind="trouble", target="channel", seconds=18.0, how="stalled", delay=11.0)),
    ),
    Mutant(
        "a dead letter is gone before its record is there again",
        _remove_before_append,
        _crash_in_redrive("channel", "delivery after redrive remove"),
    ),
    # While the store answers late the step is taken, and given up, before its first letter goes.
    Mutant(
        "a step that is given up again has the letter of the first time",
        _same_letter,
        _channelled(
            Act(at=0.5, kind="trouble", target="channel", seconds=45.0, how="refused"),
            Act(at=16.0, kind="trouble", target="inbox.db", seconds=26.0, how="stalled", delay=1.0, share=0.3),
            *(Act(at=16.0 + number, kind="redrive") for number in range(26)),
            length=50.0,
        ),
    ),
    Mutant(
        "a parked record is gone before it is planned again",
        _forget_before_planning,
        _crash_in_redrive("events", "fanout after redrive unpark"),
    ),
)
