"""More histories that the judge is judged by: a channel behind live, and what was given up. It must not judge."""

from __future__ import annotations

from collections.abc import Callable

from tests.unit.faults.histories import ALICE, Story, ended, one


def _there() -> Story:
    """As `one`, with a channel behind live."""
    return one().channel()


LEGAL: dict[str, Callable[[], Story]] = {
    "the channel has it": lambda: ended(_there().call("a"), "a"),
    "the channel had no time at first": lambda: ended(_there().call("a", outcome="later").call("a"), "a"),
    "the channel need not have what is marked as read": lambda: (
        _there().marked(ALICE, "a").wait(60).rows("alice", "a", read=["a"]).final(ALICE, "a", unread=0)
    ),
    "the channel need not have what its recipient does not want any more": lambda: ended(_there().mute("alice"), "a"),
    "the channel need not have what is over": lambda: ended(
        _there().call("a").publish("b", expire=200.0).receive(ALICE, "b"), "b", "a"
    ),
    "a step of the channel is given up": lambda: ended(
        _there().call("a", outcome="refused").letter("a", channel=100), "a"
    ),
    "a step that was given up is sent again by hand": lambda: ended(
        _there()
        .call("a", outcome="refused")
        .letter("a", channel=100, redriven=True, redrive=109.5, left=False)
        .wait(3)
        .call("a"),
        "a",
    ),
    "a step of the channel is given up, and the notification comes by live": lambda: ended(
        _there().call("a").publish("b").call("b", outcome="refused").letter("b", channel=100).receive(ALICE, "b"),
        "b",
        "a",
    ),
    "the channel is called again after a fault": lambda: ended(_there().call("a").fault().call("a"), "a"),
    "one record of a row is given up, the other is delivered": lambda: ended(
        one().publish("b").fault("F-11").publish("b").letter("b").receive(ALICE, "b"), "b", "a"
    ),
}

ILLEGAL: dict[str, tuple[str, Callable[[], Story]]] = {
    "the channel never has it": ("I1", lambda: ended(_there(), "a")),
    "the channel had no time, and nobody came back": ("I1", lambda: ended(_there().call("a", outcome="later"), "a")),
    "a step that was sent again by hand is lost": (
        "I1",
        lambda: ended(
            _there().call("a", outcome="refused").letter("a", channel=100, redriven=True, redrive=110.0, left=False),
            "a",
        ),
    ),
    "a letter of the row is none of the channel": ("I1", lambda: ended(_there().letter("a", redriven=True), "a")),
    "the channel is called twice for nothing": ("I7", lambda: ended(_there().call("a").call("a"), "a")),
    "the second call is about something else": (
        "I7",
        lambda: ended(_there().call("a").fault().call("a", collapse="other"), "a"),
    ),
    "a step that was given up is taken all the same": (
        "I15",
        lambda: ended(_there().call("a", outcome="refused").letter("a", channel=100).call("a"), "a"),
    ),
    "a step that was given up is taken before anybody sends it again": (
        "I15",
        lambda: ended(
            _there()
            .call("a", outcome="refused")
            .letter("a", channel=100, redriven=True, redrive=120.0, left=False)
            .call("a"),
            "a",
        ),
    ),
    "a row that was refused and given up comes all the same": (
        "I15",
        lambda: ended(one().fault("rows refused").publish("b").letter("b").receive(ALICE, "b"), "b", "a"),
    ),
}
