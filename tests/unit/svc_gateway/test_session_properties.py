"""The session's promises under any order of frames, offers, replays, failures and acks."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mesh.errors import InvalidArgument, Unavailable
from svc_gateway import inbound
from svc_gateway.decisions import CloseCode, Limits, Offer, State
from tests.support.sessions import Driver, Inbox, id_of

_LIMITS = Limits(held_count=3, checkpoint_frames=4, heartbeat_interval=1e6, round_interval=1e6)
_SECONDS = st.sampled_from([0.001, 0.5, 5.0, 11.0, 29.0])


class SessionWorld(RuleBasedStateMachine):
    """One session with its client, its inbox, and everything that may go wrong between them."""

    @initialize(cursor=st.booleans(), rows=st.integers(0, 5))
    def open(self, cursor: bool, rows: int) -> None:
        self.driver = Driver(limits=_LIMITS)
        self.driver.desk.token_life = self.driver.desk.age = 1e9
        self.inbox = Inbox()
        self.count = 0
        # What was offered: it must come without any round.
        self.offered: dict[str, int] = {}
        self.forgetful = False
        self.durable_topics: set[int] = set()
        self.page_size = 2
        for _ in range(rows):
            self.publish()
        self.driver.now += 60.0
        self.driver.hello(cursor="1.store-1" if cursor else "")

    @property
    def alive(self) -> bool:
        return self.driver.end() is None

    @rule()
    def publish(self) -> None:
        """A row becomes durable; the offer comes at once."""
        self.count += 1
        self.inbox.write(id_of(self.count), 1, self.driver.now)
        self._offer(id_of(self.count), 1)

    @rule()
    def publish_unheard(self) -> None:
        """A row becomes durable and nobody offers it: presence did not know the session."""
        self.count += 1
        self.inbox.write(id_of(self.count), 1, self.driver.now)

    @precondition(lambda self: self.count > 0)
    @rule(data=st.data())
    def raise_revision(self, data: st.DataObject) -> None:
        """Content is replaced, and offered."""
        id_ = id_of(data.draw(st.integers(1, self.count)))
        revision = self.inbox.rows[id_][0] + 1
        self.inbox.write(id_, revision, self.driver.now)
        self._offer(id_, revision)

    @precondition(lambda self: self.driver.seen)
    @rule(data=st.data())
    def offer_again(self, data: st.DataObject) -> None:
        """A follow-up offers what the client has not acked: it is not written twice."""
        unacked = self._unacked()
        if unacked and self.driver.state() is State.LIVE and not self.forgetful:
            id_ = data.draw(st.sampled_from(unacked))
            revision = max(revision for seen, revision in self.driver.seen if seen == id_)
            assert self.driver.offer(id_, revision) is Offer.SKIP

    @rule()
    def register(self) -> None:
        self.driver.run(self.driver.session.registered())

    @rule()
    def lose_presence(self) -> None:
        self.driver.run(self.driver.session.restored())

    @rule()
    def read_all(self) -> None:
        self.driver.read(self.inbox, self.page_size)

    @rule(reason=st.sampled_from(["", "PAGE", "CURSOR_INVALID"]), offers=st.integers(0, 5))
    def read_in_vain(self, reason: str, offers: int) -> None:
        """The inbox fails while frames are offered."""
        if self.driver.session.begin_replay(self.driver.now) is None:
            return
        for _ in range(offers):
            self.publish()
        self.forgetful = self.forgetful or reason == "CURSOR_INVALID"
        failure = InvalidArgument("refused", reason=reason) if reason else Unavailable("absent", reason="PEER")
        self.driver.run(self.driver.session.failed(failure, self.driver.now, 0.5))

    @rule(offers=st.integers(0, 5), full=st.booleans())
    def read_a_page_between_offers(self, offers: int, full: bool) -> None:
        """Frames are offered between the read and its answer, and the socket may fill up."""
        driver = self.driver
        driver.run(driver.session.head(self.inbox.head))
        request = driver.session.begin_replay(driver.now)
        if request is None:
            return
        page = self.inbox.replay(request, driver.now, self.page_size)
        for _ in range(offers):
            self.publish()
        if full:
            driver.session.behind(driver.now)
        driver.run(driver.session.replayed(page, driver.now))
        driver.session.page_written()
        if driver.session.next_page() is not None:
            driver.run(driver.session.failed(Unavailable("absent", reason="PEER"), driver.now, 0.5))

    @rule()
    def fill_socket(self) -> None:
        self.driver.session.behind(self.driver.now)

    @rule()
    def drain_socket(self) -> None:
        self.driver.run(self.driver.session.writable())
        self.driver.run(inbound.confirmation(self.driver.session))

    @rule(seconds=_SECONDS, random=st.floats(0, 1, exclude_max=True))
    def pass_time(self, seconds: float, random: float) -> None:
        self.driver.tick(seconds, random)

    @precondition(lambda self: self.driver.seen)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        """Whatever the client was shown may be marked, and is never refused."""
        ids = data.draw(st.lists(st.sampled_from(self.driver.seen), min_size=1, max_size=3))
        before = len(self.driver.stored)
        self.driver.mark([id_ for id_, _ in ids])
        assert not self.alive or len(self.driver.stored) == before + 1

    @rule(data=st.data())
    def store_marks(self, data: st.DataObject) -> None:
        """Marks become durable in any order."""
        topics = {change.frame_number for change in self.driver.changes}
        pending = sorted(set(self.driver.session.pending or ()) - topics)
        if pending:
            inbound.stored(self.driver.session, data.draw(st.sampled_from(pending)))
            self.driver.run(inbound.confirmation(self.driver.session))

    @rule(begin=st.booleans())
    def change_topics(self, begin: bool) -> None:
        """A client changes topics; more than a few at once are refused, and the refused are not passed on."""
        session, passed = self.driver.session, len(self.driver.changes)
        room = session.topics_pending < session.limits.topics_count
        (self.driver.subscribe if begin else self.driver.unsubscribe)("deploys")
        assert not self.alive or len(self.driver.changes) == passed + room

    @precondition(lambda self: self.driver.session.topics_pending)
    @rule(fails=st.sampled_from(["", "away", "wrong"]), rest=st.booleans())
    def answer_topics(self, fails: str, rest: bool) -> None:
        """Prefs answers changes in their order, one or all that wait."""
        session = self.driver.session
        while session.topics_pending:
            number = self.driver.changes[-session.topics_pending].frame_number
            failure = {"": None, "away": Unavailable("away", reason="PEER"), "wrong": InvalidArgument("no", reason="X")}
            if not fails:
                self.durable_topics.add(number)
            self.driver.run(inbound.topics_changed(session, number, failure[fails]))
            self.driver.run(inbound.confirmation(session))
            if not rest:
                break

    @rule(rare=st.integers(0, 19))
    def close(self, rare: int) -> None:
        if rare == 0:
            self.driver.run(self.driver.session.close(CloseCode.SUPERSEDED, "SUPERSEDED"))

    def _unacked(self) -> list[str]:
        acked = {ref.notification_id for store in self.driver.stored for mark in store.marks for ref in mark.refs}
        return sorted({id_ for id_, _ in self.driver.seen} - acked)

    def _offer(self, id_: str, revision: int) -> None:
        if self.driver.offer(id_, revision) is not Offer.ABSENT:
            self.offered[id_] = revision
        session = self.driver.session
        if session.since_checkpoint >= session.checkpoint_at and session.state is State.LIVE:
            self.driver.run(session.frames_passed(self.driver.now))
            session.seek_checkpoint()

    # ------------------------------------------------------------ what always holds

    @invariant()
    def keep_unacked_ids(self) -> None:
        """What the client was given and has not acked is remembered."""
        if self.alive and self.driver.seen:
            assert self.driver.session.given is not None
            assert set(self._unacked()) <= set(self.driver.session.given.unacked())

    @invariant()
    def keep_nothing_for_a_full_socket(self) -> None:
        """No live frame is written while the socket is full."""
        assert not (self.driver.session.full and self.driver.state() is State.LIVE)

    @invariant()
    def move_cursor_forward(self) -> None:
        """Checkpoints never step back, except where a reload begins anew."""
        last = 0
        for frame in self.driver.written:
            if frame.WhichOneof("frame") == "replayed":
                stamp = int(frame.replayed.cursor.split(".")[0])
                assert stamp >= last or frame.replayed.reload
                last = stamp

    @invariant()
    def confirm_only_what_is_stored(self) -> None:
        """A confirmed number lies below every frame that is not durable, and only rises."""
        numbers = [
            frame.confirmed.frame_number for frame in self.driver.written if frame.WhichOneof("frame") == "confirmed"
        ]
        assert numbers == sorted(set(numbers))
        if numbers and self.driver.session.pending:
            assert numbers[-1] < min(self.driver.session.pending)
        refused = {frame.refused.frame_number for frame in self.driver.written if frame.HasField("refused")}
        confirmed = {one.frame_number for one in self.driver.changes if numbers and one.frame_number <= numbers[-1]}
        assert confirmed - refused <= self.durable_topics

    def teardown(self) -> None:
        """When everything works again, the client gets what was offered at once, and the rest by a round."""
        if not hasattr(self, "driver") or not self.alive:
            return
        driver = self.driver
        driver.session.heard = driver.now
        driver.run(driver.session.registered())
        driver.run(driver.session.writable())
        driver.tick(31.0)
        while driver.read(self.inbox, self.page_size):
            pass
        assert driver.end() is None
        assert driver.state() is State.LIVE
        shown = self._shown()
        assert {id_: shown.get(id_, 0) for id_, revision in self.offered.items() if shown.get(id_, 0) < revision} == {}
        driver.run(driver.session.head(self.inbox.head))
        while driver.read(self.inbox, self.page_size):
            pass
        assert self._shown() == {id_: revision for id_, (revision, _) in self.inbox.rows.items()}

    def _shown(self) -> dict[str, int]:
        newest: dict[str, int] = {}
        for id_, revision in self.driver.seen:
            newest[id_] = max(revision, newest.get(id_, 0))
        return newest


SessionWorld.TestCase.settings = settings(max_examples=200, stateful_step_count=30, deadline=None, derandomize=True)
TestSessionWorld = SessionWorld.TestCase


@settings(max_examples=200, deadline=None, derandomize=True)
@given(steps=st.lists(st.tuples(st.sampled_from("plrbw"), _SECONDS), max_size=40))
def test_without_faults_each_frame_is_written_once(steps: list[tuple[str, float]]) -> None:
    """Publishes, late offers being absent, rounds, a full socket: nothing reaches the wire twice."""
    driver, inbox = Driver(limits=_LIMITS), Inbox()
    driver.desk.token_life = driver.desk.age = 1e9
    driver.hello()
    driver.run(driver.session.registered())
    for number, (step, seconds) in enumerate(steps, start=1):
        driver.now += seconds
        if step == "p":
            inbox.write(id_of(number), 1, driver.now)
            driver.offer(id_of(number))
        elif step == "l":
            driver.mark([id_ for id_, _ in driver.seen[-2:]] or [id_of(0)])
        elif step == "r":
            driver.run(driver.session.head(inbox.head))
            driver.read(inbox)
        elif step == "b":
            driver.session.behind(driver.now)
        elif step == "w":
            driver.run(driver.session.writable())
            driver.read(inbox)
        if driver.session.since_checkpoint >= driver.session.checkpoint_at:
            driver.run(driver.session.frames_passed(driver.now))
            driver.session.seek_checkpoint()
            driver.read(inbox)
    assert len(driver.seen) == len(set(driver.seen))
