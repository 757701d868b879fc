"""What a mutant of the services is: a rule, what breaks it, and a script that brings that to light. For tests only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from tests.simulation.script import NODES, Act, Script, Store

Replace = Callable[[Any, str, Any], None]
Make = Callable[[Replace], None]


class Mutant(msgspec.Struct, frozen=True):
    """One broken rule.

    Attributes:
        name: the rule.
        make: breaks it.
        script: brings it to light, with one of a few seeds.
        beside: breaks a second rule, which heals what the first one costs; alone it must cost nothing in this script.
    """

    name: str
    make: Make
    script: Script
    beside: Make | None = None


@contextmanager
def mutated(*broken: Make) -> Iterator[None]:
    """Breaks rules while the context is open."""
    kept: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, name: str, value: Any) -> None:
        kept.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    for make in broken:
        make(replace)
    try:
        yield
    finally:
        for owner, name, value in reversed(kept):
            setattr(owner, name, value)


# ---------------------------------------------------------------- scripts


def events(count: int = 20, length: float = 10.0, **fields: Any) -> list[Act]:
    """Events at a steady pace to both recipients."""
    return [
        Act(at=length * number / count, kind="publish", number=2 * number, numbers=(0, 1), **fields)
        for number in range(count)
    ]


def script(acts: Sequence[Act], *more: Act, length: float = 30.0, store: Store = "file") -> Script:
    """Two recipients, and clocks that agree."""
    return Script(sorted((*acts, *more), key=lambda act: act.at), length, 2, 0.0, store)


def crash(target: str, *times: float) -> list[Act]:
    """A process dies at these times."""
    return [Act(at=at, kind="crash", target=target) for at in times]


def away(number: int, *times: float, seconds: float) -> list[Act]:
    """A device leaves at these times, and is back after so many seconds."""
    return [Act(at=at, kind="away", number=number, seconds=seconds) for at in times]


def cuts(name: str, at: float, seconds: float) -> list[Act]:
    """A device is cut off from both nodes."""
    return [Act(at=at, kind="cut", target=name, other=node, seconds=seconds) for node in NODES]


CALM = script(events())
