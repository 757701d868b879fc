"""The histories that the judge is judged by: legal ones, as odd as a real run can be, and ones that break one promise.

Each illegal one has a neighbour that shows where the line is. It must not judge.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.faults import history
from tests.faults.history import Device
from tests.unit.faults.histories import (
    ALICE,
    ALICES_LAPTOP,
    Story,
    at_once,
    away,
    ended,
    one,
    one_after_the_other,
)

LEGAL: dict[str, Callable[[], Story]] = {
    "one event arrives": lambda: ended(one(), "a"),
    "what was not acked is new to the server": lambda: (
        Story()
        .connect(ALICE)
        .publish("a")
        .receive(ALICE, "a")
        .rows("alice", "a", new=["a"])
        .final(ALICE, "a", unread=1)
    ),
    "an unknown publish does not appear": lambda: ended(one().publish("b", end="info"), "a"),
    "an unknown publish appears": lambda: ended(
        one().publish("b", end="info").receive(ALICE, "b").acked(ALICE, "b"), "b", "a"
    ),
    "a publish without an end appears": lambda: ended(one().publish("b", end="nothing").receive(ALICE, "b"), "b", "a"),
    "a refused publish does not appear": lambda: ended(one().publish("b", end="fail"), "a"),
    "a refused publish is accepted at its second try": lambda: ended(
        one().publish("b", end="fail").publish("b").receive(ALICE, "b"), "b", "a"
    ),
    "a repeat has the same id": lambda: ended(one().publish("a"), "a"),
    "a repeat after an unknown end has an id": lambda: ended(
        one().publish("b", end="info").publish("b").receive(ALICE, "b"), "b", "a"
    ),
    "other content under the same request id is refused": lambda: ended(
        one().publish("b", request_id="request-a", end="fail"), "a"
    ),
    "other content is accepted after the log was flushed": lambda: ended(
        one().fault("F-11").publish("b", request_id="request-a").receive(ALICE, "b"), "b", "a"
    ),
    "a request without a time has two ids after a flush": lambda: ended(
        one()
        .publish("b", has_time=False)
        .receive(ALICE, "b")
        .fault("F-11")
        .publish("b", has_time=False, notification_id="id-b@2")
        .receive(ALICE, "b", notification_id="id-b@2"),
        "b@2",
        "b",
        "a",
    ),
    "another copy under a fault is not shown": lambda: ended(
        one().publish("b").fault().receive(ALICE, "b").receive(ALICE, "b", shown=False), "b", "a"
    ),
    "two faults allow two more copies": lambda: ended(
        one()
        .publish("b")
        .fault()
        .fault()
        .receive(ALICE, "b")
        .receive(ALICE, "b", shown=False)
        .receive(ALICE, "b", shown=False),
        "b",
        "a",
    ),
    "a higher revision is shown beside the first": lambda: ended(one().receive(ALICE, "a", revision=2), "a"),
    "what waited out a fault may come after the replay": lambda: ended(
        one().close(ALICE).publish("b").fault().wait(10).connect(ALICE, known=["a"]).receive(ALICE, "b"), "b", "a"
    ),
    "what was missed comes by replay": lambda: ended(
        one()
        .close(ALICE)
        .publish("b")
        .wait(10)
        .connect(ALICE, known=["a"], replayed=False)
        .receive(ALICE, "b", live=False)
        .replayed(ALICE),
        "b",
        "a",
    ),
    "what was accepted a moment before the hello may come after the replay": lambda: ended(
        one().close(ALICE).publish("b").connect(ALICE, known=["a"]).receive(ALICE, "b"), "b", "a"
    ),
    "a device that is told to reload need not get anything else": lambda: ended(
        one().close(ALICE).publish("b").wait(10).connect(ALICE, replayed=False).reloaded(ALICE).replayed(ALICE),
        "b",
        "a",
    ),
    "a device that is away gets nothing": lambda: one().close(ALICE).publish("b").wait(60).rows("alice", "b", "a"),
    "what was accepted at the very end may still be under way": lambda: (
        one().wait(60).publish("b").rows("alice", "b", "a")
    ),
    "a muted event is suppressed with its reason": lambda: ended(
        one().mute("alice").wait(5).publish("b").terminal("alice", "b", "suppressed", "MUTED"), "a"
    ),
    "an event published while it was muted may go either way": lambda: ended(
        one().mute("alice").publish("b").receive(ALICE, "b"), "b", "a"
    ),
    "an event published while it was muted may be suppressed": lambda: ended(
        one().mute("alice").publish("b").terminal("alice", "b", "suppressed", "MUTED"), "a"
    ),
    "a mute whose answer was lost may count": lambda: ended(
        one().mute("alice", stored=False).wait(30).publish("b").terminal("alice", "b", "suppressed", "MUTED"), "a"
    ),
    "a mute that was taken back does not count": lambda: ended(
        one().mute("alice").mute("alice", muted=False).wait(5).publish("b").receive(ALICE, "b"), "b", "a"
    ),
    "an expired event is not shown": lambda: ended(
        one().publish("b", expire=1.0).terminal("alice", "b", "expired"), "a"
    ),
    "an event arrives within the difference of clocks": lambda: ended(
        one().publish("b", expire=109.5).receive(ALICE, "b"), "b", "a"
    ),
    "a late frame is not shown": lambda: ended(
        one().fault(device=True).publish("b", expire=107.5).wait(4).receive(ALICE, "b", shown=False), "b", "a"
    ),
    "a key comes in the order of its publishes, whatever the ids": lambda: ended(
        one_after_the_other("b", "a").receive(ALICE, "b").receive(ALICE, "a"), "b", "a"
    ),
    "two publishes of a key at once come in the order of their ids": lambda: ended(
        at_once().receive(ALICE, "a").receive(ALICE, "b"), "b", "a"
    ),
    "two publishes of a key at once come in the other order": lambda: ended(
        at_once().receive(ALICE, "b").receive(ALICE, "a"), "b", "a"
    ),
    "of two classes of a key the later may come first": lambda: ended(
        Story()
        .connect(ALICE)
        .publish("a", key="k", priority=1)
        .publish("b", key="k")
        .receive(ALICE, "b")
        .receive(ALICE, "a"),
        "b",
        "a",
    ),
    "what a replay brought before its key went on may come once more": lambda: ended(
        Story()
        .publish("a", key="k")
        .connect(ALICE, replayed=False)
        .receive(ALICE, "a", live=False)
        .replayed(ALICE)
        .publish("b", key="k")
        .receive(ALICE, "b")
        .publish("a", key="k")
        .receive(ALICE, "a", shown=False),
        "b",
        "a",
    ),
    "a dead letter says why": lambda: ended(
        one().publish("b").terminal("alice", "b", "dead", "REFUSED").letter("b"), "a"
    ),
    "a record that nobody can read is put aside": lambda: ended(
        one()
        .add(history.Poisoned(at=150.0, lane="normal"))
        .add(
            history.Letter(
                at=160.0, tenant="", recipient="", notification_id="", reason="undecodable", size=3, source="normal/8"
            )
        ),
        "a",
    ),
    "a dead letter that was sent again arrives": lambda: ended(
        one().publish("b").letter("b", redriven=True).receive(ALICE, "b"), "b", "a"
    ),
    "an unconfirmed ack may bring it again": lambda: ended(
        away(Story().connect(ALICE).publish("b").fault().receive(ALICE, "b"))
        .receive(ALICE, "b", live=False, shown=False)
        .replayed(ALICE),
        "b",
    ),
    "a row that was written again under a fault comes again by a replay": lambda: ended(
        away(Story().connect(ALICE).publish("a").fault(lasts=0).receive(ALICE, "a").acked(ALICE, "a"))
        .receive(ALICE, "a", live=False, shown=False)
        .replayed(ALICE),
        "a",
    ),
    "a row that was written again under a fault is offered again": lambda: ended(
        away(Story().connect(ALICE).publish("a").fault(lasts=0).receive(ALICE, "a").acked(ALICE, "a"))
        .replayed(ALICE)
        .receive(ALICE, "a", shown=False),
        "a",
    ),
    "a content that was accepted twice comes again by a replay": lambda: ended(
        away(one().publish("a")).receive(ALICE, "a", live=False, shown=False).replayed(ALICE), "a"
    ),
    "a row that was marked comes again with its mark": lambda: ended(
        away(one().marked(ALICE, "a")).receive(ALICE, "a", live=False, shown=False).replayed(ALICE), "a"
    ),
    "keys may swap under faults": lambda: ended(
        Story()
        .connect(ALICE)
        .publish("a", key="k")
        .publish("b", key="k")
        .fault()
        .receive(ALICE, "b")
        .receive(ALICE, "a"),
        "b",
        "a",
    ),
    "different keys keep no order": lambda: ended(
        Story().connect(ALICE).publish("a", key="k").publish("b", key="l").receive(ALICE, "b").receive(ALICE, "a"),
        "b",
        "a",
    ),
    "what a crash delays comes in time": lambda: ended(
        one().publish("b").fault(crash=True).wait(25).receive(ALICE, "b"), "b", "a"
    ),
    "what is accepted long after a crash has its time from then on": lambda: ended(
        one().publish("b", end="info").fault(crash=True).wait(60).publish("b").wait(20).receive(ALICE, "b"), "b", "a"
    ),
    "what another fault delays beside a crash comes when it can": lambda: ended(
        one().publish("b").fault(crash=True).fault(lasts=35.0).receive(ALICE, "b"), "b", "a"
    ),
    "what was there before a crash is not late": lambda: ended(
        one().publish("b").receive(ALICE, "b").wait(60).fault(crash=True).receive(ALICE, "b", shown=False), "b", "a"
    ),
    "a position stands before the first unfinished record": lambda: ended(one().position(6, 7), "a"),
    "presence knows the sockets": lambda: ended(
        one().add(history.Registry(at=200.0, by_presence=("a", "b"), by_sockets=("b", "a"))), "a"
    ),
    "all comes to rest in time": lambda: ended(one().add(history.Settled(at=200.0, seconds=3.0, limit=30.0)), "a"),
    "read rows are not counted": lambda: one().wait(60).rows("alice", "a", read=["a"]).final(ALICE, "a", unread=0),
}

# name → the promise it breaks, and the story
ILLEGAL: dict[str, tuple[str, Callable[[], Story]]] = {
    "an accepted event is nowhere": ("I1", lambda: ended(one().publish("b", to=["bob"]), "a")),
    "an event accepted at its second try is nowhere": (
        "I1",
        lambda: ended(one().publish("b", end="info").publish("b"), "a"),
    ),
    "an event is under way when all is quiet": (
        "I1",
        lambda: ended(one().publish("b").terminal("alice", "b", "offered"), "a"),
    ),
    "one of two recipients has nothing": (
        "I1",
        lambda: ended(Story().connect(ALICE).publish("a", to=["alice", "bob"]).receive(ALICE, "a"), "a"),
    ),
    "a row is said to be there and is not": (
        "I1",
        lambda: ended(one().publish("b").terminal("alice", "b", "inboxed"), "a"),
    ),
    "a row is trimmed from a list with room": (
        "I1",
        lambda: ended(one().publish("b").terminal("alice", "b", "trimmed"), "a"),
    ),
    "an event without an end is expired": (
        "I1",
        lambda: ended(one().publish("b").terminal("alice", "b", "expired"), "a"),
    ),
    "a wanted event is suppressed": (
        "I1",
        lambda: ended(one().publish("b").terminal("alice", "b", "suppressed", "MUTED"), "a"),
    ),
    "an event is suppressed without a reason": (
        "I1",
        lambda: ended(one().mute("alice").publish("b").terminal("alice", "b", "suppressed"), "a"),
    ),
    "a connected device never gets what is in the list": (
        "I1",
        lambda: one().publish("b").wait(60).rows("alice", "b", "a"),
    ),
    "what a crash delays comes too late": (
        "I1",
        lambda: ended(one().publish("b").fault(crash=True).wait(31).receive(ALICE, "b"), "b", "a"),
    ),
    "another crash gives no more time": (
        "I1",
        lambda: ended(
            one().publish("b").fault(crash=True).wait(25).fault(crash=True).wait(4).receive(ALICE, "b"), "b", "a"
        ),
    ),
    "what is published while a process is dead comes too late": (
        "I1",
        lambda: ended(one().fault(crash=True, heals=False).publish("b").wait(31).receive(ALICE, "b"), "b", "a"),
    ),
    "something arrives that nobody published": ("I2", lambda: ended(one().receive(ALICE, "b"), "a")),
    "something arrives that was refused": (
        "I2",
        lambda: ended(one().publish("b", end="fail").receive(ALICE, "b"), "a"),
    ),
    "something is listed that was refused": ("I2", lambda: ended(one().publish("b", end="fail"), "b", "a")),
    "something arrives that is bob's": (
        "I3",
        lambda: ended(one().publish("b", to=["bob"]).receive(ALICE, "b").wait(60).rows("bob", "b"), "a"),
    ),
    "the content is somebody else's": (
        "I3",
        lambda: ended(one().publish("b").receive(ALICE, "b", canary=False), "b", "a"),
    ),
    "the tenant is another one": (
        "I3",
        lambda: (
            ended(one(), "a").connect(Device("other", "alice", "phone")).receive(Device("other", "alice", "phone"), "a")
        ),
    ),
    "a content is changed on its way": (
        "I4",
        lambda: ended(one().publish("b").receive(ALICE, "b", digest="x"), "b", "a"),
    ),
    "a list is out of order": (
        "I5",
        lambda: one().publish("b").receive(ALICE, "b").wait(60).rows("alice", "a", "b").final(ALICE, "a", "b"),
    ),
    "two devices have different lists": (
        "I5",
        lambda: ended(one(), "a").connect(ALICES_LAPTOP).final(ALICES_LAPTOP, unread=1),
    ),
    "a key loses its order without a fault": (
        "I5",
        lambda: ended(one_after_the_other("a", "b").receive(ALICE, "b").receive(ALICE, "a"), "b", "a"),
    ),
    "a key loses its order, though it comes in the order of ids": (
        "I5",
        lambda: ended(one_after_the_other("b", "a").receive(ALICE, "a").receive(ALICE, "b"), "b", "a"),
    ),
    "two publishes of a key at once come to two devices in two orders": (
        "I5",
        lambda: ended(
            at_once()
            .connect(ALICES_LAPTOP)
            .receive(ALICE, "b")
            .receive(ALICES_LAPTOP, "a")
            .receive(ALICE, "a")
            .receive(ALICES_LAPTOP, "b"),
            "b",
            "a",
        ).final(ALICES_LAPTOP, "b", "a"),
    ),
    "a replay leaves something out": (
        "I6",
        lambda: ended(
            one().close(ALICE).publish("b").wait(10).connect(ALICE, known=["a"]).receive(ALICE, "b"), "b", "a"
        ),
    ),
    "a copy too many without a fault": (
        "I7",
        lambda: ended(one().publish("b").receive(ALICE, "b").receive(ALICE, "b", shown=False), "b", "a"),
    ),
    "a repeat that was known excuses no copy": (
        "I7",
        lambda: ended(
            away(one().publish("a", repeated=True)).receive(ALICE, "a", live=False, shown=False).replayed(ALICE), "a"
        ),
    ),
    "two copies too many under one fault": (
        "I7",
        lambda: ended(
            one()
            .publish("b")
            .fault()
            .receive(ALICE, "b")
            .receive(ALICE, "b", shown=False)
            .receive(ALICE, "b", shown=False),
            "b",
            "a",
        ),
    ),
    "a fault that was over before excuses nothing": (
        "I7",
        lambda: ended(one().fault().publish("b").receive(ALICE, "b").receive(ALICE, "b", shown=False), "b", "a"),
    ),
    "a mark brings a row again only once": (
        "I7",
        lambda: ended(
            one()
            .marked(ALICE, "a")
            .receive(ALICE, "a", live=False, shown=False)
            .receive(ALICE, "a", live=False, shown=False),
            "a",
        ),
    ),
    "a mark excuses no live copy after a confirmed ack": (
        "I9",
        lambda: ended(away(one().marked(ALICE, "a")).receive(ALICE, "a", shown=False).replayed(ALICE), "a"),
    ),
    "a person sees it twice under a fault": (
        "I7",
        lambda: ended(one().publish("b").fault().receive(ALICE, "b").receive(ALICE, "b"), "b", "a"),
    ),
    "the server counts one too many": (
        "I8",
        lambda: one().wait(60).rows("alice", "a", unread=2).final(ALICE, "a", unread=2),
    ),
    "a device counts something else": ("I8", lambda: one().wait(60).rows("alice", "a").final(ALICE, "a", unread=0)),
    "the server has nothing of a confirmed ack": (
        "I9",
        lambda: (
            Story()
            .connect(ALICE)
            .publish("a")
            .receive(ALICE, "a")
            .acked(ALICE, "a")
            .rows("alice", "a", new=["a"])
            .final(ALICE, "a", unread=1)
        ),
    ),
    "a confirmed ack does not stick": (
        "I9",
        lambda: ended(
            away(Story().connect(ALICE).publish("a").fault(device=True).receive(ALICE, "a").acked(ALICE, "a"))
            .replayed(ALICE)
            .receive(ALICE, "a", shown=False),
            "a",
        ),
    ),
    "a muted event arrives": (
        "I10",
        lambda: ended(one().mute("alice").wait(5).publish("b").receive(ALICE, "b"), "b", "a"),
    ),
    "an event is shown after its time": (
        "I11",
        lambda: ended(one().fault().publish("b", expire=105.5).wait(2).receive(ALICE, "b"), "b", "a"),
    ),
    "a replay leaves something out though only the device was away": (
        "I6",
        lambda: ended(
            one().close(ALICE).publish("b").fault(device=True).wait(10).connect(ALICE, known=["a"]).receive(ALICE, "b"),
            "b",
            "a",
        ),
    ),
    "an event is sent after its time": (
        "I11",
        lambda: ended(one().publish("b", expire=105.5).wait(2).receive(ALICE, "b", shown=False), "b", "a"),
    ),
    "a request has two ids": (
        "I12",
        lambda: ended(
            one().publish("a", notification_id="id-a@2").receive(ALICE, "a", notification_id="id-a@2"), "a@2", "a"
        ),
    ),
    "other content is accepted under the same request id": (
        "I12",
        lambda: ended(one().publish("b", request_id="request-a").receive(ALICE, "b"), "b", "a"),
    ),
    "a row is there twice": ("I12", lambda: ended(one(), "a", "a")),
    "a position passes an unfinished record": ("I13", lambda: ended(one().position(7, 7), "a")),
    "a lane is behind when all is quiet": ("I13", lambda: ended(one().position(6, None, lag=1), "a")),
    "nothing comes to rest": (
        "I14",
        lambda: ended(one().add(history.Settled(at=200.0, seconds=None, limit=30.0)), "a"),
    ),
    "coming to rest takes too long": (
        "I14",
        lambda: ended(one().add(history.Settled(at=200.0, seconds=31.0, limit=30.0)), "a"),
    ),
    "a dead letter has no reason": (
        "I15",
        lambda: ended(one().publish("b").terminal("alice", "b", "dead", "REFUSED").letter("b", reason=""), "a"),
    ),
    "a dead letter has no bytes": (
        "I15",
        lambda: ended(one().publish("b").terminal("alice", "b", "dead", "REFUSED").letter("b", size=0), "a"),
    ),
    "a record that nobody can read is skipped in silence": (
        "I15",
        lambda: ended(one().add(history.Poisoned(at=150.0, lane="normal")), "a"),
    ),
    "a dead letter is delivered all the same": (
        "I15",
        lambda: ended(one().publish("b").letter("b").receive(ALICE, "b"), "b", "a"),
    ),
    "presence keeps a session that is gone": (
        "I17",
        lambda: ended(one().add(history.Registry(at=200.0, by_presence=("a", "b"), by_sockets=("a",))), "a"),
    ),
    "presence does not know a session": (
        "I17",
        lambda: ended(one().add(history.Registry(at=200.0, by_presence=(), by_sockets=("a",))), "a"),
    ),
}
