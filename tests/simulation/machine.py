"""A rule machine over scripts: Hypothesis puts acts together, the run is judged at the end, and what fails is shrunk.

Each rule adds an act at the machine's time; only `advance` lets time pass, and `heal` ends what goes on. Nothing runs
before the script is complete, so an example costs one run. It must not judge: the checker does.
"""

from __future__ import annotations

import contextlib
import io
import secrets
from collections.abc import Callable

import msgspec
from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as chosen_by
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.faults.checker import report
from tests.simulation.run import Outcome, run
from tests.simulation.script import (
    ASIDE_HOOKS,
    FORGETFUL,
    HOOKS,
    LANE_HOOKS,
    LINKS,
    NODES,
    PROCESSES,
    REFUSING,
    REPLICAS,
    RETRY_STORES,
    STORE_TROUBLES,
    STORES,
    TOPIC,
    WEAKNESSES,
    Act,
    How,
    Script,
    Store,
)
from tests.simulation.spread import spread

_STEPS = 25
_SHORTENING = 100
# So many scripts are one piece of a search, whoever makes it.
_PART = 25
_LEAST_LENGTH_S = 5.0
# These are written down as faults, whatever they meet.
_FAULTS = frozenset({"cut", "reset", "trouble", "flush", "forget", "poison", "crash"})
_RECIPIENTS = 3
_SUBSCRIBERS = (0, 1)
_DEVICES = [f"device:r{number}/0" for number in range(_RECIPIENTS)]
_LINKS = [*LINKS, *((device, node) for device in _DEVICES for node in NODES)]

_pauses = st.sampled_from((0.01, 0.1, 0.5, 2.0, 6.0, 12.0))
_lasting = st.sampled_from((0.5, 2.0, 6.0, 12.0, 25.0))
_delays = st.sampled_from((0.1, 0.5, 4.0, 6.0, 10.0))
_shares = st.sampled_from((1.0, 0.3))


