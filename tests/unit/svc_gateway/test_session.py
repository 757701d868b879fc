"""The session's rules, one by one."""

from __future__ import annotations

import pytest

from mesh.errors import InvalidArgument, Unavailable
from svc_gateway.decisions import CloseCode, Limits, Offer, State
from tests.support.sessions import Driver, Inbox, id_of

_UNAVAILABLE = Unavailable("no answer", reason="PEER_UNAVAILABLE")


def test_a_session_without_hello_is_closed_after_its_time() -> None:
    """Nobody holds a connection without saying who it is; whose hello was late because of this node comes again."""
    driver = Driver()
    driver.tick(4.9)
    assert driver.end() is None
    driver.tick(0.2)
    assert driver.end_code() == CloseCode.TOO_SLOW


def test_the_inbox_is_read_after_presence_knows_the_session() -> None:
    """Register, then read."""
    driver = Driver()
    driver.hello()
    assert (driver.registers, driver.replays) == (1, 0)
    assert driver.kinds() == ["welcome"]
    driver.run(driver.session.registered())
    assert driver.replays == 1


def test_a_replay_that_presence_does_not_answer_for_is_read_anyway_and_again() -> None:
    """An absent presence delays nobody longer than the limit; what lay in between is read when it answers."""
    driver, inbox = Driver(), Inbox()
    driver.hello()
    driver.tick(2.1)
    assert driver.replays == 1
    driver.read(inbox)
    inbox.write(id_of(1), 1, driver.now)
    driver.run(driver.session.registered())
    assert driver.replays == 2
    driver.read(inbox)
    assert driver.seen == [(id_of(1), 1)]


def test_a_replay_ends_with_a_checkpoint_and_then_the_held_frames() -> None:
    """What is offered during the reading comes once, behind the checkpoint."""
    driver, inbox = Driver(), Inbox()
    inbox.write(id_of(1), 1, driver.now)
    driver.hello()
    driver.run(driver.session.registered())
    request = driver.session.begin_replay(driver.now)
    assert request is not None
    page = inbox.replay(request, driver.now)
    assert driver.offer(id_of(1)) is Offer.HELD
    assert driver.offer(id_of(2)) is Offer.HELD
    assert driver.seen == []
    driver.run(driver.session.replayed(page, driver.now))
    assert driver.seen == [(id_of(1), 1), (id_of(2), 1)]
    checkpoint = driver.last("replayed").replayed
    assert (checkpoint.item_count, checkpoint.reload) == (1, True)
    assert checkpoint.cursor == f"{int(driver.now * 1_000_000) - 6_000_000}.store-1"


@pytest.mark.parametrize("answered", [True, False])
def test_what_is_over_when_the_reading_ends_is_not_written(answered: bool) -> None:
    """A store that hangs holds a replay for seconds; what was held for it and still matters is written."""
    driver, inbox = Driver(), Inbox()
    driver.hello()
    driver.run(driver.session.registered())
    request = driver.session.begin_replay(driver.now)
    assert request is not None
    assert driver.offer(id_of(1), seconds_left=0.7) is Offer.HELD
    assert driver.offer(id_of(2), seconds_left=4.0) is Offer.HELD
    driver.now += 3.0
    if answered:
        driver.run(driver.session.replayed(inbox.replay(request, driver.now), driver.now))
    else:
        driver.run(driver.session.failed(_UNAVAILABLE, driver.now, 0.5))
    assert driver.seen == [(id_of(2), 1)]
    assert driver.session.given is not None
    assert driver.session.given.unacked() == [id_of(2)]


def test_what_the_client_names_is_not_replayed_when_it_resumes() -> None:
    """The ids named in hello are left out of the replay and of live offers."""
    driver, inbox = Driver(), Inbox()
    inbox.write(id_of(1), 1, driver.now)
    inbox.write(id_of(2), 1, driver.now)
    driver.hello(cursor="5.store-1", received_refs=[{"notification_id": id_of(1), "revision": 1}])
    driver.run(driver.session.registered())
    driver.read(inbox)
    assert driver.seen == [(id_of(2), 1)]
    assert not driver.last("replayed").replayed.reload
    assert driver.offer(id_of(1)) is Offer.SKIP
    assert driver.offer(id_of(1), revision=2) is Offer.SEND


