"""What simulated runs came to, added up, and said in lines for people. It must not run anything."""

from __future__ import annotations

from collections import Counter

import msgspec

from tests.simulation.run import Outcome
from tests.simulation.script import ASIDE_HOOKS, HOOKS, LANE_HOOKS, PROCESSES, READING_HOOKS

ALL_HOOKS = (*HOOKS, *LANE_HOOKS, *ASIDE_HOOKS)


class Board(msgspec.Struct):
    """What seeds came to, added up.

    Attributes:
        seeds: runs.
        failed: seeds that are not valid.
        accepted: events.
        deliveries: recipients of them.
        extra: copies too many on wires.
        faults: that show evidence.
        idle: faults that show none: they were made, and met nothing.
        seconds: virtual.
        hooks: passed at least once.
        crashed: hooks at which a process died.
        rows: how many faults of each row of the catalogue have shown evidence.
        disagreed: reads of two replicas that had different cells.
        late: requests that arrived though their callers had given them up.
        slowest: longest time until all was quiet after the last fault, virtual seconds.
        digests: of each run's history, by its seed.
    """

    seeds: int = 0
    failed: list[int] = msgspec.field(default_factory=list)
    accepted: int = 0
    deliveries: int = 0
    extra: int = 0
    faults: int = 0
    idle: int = 0
    seconds: float = 0.0
    hooks: Counter[str] = msgspec.field(default_factory=Counter)
    crashed: Counter[str] = msgspec.field(default_factory=Counter)
    rows: Counter[str] = msgspec.field(default_factory=Counter)
    disagreed: int = 0
    late: int = 0
    slowest: float = 0.0
    digests: dict[int, str] = msgspec.field(default_factory=dict)

    def count(self, outcome: Outcome) -> None:
        """Adds a run."""
        figures = outcome.verdict.figures
        self.seeds += 1
        if outcome.verdict.state != "valid" or outcome.broken:
            self.failed.append(outcome.seed)
        self.accepted += figures.accepted
        self.deliveries += figures.deliveries
        self.extra += figures.extra
        self.faults += figures.faults
        self.idle += figures.not_exercised
        self.seconds += outcome.seconds
        self.hooks.update({hook: count for hook, count in outcome.visited.items() if _is_of_a_service(hook)})
        self.crashed.update(outcome.crashed)
        self.rows.update(outcome.rows)
        self.disagreed += outcome.disagreed
        self.late += outcome.late
        self.slowest = max(self.slowest, outcome.settled or 0.0)
        self.digests[outcome.seed] = outcome.digest

    def add(self, other: Board) -> None:
        """Adds what other runs came to."""
        for name in self.__struct_fields__:
            mine, more = getattr(self, name), getattr(other, name)
            match mine:
                case Counter():
                    mine.update(more)
                case dict():
                    mine |= more
                case list():
                    mine += more
                case _:
                    setattr(self, name, max(mine, more) if name == "slowest" else mine + more)

    def __str__(self) -> str:
        """Says it in lines for people."""
        return "\n".join(
            (
                f"seeds {self.seeds}, not valid {len(self.failed)}{f': {self.failed}' if self.failed else ''}",
                f"events accepted {self.accepted}, deliveries {self.deliveries}, copies too many {self.extra}",
                f"faults with evidence {self.faults}, not exercised {self.idle}",
                f"rows of the catalogue: {', '.join(f'{row} {count}' for row, count in sorted(self.rows.items()))}",
                f"weak replicas disagreed {self.disagreed} times, late requests {self.late}",
                f"hooks {len(ALL_HOOKS)}, passed {len(self.hooks)}, processes died at {len(self.crashed)} of them",
                f"virtual time {self.seconds / 3600:.1f} h; quiet again at the latest after {self.slowest:.1f} s",
            )
        )

    def left_out(self) -> str:
        """Says which hooks nobody passed, at which nobody died, and which nobody has listed."""
        never = self.missed
        undead = [hook for hook in ALL_HOOKS if hook in self.hooks and hook not in self.crashed]
        parts = (("never passed", never), ("no process died at", undead), ("not listed", self.unlisted))
        return "\n".join(f"hooks {what} ({len(hooks)}): {', '.join(hooks)}" for what, hooks in parts if hooks)

    @property
    def missed(self) -> list[str]:
        """Hooks that nobody passed."""
        return [hook for hook in ALL_HOOKS if hook not in self.hooks]

    @property
    def unlisted(self) -> list[str]:
        """Hooks that were passed and are not in the list."""
        return sorted(self.hooks.keys() - {*ALL_HOOKS})


def _is_of_a_service(hook: str) -> bool:
    kinds = {name.partition("-sim")[0] + "-sim" if name.startswith("gw-") else name for name in PROCESSES}
    return hook.partition(" ")[0] in kinds and hook not in READING_HOOKS