class ScriptMachine(RuleBasedStateMachine):
    """Makes a script, act by act."""

    judge: Callable[[Script, int], None]

    def __init__(self) -> None:
        super().__init__()
        self.acts: list[Act] = []
        self.now = 0.0
        self.seed = 0
        self.store: Store = "file"
        self.replica = REPLICAS[0]
        self.late = False
        self.large = False
        self.channel = False
        self._numbers = 0

    @initialize(
        seed=st.integers(0, 1_000),
        store=st.sampled_from(("file", "replicas")),
        replica=st.sampled_from(REPLICAS),
        late=st.booleans(),
        large=st.booleans(),
        channel=st.booleans(),
    )
    def begin(self, seed: int, store: Store, replica: str, late: bool, large: bool, channel: bool) -> None:
        """Chooses what the whole run has: scheduling, store, the weak replica, late requests, slices, a channel."""
        self.seed, self.store, self.replica, self.late, self.large = seed, store, replica, late, large
        self.channel = channel
        self.publish(set(range(_RECIPIENTS)), 1, 1, 0.0)

    @rule(
        to=st.sets(st.integers(0, _RECIPIENTS - 1), min_size=1),
        count=st.integers(1, 4),
        twins=st.sampled_from((1, 1, 1, 2)),
        over=st.sampled_from((0.0, 0.0, 0.0, 3.0)),
    )
    def publish(self, to: set[int], count: int, twins: int, over: float) -> None:
        """Publishes some events, one after the other."""
        for _ in range(count):
            self._add("publish", number=self._numbers, numbers=tuple(sorted(to)), count=twins, seconds=over)
            self._numbers += 1
            self.now += 0.05

    @rule()
    def tell(self) -> None:
        """Publishes an event for whoever has the topic."""
        self._add("publish", target=TOPIC, number=self._numbers)
        self._numbers += 1

    @rule(device=st.integers(0, _RECIPIENTS), seconds=st.sampled_from((0.0, 1.0, 4.0, 9.0)))
    def away(self, device: int, seconds: float) -> None:
        """A device leaves and comes back."""
        self._add("away", number=device, seconds=seconds)

    @rule(number=st.integers(0, 20))
    def read(self, number: int) -> None:
        """A person marks something as read."""
        self._add("read", number=number)

    @rule(recipient=st.integers(0, _RECIPIENTS - 1), muted=st.booleans())
    def mute(self, recipient: int, muted: bool) -> None:
        """A person mutes a category, or takes that back."""
        self._add("mute", number=recipient, count=int(muted))

    @rule(link=st.sampled_from(_LINKS), seconds=_lasting)
    def cut(self, link: tuple[str, str], seconds: float) -> None:
        """Nothing passes between two machines."""
        self._add("cut", target=link[0], other=link[1], seconds=seconds)

    @rule(link=st.sampled_from(_LINKS))
    def reset(self, link: tuple[str, str]) -> None:
        """Connections between two machines break."""
        self._add("reset", target=link[0], other=link[1])

    @rule(process=st.sampled_from(PROCESSES))
    def crash(self, process: str) -> None:
        """A process dies."""
        self._add("crash", target=process)

    @rule(hook=st.sampled_from((*HOOKS, *LANE_HOOKS, *ASIDE_HOOKS)), count=st.integers(1, 3))
    def crash_at(self, hook: str, count: int) -> None:
        """A process dies when it passes a hook."""
        self._add("crash at", target=hook, count=count)

    @rule(
        store=st.sampled_from((*STORES, *RETRY_STORES)),
        how=st.sampled_from(STORE_TROUBLES),
        seconds=_lasting,
        delay=_delays,
        share=_shares,
    )
    def trouble(self, store: str, how: How, seconds: float, delay: float, share: float) -> None:
        """A store does not do what it should."""
        self._add("trouble", target=store, how=how, seconds=seconds, delay=delay, share=share)

    @precondition(lambda self: self.store == "replicas")
    @rule(how=st.sampled_from(WEAKNESSES), seconds=_lasting, delay=_delays, share=_shares)
    def weaken(self, how: How, seconds: float, delay: float, share: float) -> None:
        """The weak replica does something wrong."""
        self._add("trouble", target=self.replica, how=how, seconds=seconds, delay=delay, share=share)

    @precondition(lambda self: self.channel)
    @rule(what=st.sampled_from(REFUSING), seconds=_lasting, share=_shares)
    def refuse(self, what: str, seconds: float, share: float) -> None:
        """The channel, the store or a delivery that breaks leaves something for an operator."""
        self._add("trouble", target=what, how="refused", seconds=seconds, share=share)

    @precondition(lambda self: self.channel)
    @rule(how=st.sampled_from(STORE_TROUBLES), seconds=_lasting, delay=_delays, share=_shares)
    def trouble_channel(self, how: How, seconds: float, delay: float, share: float) -> None:
        """The channel does not do what it should."""
        self._add("trouble", target="channel", how=how, seconds=seconds, delay=delay, share=share)

    @precondition(lambda self: self.channel)
    @rule()
    def redrive(self) -> None:
        """An operator tries again what was given up or put aside."""
        self._add("redrive")

    @rule()
    def flush(self) -> None:
        """The request log forgets everything."""
        self._add("flush")

    @rule(store=st.sampled_from(FORGETFUL), count=st.integers(1, 5))
    def forget(self, store: str, count: int) -> None:
        """A store loses its last writes."""
        self._add("forget", target=store, count=count)

    @rule(lane=st.sampled_from(("high", "normal", "bulk")))
    def poison(self, lane: str) -> None:
        """A record that nobody can read."""
        self._add("poison", target=lane)

    @precondition(lambda self: any(act.at + act.seconds > self.now for act in self.acts))
    @rule()
    def heal(self) -> None:
        """Whatever goes on is over now."""
        self.acts = [
            msgspec.structs.replace(act, seconds=max(0.01, self.now - act.at))
            if act.kind in ("cut", "trouble") and act.at + act.seconds > self.now
            else act
            for act in self.acts
        ]

    @rule(seconds=_pauses)
    def advance(self, seconds: float) -> None:
        """Lets time pass."""
        self.now += seconds

    def teardown(self) -> None:
        """The script is complete: it is run, and judged."""
        if self.acts:
            type(self).judge(self.script(), self.seed)

    def script(self) -> Script:
        """Returns what was put together so far."""
        acts = sorted(self.acts, key=lambda act: act.at)
        lost = any(act.kind == "forget" and act.target == "presence" for act in acts)
        # Without faults a key keeps its order, but smaller audiences do not wait for a large one.
        large = self.large and any(act.kind in _FAULTS for act in acts)
        return Script(
            acts,
            max(_LEAST_LENGTH_S, self.now + 1.0),
            _RECIPIENTS,
            store=self.store,
            late=self.late,
            subscribers=_SUBSCRIBERS,
            round=60.0 if lost else 600.0,
            large=1 if large else 10_000,
            channel=self.channel,
        )

    def _add(self, kind: str, **fields: object) -> None:
        self.acts.append(msgspec.convert({"at": round(self.now, 3), "kind": kind, **fields}, Act))