def test_what_the_client_names_without_a_cursor_is_replayed() -> None:
    """Without a cursor the client drops its copy, so it gets everything, and may mark what it had."""
    driver, inbox = Driver(), Inbox()
    inbox.write(id_of(1), 1, driver.now)
    driver.hello(received_refs=[{"notification_id": id_of(1), "revision": 1}, {"notification_id": id_of(9)}])
    driver.run(driver.session.registered())
    driver.read(inbox)
    assert driver.seen == [(id_of(1), 1)]
    assert driver.last("replayed").replayed.reload
    driver.mark([id_of(9)])
    assert driver.stored[-1].marks[0].refs[0].notification_id == id_of(9)


def test_a_live_frame_is_written_once_until_a_higher_revision_comes() -> None:
    """Offered again, the same revision is skipped, acked or not."""
    driver = Driver()
    driver.go_live()
    assert driver.offer(id_of(1)) is Offer.SEND
    assert driver.offer(id_of(1)) is Offer.SKIP
    driver.mark([id_of(1)])
    assert driver.offer(id_of(1)) is Offer.SKIP
    assert driver.offer(id_of(1), revision=2) is Offer.SEND


def test_a_full_socket_keeps_nothing_and_is_caught_up() -> None:
    """What is offered meanwhile is refused; a replay brings it when the socket drains."""
    driver, inbox = Driver(), Inbox()
    driver.go_live(inbox)
    driver.session.behind(driver.now)
    inbox.write(id_of(1), 1, driver.now)
    assert driver.offer(id_of(1)) is Offer.BEHIND
    driver.run(driver.session.writable())
    assert driver.state() is State.QUEUED
    driver.read(inbox)
    assert driver.seen == [(id_of(1), 1)]
    assert driver.state() is State.LIVE


def test_a_session_that_stays_behind_is_closed() -> None:
    """Half a minute with a full socket is the end."""
    driver = Driver()
    driver.go_live()
    driver.session.behind(driver.now)
    driver.tick(29.9)
    assert driver.end() is None
    driver.tick(0.2)
    assert driver.end() == (CloseCode.TOO_SLOW, "SLOW_CONSUMER")


def test_a_replay_pauses_at_its_page_when_the_socket_is_full() -> None:
    """It goes on with the same page, and is followed by another for what was refused meanwhile."""
    driver, inbox = Driver(), Inbox()
    for number in range(1, 6):
        inbox.write(id_of(number), 1, driver.now)
    driver.hello()
    driver.run(driver.session.registered())
    request = driver.session.begin_replay(driver.now)
    assert request is not None
    driver.run(driver.session.replayed(inbox.replay(request, driver.now), driver.now))
    driver.session.behind(driver.now)
    driver.session.page_written()
    assert driver.session.next_page() is None
    assert driver.state() is State.BEHIND
    inbox.write(id_of(6), 1, driver.now)
    assert driver.offer(id_of(6)) is Offer.BEHIND
    driver.run(driver.session.writable())
    while driver.read(inbox):
        pass
    assert driver.seen == [(id_of(number), 1) for number in range(1, 7)]
    assert driver.state() is State.LIVE
    assert driver.last("replayed").replayed.cursor


def test_more_held_frames_than_allowed_bring_another_replay() -> None:
    """The held frames are dropped and read instead."""
    driver, inbox = Driver(limits=Limits(held_count=2)), Inbox()
    driver.hello()
    driver.run(driver.session.registered())
    request = driver.session.begin_replay(driver.now)
    assert request is not None
    page = inbox.replay(request, driver.now)
    for number in range(1, 5):
        inbox.write(id_of(number), 1, driver.now)
        assert driver.offer(id_of(number)) is Offer.HELD
    driver.run(driver.session.replayed(page, driver.now))
    assert driver.seen == []
    assert driver.read(inbox)
    assert len(driver.seen) == 4


