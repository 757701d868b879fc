"""What happens in a run: a list of acts with their times. Made from a seed, or by hand, or by a rule machine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

import msgspec

Kind = Literal[
    "publish",
    "read",
    "crash",
    "crash at",
    "cut",
    "reset",
    "trouble",
    "flush",
    "forget",
    "mute",
    "poison",
    "away",
    "redrive",
]
How = Literal["slow", "stalled", "lost", "refused", "late", "busy", "lagging", "deaf", "down", "forgets"]
Store = Literal["file", "replicas"]

TOPIC = "topic"

NODES = ("gw-sim-0", "gw-sim-1")
PROCESSES = ("ingest", "fanout", "prefs", "presence", "delivery", *NODES)
# Who speaks with whom.
LINKS = (
    ("producer", "ingest"),
    ("fanout", "prefs"),
    ("fanout", "delivery"),
    ("delivery", "presence"),
    ("delivery", "gw-sim-0"),
    ("delivery", "gw-sim-1"),
    ("gw-sim-0", "presence"),
    ("gw-sim-1", "presence"),
    ("gw-sim-0", "delivery"),
    ("gw-sim-1", "delivery"),
)
STORES = ("requests.db", "high.db", "normal.db", "bulk.db", "positions.db", "inbox.db")
# Where the inboxes are on replicas, follow-ups are on lanes.
RETRY_STORES = ("retry-10s.db", "retry-1m.db")
REPLICAS = ("replica-0", "replica-1", "replica-2")
# What may lose its last writes and not know it. Rows never are: what is promised rests on them.
FORGETFUL = ("requests.db", "presence")
STORE_TROUBLES: tuple[How, ...] = ("slow", "stalled", "lost", "refused", "late")
# What is wrong with the channel behind live, with a store that will not have some rows, with a delivery that breaks at
# events: each leaves something for an operator.
CHANNEL_TROUBLES: tuple[How, ...] = (*STORE_TROUBLES, "busy")
REFUSING = ("channel", "rows", "events")
# What can be wrong with one replica. "forgets" is a crash that costs it its last changes.
WEAKNESSES: tuple[How, ...] = ("lagging", "deaf", "down", "forgets")


def _around(process: str, *effects: str) -> tuple[str, ...]:
    return tuple(f"{process} {moment} {effect}" for effect in effects for moment in ("before", "after"))


# Every place at which a process may die, by who passes it: around a transaction, around a call, before it answers one,
# before it sends a message of a stream. A run that passes another one is told to be incomplete.
HOOKS = (
    *_around("ingest", "requests.db", "high.db", "normal.db", "bulk.db"),
    "ingest answer Publish",
    *_around("fanout", "positions.db", "slices-high.db", "slices-normal.db", "slices-bulk.db"),
    *_around("fanout", "call BatchResolve", "call ListWishChanges", "call ListSubscribers"),
    "fanout before call Dispatch",
    "fanout send Dispatch",
    *_around("prefs", "prefs.db"),
    "prefs answer BatchResolve",
    "prefs answer ListWishChanges",
    "prefs answer ListSubscribers",
    "prefs answer UpdatePreferences",
    "presence answer BatchGetPresence",
    "presence answer ListNodes",
    "presence answer RenewNode",
    "presence answer ReportSessions",
    *_around("delivery", "inbox.db", "call BatchGetPresence", "call ListNodes", "call BatchResolve"),
    "delivery before call Deliver",
    "delivery send Deliver",
    "delivery send Dispatch",
    "delivery answer BatchGetHeads",
    "delivery answer BatchMark",
    "delivery answer BatchReplayInbox",
    *_around("gw-sim", "call RenewNode", "call ReportSessions", "call BatchReplayInbox", "call BatchGetHeads"),
    *_around("gw-sim", "call BatchMark"),
    "gw-sim send Deliver",
    "gw-sim send Connect",
)
# Passed only before anything goes wrong, or when a run is over and everything is read.
READING_HOOKS = (
    "prefs answer Subscribe",
    "fanout answer GetLag",
    "fanout answer ListParked",
    "delivery answer Explain",
    "delivery answer ListInbox",
    "delivery answer ListDeadLetters",
    "delivery answer GetDeadLetter",
)
# Where follow-ups are on lanes.
LANE_HOOKS = _around("delivery", "retry-10s.db", "retry-1m.db", "retry-10m.db", "retry-positions.db")


# Where a step of a channel or an operator's redrive has its effects.
ASIDE_HOOKS = (
    *_around("delivery", "channel note", "channel send"),
    *_around("delivery", "redrive forget", "redrive note", "redrive append", "redrive write", "redrive remove"),
    "delivery answer RedriveDeadLetters",
    *_around("fanout", "redrive plan", "redrive append", "redrive unpark"),
    "fanout answer RedriveParked",
)


class Act(msgspec.Struct, frozen=True):
    """One thing that is done.

    Attributes:
        at: seconds after the start.
        kind: what.
        target: a process, a hook, one end of a link, or a store; of a content its topic, where it names nobody.
        other: the other end of a link.
        seconds: how long it lasts; of a content how long it matters, 0: for ever.
        number: of a content, which device, or which recipient.
        numbers: whom a content is for.
        count: at which pass of a hook; how many twins a publish has; how many writes are lost; 1 mutes and 0 takes that
            back.
        how: what a store or a replica does.
        size: of a content, in characters at least.
        delay: how late a store is, or how much a replica forgets, in seconds.
        share: of a store's transactions that are hit.
    """

    at: float
    kind: Kind
    target: str = ""
    other: str = ""
    seconds: float = 0.0
    number: int = 0
    numbers: tuple[int, ...] = ()
    count: int = 1
    size: int = 0
    how: How = "slow"
    delay: float = 0.0
    share: float = 1.0


class Script(msgspec.Struct, frozen=True):
    """A run's acts.

    Attributes:
        acts: in the order of their times.
        length: seconds until everything is healed.
        recipients: how many people.
        skew: largest difference of a process's wall clock from the true one, seconds; S is twice as much.
        store: where the inboxes are: in a file, or on three replicas.
        late: until everything is healed, unary requests whose callers gave up arrive all the same.
        subscribers: numbers of the people who have the topic.
        round: seconds between two slow rounds of a session.
        large: an audience of more recipients is planned into slices; below 10 each is one recipient's.
        channel: everybody has one more channel behind live, and an operator redrives what is put aside in the end.
    """

    acts: Sequence[Act]
    length: float
    recipients: int = 4
    skew: float = 0.4
    store: Store = "file"
    late: bool = False
    subscribers: tuple[int, ...] = ()
    round: float = 600.0
    large: int = 10_000
    channel: bool = False

    @property
    def is_calm(self) -> bool:
        """Whether nothing goes wrong."""
        return not self.late and all(
            act.kind in ("publish", "read", "mute", "away") and act.count <= 1 for act in self.acts
        )


def make(seed: int, *, faults: bool = True) -> Script:
    """Makes the script of a seed: some tens of events, and up to six faults among them.

    Of four seeds of a hook one has a channel behind live, and an operator; the hook of that one is of those.
    """
    base = _make(seed, faults=faults)
    rounds, place = divmod(seed, len(HOOKS) + len(LANE_HOOKS))
    return _with_channel(base, seed, ASIDE_HOOKS[place % len(ASIDE_HOOKS)], faults=faults) if rounds % 4 == 1 else base


def _with_channel(base: Script, seed: int, hook: str, *, faults: bool) -> Script:
    """Adds a channel behind live, what goes wrong with what is given up, and an operator who redrives that."""
    choose = random.Random(seed * 2)
    if not faults:
        return msgspec.structs.replace(base, channel=True)
    length = base.length
    targets = {"channel"} if "channel" in hook else {"events"} if "fanout" in hook else {"channel", "rows"}
    targets |= set(choose.sample(REFUSING, choose.randint(0, 2)))
    acts = [
        Act(
            choose.uniform(0.0, length * 0.3),
            "trouble",
            target=target,
            seconds=choose.uniform(length * 0.2, length * 0.5),
            how=choose.choice(CHANNEL_TROUBLES) if target == "channel" and "redrive" not in hook else "refused",
            delay=choose.choice((0.5, 4.0, 11.0)),
            share=choose.choice((0.3, 1.0)),
        )
        for target in sorted(targets)
    ]
    acts += [Act(length * choose.uniform(0.5, 1.0), "redrive") for _ in range(choose.randint(1, 3))]
    acts.append(Act(choose.uniform(0.0, length * 0.4), "crash at", target=hook, count=choose.choice((1, 1, 2, 3))))
    # Who is not there is sent to at once.
    acts.append(Act(choose.uniform(0.0, 2.0), "away", number=1, seconds=length))
    return msgspec.structs.replace(
        base,
        acts=sorted((*base.acts, *acts), key=lambda act: act.at),
        large=1 if hook.endswith("redrive append") and "fanout" in hook else base.large,
        channel=True,
    )


def _make(seed: int, *, faults: bool) -> Script:
    choose = random.Random(seed * 2 + 1)
    # Each hook has its seed, whatever else the seeds draw.
    hook = (*HOOKS, *LANE_HOOKS)[seed % (len(HOOKS) + len(LANE_HOOKS))]
    length = choose.choice((20.0, 40.0))
    recipients = choose.randint(2, 5)
    subscribers: tuple[int, ...] = ()
    if choose.random() < 0.5 or "ListSubscribers" in hook:
        subscribers = tuple(choose.sample(range(recipients), choose.randint(1, recipients)))
    large = 10_000
    # Without faults a key keeps its order, but smaller audiences do not wait for a large one.
    if faults and (choose.random() < 0.5 or "slices" in hook):
        large = choose.choice((1, 1, 2))
    acts = [
        Act(
            at=choose.uniform(0.0, length),
            kind="publish",
            target=TOPIC if subscribers and choose.random() < 0.4 else "",
            number=number,
            numbers=tuple(choose.sample(range(recipients), choose.randint(1, recipients))),
            seconds=choose.uniform(2.0, 20.0) if choose.random() < 0.1 else 0.0,
            count=2 if faults and choose.random() < 0.1 else 1,
        )
        for number in range(choose.randint(10, 40))
    ]
    acts += [
        Act(at=choose.uniform(2.0, length), kind="read", number=choose.randint(0, 100))
        for _ in range(choose.randint(0, 6))
    ]
    acts += [
        Act(
            at=choose.uniform(0.0, length),
            kind="mute",
            number=choose.randrange(recipients),
            count=choose.choice((1, 1, 0)),
        )
        for _ in range(choose.choice((0, 0, 1, 3)))
    ]
    acts += [
        Act(
            at=choose.uniform(1.0, length),
            kind="away",
            number=choose.randrange(recipients + 1),
            seconds=choose.uniform(0.0, 9.0),
        )
        for _ in range(choose.choice((0, 0, 1, 3)))
    ]
    if faults:
        acts += [_fault(choose, length, recipients) for _ in range(choose.randint(1, 6))]
    store: Store = "replicas" if seed % 2 or hook in LANE_HOOKS else "file"
    if faults:
        acts += _at_hook(choose, length, hook)
    if faults and store == "replicas":
        # One replica only: two that lose something are beyond what is promised.
        replica = choose.choice(REPLICAS)
        acts += [_weakness(choose, length, replica) for _ in range(choose.randint(0, 4))]
    # On either store. Behind a link that is cut for a while callers give up.
    late = faults and seed // 2 % 2 == 1
    if late:
        target, other = choose.choice(LINKS)
        acts.append(Act(choose.uniform(1.0, length * 0.8), "cut", target, other, seconds=choose.uniform(3.0, 12.0)))
    return Script(
        sorted(acts, key=lambda act: act.at),
        length,
        recipients,
        0.4 if faults else 0.0,
        store,
        late,
        subscribers,
        # What presence has lost comes with the next round.
        60.0 if any(act.kind == "forget" and act.target == "presence" for act in acts) else 600.0,
        large,
    )


def _at_hook(choose: random.Random, length: float, hook: str) -> list[Act]:
    """A crash at a hook, and what leads there where a run seldom does."""
    at = choose.uniform(0.0, length * 0.3)
    acts = [Act(at, "crash at", target=hook, count=choose.choice((1, 1, 2, 3)))]
    if "prefs.db" in hook or "UpdatePreferences" in hook:
        acts.append(Act(at + 1.0, "mute", number=0))
    elif "BatchGetHeads" in hook:
        # Sessions look into their inboxes when a link is back.
        acts.append(Act(at + 1.0, "crash", target="delivery"))
    elif "BatchMark" in hook:
        # Without a link marks are stored by calls.
        acts += [Act(at + 1.0, "cut", target="delivery", other=node, seconds=6.0) for node in NODES]
    return acts


def _weakness(choose: random.Random, length: float, replica: str) -> Act:
    at = choose.uniform(0.0, length * 0.8)
    if choose.random() < 0.2:
        target, how = choose.choice(RETRY_STORES), choose.choice(STORE_TROUBLES)
    else:
        target, how = replica, choose.choice(WEAKNESSES)
    return Act(
        at,
        "trouble",
        target=target,
        seconds=choose.uniform(1.0, 15.0),
        how=how,
        delay=choose.choice((0.1, 0.5, 4.0, 10.0)),
        share=choose.choice((0.3, 1.0)),
    )


def _fault(choose: random.Random, length: float, recipients: int) -> Act:
    at = choose.uniform(0.0, length * 0.8)
    kind = choose.choice(("crash", "crash at", "crash at", "cut", "reset", "trouble", "flush", "forget", "poison"))
    match kind:
        case "crash":
            return Act(at, "crash", target=choose.choice(PROCESSES))
        case "crash at":
            return Act(at, "crash at", target=choose.choice(HOOKS), count=choose.randint(1, 5))
        case "cut" | "reset":
            links = (*LINKS, *((f"device:r{number}/0", node) for number in range(recipients) for node in NODES))
            target, other = choose.choice(links)
            return Act(at, "cut" if kind == "cut" else "reset", target, other, seconds=choose.uniform(0.5, 25.0))
        case "trouble":
            how = choose.choice(STORE_TROUBLES)
            return Act(
                at,
                "trouble",
                target=choose.choice(STORES),
                seconds=choose.uniform(1.0, 15.0),
                how=how,
                delay=choose.choice((0.5, 4.0, 6.0, 10.0)),
                share=choose.choice((0.2, 1.0)),
            )
        case "forget":
            return Act(at, "forget", target=choose.choice(FORGETFUL), count=choose.randint(1, 5))
        case "poison":
            return Act(at, "poison", target=choose.choice(("normal", "high", "bulk")))
        case _:
            return Act(at, "flush")