class Found(msgspec.Struct):
    """What the machine came to.

    Attributes:
        runs: scripts that were run.
        failed: the last outcome that was not right: the shortest there is when shrinking is over.
        steps: how Hypothesis tells it.
    """

    runs: int = 0
    failed: Outcome | None = None
    steps: str = ""

    def __str__(self) -> str:
        """Says it in lines for people."""
        if self.failed is None:
            return f"scripts {self.runs}, not valid 0"
        acts = "\n".join(f"  act {act}" for act in self.failed.script.acts)
        again = msgspec.json.encode(self.failed.script).decode()
        return (
            f"scripts {self.runs}, one is not valid\n{report(self.failed.verdict)}\n{acts}\n{self.steps}\n"
            f"again: python -m tests.simulation --script '{again}' {self.failed.seed}"
        )


def shorten(outcome: Outcome, limit: int) -> Outcome:
    """Returns a run with fewer acts that is not right either.

    Hypothesis shrinks by values too, which changes what all later choices of a run come to; leaving acts out, large
    parts first, needs far fewer runs.

    Args:
        outcome: of a run that is not right.
        limit: so many runs at most.
    """
    size = max(1, len(outcome.script.acts) // 2)
    while limit > 0:
        start, shorter = 0, False
        while start < len(outcome.script.acts) and limit > 0:
            acts = [*outcome.script.acts[:start], *outcome.script.acts[start + size :]]
            tried = run(msgspec.structs.replace(outcome.script, acts=acts), outcome.seed)
            limit -= 1
            if is_wrong(tried):
                outcome, shorter = tried, True
            else:
                start += size
        if size == 1 and not shorter:
            break
        size = max(1, size // 2)
    return outcome


def is_wrong(outcome: Outcome) -> bool:
    """Whether a run shows that something is broken."""
    return outcome.verdict.state == "invalid" or bool(outcome.broken)


def search(examples: int, *, fixed: bool, shrink: bool, processes: int) -> Found:
    """Runs scripts until one is not valid, and shrinks that one.

    Args:
        examples: so many at most.
        fixed: the same examples each time.
        shrink: look for a shorter script that fails.
        processes: so many share the search.
    """
    first = 0 if fixed else secrets.randbits(32)
    starts = range(0, examples, _PART)
    parts = [(min(_PART, examples - start), first + number) for number, start in enumerate(starts)]
    found = Found()
    for part in spread(_search, parts, processes):
        found = Found(found.runs + part.runs, part.failed, part.steps)
        if found.failed is not None:
            break
    if found.failed is not None and shrink:
        found.failed = shorten(found.failed, _SHORTENING)
    return found


def _search(part: tuple[int, int]) -> Found:
    """Runs so many scripts, which the second number chooses, until one is not valid."""
    examples, choice = part
    found = Found()

    def judge(script: Script, seed: int) -> None:
        outcome = run(script, seed)
        found.runs += 1
        if is_wrong(outcome):
            found.failed = outcome
            raise AssertionError(f"{outcome.verdict.state} {outcome.broken}")

    @chosen_by(choice)
    class Machine(ScriptMachine):
        pass

    Machine.judge = staticmethod(judge)
    told = io.StringIO()
    chosen = settings(
        max_examples=examples,
        stateful_step_count=_STEPS,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    with contextlib.redirect_stdout(told):
        try:
            run_state_machine_as_test(Machine, settings=chosen)
        except AssertionError as error:
            found.steps = "\n".join(getattr(error, "__notes__", ())) or told.getvalue()
    return found