def test_an_inbox_that_does_not_answer_leaves_the_session_live() -> None:
    """Held frames are written, live ones go on, and the replay comes later without repeating them."""
    driver, inbox = Driver(), Inbox()
    driver.hello()
    driver.run(driver.session.registered())
    assert driver.session.begin_replay(driver.now) is not None
    inbox.write(id_of(1), 1, driver.now)
    assert driver.offer(id_of(1)) is Offer.HELD
    driver.run(driver.session.failed(_UNAVAILABLE, driver.now, 0.99))
    assert driver.seen == [(id_of(1), 1)]
    inbox.write(id_of(2), 1, driver.now)
    assert driver.offer(id_of(2)) is Offer.SEND
    inbox.write(id_of(3), 1, driver.now)
    driver.tick(1.1)
    assert driver.replays == 2
    driver.read(inbox)
    assert driver.seen == [(id_of(1), 1), (id_of(2), 1), (id_of(3), 1)]


def test_a_cursor_that_the_inbox_refuses_is_told_and_given_up() -> None:
    """The client is told, and gets the whole window as a reload."""
    driver, inbox = Driver(), Inbox()
    inbox.write(id_of(1), 1, driver.now)
    driver.hello(cursor="5.store-1", received_refs=[{"notification_id": id_of(1), "revision": 1}])
    driver.run(driver.session.registered())
    assert driver.session.begin_replay(driver.now) is not None
    driver.run(driver.session.failed(InvalidArgument("from the future", reason="CURSOR_INVALID"), driver.now, 0.5))
    assert driver.last("refused").refused.refusal.reason == "CURSOR_INVALID"
    driver.read(inbox)
    assert driver.seen == [(id_of(1), 1)]
    assert driver.last("replayed").replayed.reload


def _passed(driver: Driver, frames: int, seconds: float) -> None:
    """Offers so many notifications to a live session; the last one some time after its replay."""
    for number in range(1, frames + 1):
        driver.offer(id_of(number))
    assert driver.session.since_checkpoint >= driver.session.checkpoint_at
    driver.now += seconds
    driver.run(driver.session.frames_passed(driver.now))


@pytest.mark.parametrize(("seconds", "checkpoints"), [(9.0, 0), (10.0, 1)])
def test_many_frames_bring_a_checkpoint_but_not_too_soon(seconds: float, checkpoints: int) -> None:
    """After a hundred frames, ten seconds after the last reading at the earliest; live frames go on until its turn."""
    driver = Driver()
    driver.go_live()
    before = driver.replays
    _passed(driver, 100, seconds)
    assert (driver.checkpoints, driver.replays - before) == (checkpoints, 0)
    assert driver.offer(id_of(101)) is Offer.SEND
    driver.session.seek_checkpoint()
    assert driver.session.begin_replay(driver.now) is not None
    assert driver.offer(id_of(102)) is Offer.HELD


def test_a_checkpoint_is_not_read_twice() -> None:
    """A replay that came before its turn has moved the cursor on."""
    driver, inbox = Driver(), Inbox()
    driver.go_live()
    _passed(driver, 100, 10.0)
    driver.run(driver.session.restored())
    driver.read(inbox)
    driver.session.seek_checkpoint()
    assert driver.session.begin_replay(driver.now) is None


def test_a_checkpoint_that_had_no_turn_becomes_a_replay() -> None:
    """What was given since the last one must fit into what one replay names, however soon that is."""
    driver = Driver()
    driver.go_live()
    before = driver.replays
    _passed(driver, 400, 0.0)
    assert (driver.checkpoints, driver.replays - before) == (0, 1)


def test_a_session_looks_sooner_when_it_is_told_to_and_never_later() -> None:
    """While there was no link nothing was offered: the next slow round would be too late."""
    driver = Driver()
    driver.go_live()
    driver.session.look_by(driver.now + 5.0)
    due = driver.session.round_due
    assert driver.now + 5.0 <= due <= driver.now + 6.0
    driver.session.look_by(driver.now + 60.0)
    assert driver.session.round_due == due
    driver.tick(6.0, random=0.52)
    assert driver.rounds == 1


