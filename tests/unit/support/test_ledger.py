"""The scenarios' accounts: each kind of broken promise is found, and nothing else is taken for one."""

from __future__ import annotations

from tests.support.ledger import Ledger


def kept() -> Ledger:
    """Returns accounts in which all is well: two recipients, one with two screens, one event for both."""
    ledger = Ledger()
    for recipient, screen in (("ada", "phone"), ("ada", "tablet"), ("ben", "phone")):
        ledger.open(recipient, screen)
    ledger.publish("e1", ["ada", "ben"])
    for recipient, screen in (("ada", "phone"), ("ada", "tablet"), ("ben", "phone")):
        ledger.show(recipient, screen, "e1")
    return ledger


def test_what_every_screen_showed_once_is_kept() -> None:
    """Noting an answer again, and dropped duplicates, change nothing; an empty ledger proves nothing."""
    ledger = kept()
    ledger.publish("e1", ["ben", "ada"])
    ledger.count_duplicates("ada", "phone", 2)
    verdict = ledger.verdict()
    assert (verdict.kept, verdict.due, verdict.duplicates_on_wire) == (True, 3, 2)
    assert ledger.settled()
    assert ledger.reached("e1")
    assert not Ledger().verdict().kept


def test_a_screen_that_lacks_an_event_is_a_loss() -> None:
    """Also when another screen of the same recipient showed it."""
    ledger = kept()
    ledger.publish("e2", ["ada"])
    ledger.show("ada", "tablet", "e2")
    assert (ledger.outstanding(), ledger.reached("e2")) == (1, False)
    assert ledger.shown_on([("ada", "tablet"), ("ben", "phone")], "e2")
    assert not ledger.shown_on([("ada", "phone")], "e2")
    verdict = ledger.verdict()
    assert (verdict.kept, verdict.lost) == (False, ("ada/phone: e2",))


def test_the_same_event_twice_on_one_screen_is_found() -> None:
    """However much else is right."""
    ledger = kept()
    ledger.show("ben", "phone", "e1")
    verdict = ledger.verdict()
    assert (verdict.kept, verdict.shown_twice, verdict.lost) == (False, ("ben/phone: e1",), ())


def test_what_is_shown_to_a_stranger_is_found() -> None:
    """Also an event that nobody has published."""
    ledger = kept()
    ledger.publish("e2", ["ada"])
    for recipient, screen in (("ada", "phone"), ("ada", "tablet"), ("ben", "phone")):
        ledger.show(recipient, screen, "e2")
    ledger.show("ada", "phone", "e3")
    verdict = ledger.verdict()
    assert (verdict.kept, verdict.strangers) == (False, ("ada/phone: e3", "ben/phone: e2"))