def test_a_round_compares_the_head_with_the_cursor() -> None:
    """An inbox with nothing newer than the cursor is not read."""
    driver = Driver()
    driver.go_live()
    driver.tick(119.0)
    driver.session.heard = driver.now
    driver.session.round_due = driver.now
    driver.tick(0.0, random=0.52)
    assert driver.rounds == 1
    before = driver.replays
    driver.run(driver.session.head(driver.session.cursor_stamp))
    assert driver.replays == before
    driver.run(driver.session.head(driver.session.cursor_stamp + 1))
    assert driver.replays == before + 1


def _reads_in_a_round(random: float) -> int:
    driver = Driver()
    driver.go_live()
    before = driver.replays
    driver.session.heard, driver.session.round_due = driver.now, driver.now
    driver.tick(0.0, random=random)
    assert driver.rounds == 1
    return driver.replays - before


def test_one_round_in_twenty_reads_the_window_whatever_the_head_says() -> None:
    """What no head tells is found in time, and it is not always the rounds that come early in their spread."""
    assert [_reads_in_a_round(random) for random in (0.0, 0.5, 0.52)] == [1, 1, 0]
    drawn = [(number + 0.5) / 400 for number in range(400)]
    assert sum(_reads_in_a_round(random) for random in drawn) == 20


def test_a_silent_client_is_pinged_and_then_closed() -> None:
    """Two heartbeats without a sign of life end the session."""
    driver = Driver()
    driver.go_live()
    driver.tick(120.0)
    assert driver.pings == 1
    driver.tick(120.0)
    assert driver.end_code() == CloseCode.TOO_SLOW


def test_an_old_session_is_told_to_go_away_before_it_is_closed() -> None:
    """Recycling announces itself."""
    driver = Driver()
    driver.go_live()
    driver.session.age_due = driver.now + 1.0
    driver.tick(1.0)
    assert driver.last("go_away").go_away.reason == "SESSION_TOO_OLD"
    assert driver.end() is None
    driver.tick(5.0)
    assert driver.end_code() == CloseCode.GO_AWAY


def test_an_expired_token_ends_the_session() -> None:
    """The client connects again with a fresh one."""
    driver = Driver()
    driver.desk.token_life = 60.0
    driver.go_live()
    driver.tick(60.0)
    assert driver.end_code() == CloseCode.TOKEN_EXPIRED


def test_nothing_happens_after_the_close() -> None:
    """A closed session takes nothing and says nothing."""
    driver = Driver()
    driver.go_live()
    driver.run(driver.session.close(CloseCode.SUPERSEDED, "SUPERSEDED"))
    assert driver.offer(id_of(1)) is Offer.ABSENT
    assert driver.session.begin_replay(driver.now) is None
    driver.mark([id_of(1)])
    driver.tick(1_000.0)
    driver.run(driver.session.close(CloseCode.DRAINING, "DRAINING"))
    assert driver.end_code() == CloseCode.SUPERSEDED


def test_due_is_never_later_than_what_tick_does() -> None:
    """The timer wheel may trust it."""
    driver = Driver()
    assert driver.session.due() == driver.now + 5.0
    driver.hello()
    assert driver.session.due() == driver.now + 2.0
    driver.run(driver.session.registered())
    assert driver.session.due() == driver.now + 120.0
    driver.session.behind(driver.now)
    assert driver.session.due() == driver.now + 30.0


def test_a_quiet_inbox_leaves_no_memory_of_acked_ids_but_their_hashes() -> None:
    """Once the cursor covers everything, what was acked can still be marked and costs eight bytes."""
    driver, inbox = Driver(), Inbox()
    inbox.write(id_of(1), 1, driver.now - 60.0)
    driver.go_live(inbox)
    driver.mark([id_of(1)])
    given = driver.session.given
    assert given is not None
    assert not given.entries
    driver.mark([id_of(1)])
    assert len(driver.stored) == 2
