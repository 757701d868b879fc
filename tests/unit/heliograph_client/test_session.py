"""The rules of a subscriber under any order of events: against an honest server, and against any frames at all."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from google.protobuf import json_format
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from heliograph.gateway.v1.client_frames_pb2 import ConnectRequest, ConnectResponse
from heliograph.type.v1.notification_pb2 import MarkKind, NotificationState
from heliograph_client.inbound import receive
from heliograph_client.resume import Resume
from heliograph_client.session import Action, Leave, Retry, Session, Show, Stop
from mesh.errors import InvalidArgument, ResourceExhausted
from tests.support.inbox_far_end import FarEnd
from tests.support.scripted_gateway import (
    changed,
    confirmed,
    go_away,
    id_of,
    notify,
    refused,
    replayed,
    welcome,
)

WALL = 1_700_000_000.0
FRAME_BYTES = 64 * 1024
STATE_KINDS = (MarkKind.MARK_KIND_READ, MarkKind.MARK_KIND_UNREAD, MarkKind.MARK_KIND_HIDDEN)
NUMBERS = st.integers(min_value=0, max_value=7)
REVISIONS = st.integers(min_value=1, max_value=3)
STEPS = settings(max_examples=70, stateful_step_count=40)


def _session(*, auto_ack: bool = True, renewable: bool = False) -> Session:
    return Session(Resume("laptop"), random=lambda: 0.5, auto_ack=auto_ack, renewable=renewable)


class Client:
    """A session with what it showed and sent; it checks what must hold for every frame."""

    def __init__(self) -> None:
        self.session = _session()
        self.now = 0.0
        self.shown: list[tuple[str, int]] = []
        self.number = 0
        self.leaving = False

    @property
    def wall(self) -> float:
        return WALL + self.now

    def hello(self) -> ConnectRequest:
        frame = self.session.hello("token", self.now)
        self.number, self.leaving = 0, False
        self._check(frame)
        return frame

    def frames(self) -> list[ConnectRequest]:
        frames = self.session.take_frames(self.now)
        for frame in frames:
            self._check(frame)
        return frames

    def take(self, frame: ConnectResponse) -> None:
        self.carry_out(receive(self.session, frame, self.now, self.wall))

    def carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Show):
                known = [revision for id_, revision in self.shown if id_ == action.notification.id]
                assert action.notification.revision > max(known, default=0), "shown twice, or an older one later"
                self.shown.append((action.notification.id, action.notification.revision))
            self.leaving = self.leaving or isinstance(action, Leave)

    def _check(self, frame: ConnectRequest) -> None:
        self.number += 1
        assert frame.frame_number == self.number, "frame numbers rise by one"
        assert len(json_format.MessageToJson(frame, indent=None)) <= FRAME_BYTES
        assert len(frame.hello.received_refs) <= 500
        assert len(frame.hello.unconfirmed_marks) <= 100


class HonestServer(RuleBasedStateMachine):
    """Publishes, marks, breaks and slow frames in any order, with a server that keeps the contract."""

    def __init__(self) -> None:
        super().__init__()
        self.client = Client()
        self.server = FarEnd()
        self.connected = False

    @initialize()
    def begin(self) -> None:
        self.connect()

    @precondition(lambda self: not self.connected)
    @rule()
    def connect(self) -> None:
        self.connected = True
        self.server.to_server.append(self.client.hello())

    @rule(number=NUMBERS, revision=REVISIONS)
    def publish(self, number: int, revision: int) -> None:
        self.server.publish(number, revision)

    @rule(number=NUMBERS, kind=st.sampled_from(STATE_KINDS))
    def mark_elsewhere(self, number: int, kind: MarkKind.ValueType) -> None:
        self.server.mark_elsewhere(number, kind)

    @rule(number=NUMBERS, kind=st.sampled_from(STATE_KINDS))
    def mark(self, number: int, kind: MarkKind.ValueType) -> None:
        if self.client.session.resume.knows(id_of(number)):
            self.client.session.mark(kind, [id_of(number)], self.client.wall)
            self.send()

    @rule(seconds=st.floats(min_value=0, max_value=90))
    def wait(self, seconds: float) -> None:
        self.client.now += seconds

    @rule()
    def read(self) -> None:
        self.server.begin_reading()

    @rule()
    def send_what_was_read(self) -> None:
        self.server.finish_reading()

    @rule(count=st.integers(min_value=1, max_value=6))
    def deliver(self, count: int) -> None:
        """Frames arrive, in both directions."""
        for _ in range(count):
            if self.server.to_server:
                self.server.take()
            if self.server.to_client:
                self.client.take(self.server.to_client.popleft())
                self.send()
        if self.client.leaving:
            self.break_()

    @precondition(lambda self: self.connected)
    @rule()
    def break_(self) -> None:
        self.connected = False
        self.server.lose()
        assert isinstance(self.client.session.ended(1006, "", self.client.now), Retry)

    def send(self) -> None:
        if self.connected:
            self.server.to_server.extend(self.client.frames())

    def settle(self) -> None:
        """Nothing breaks any more; after the client's doubts are over there is one more checkpoint."""
        for _ in range(3):
            if not self.connected:
                self.connect()
            for _ in range(100):
                self.deliver(1)
            self.server.finish_reading()
            for _ in range(100):
                self.deliver(1)
            self.client.now += 60.0
            self.server.begin_reading()

    def teardown(self) -> None:
        """In the end the copy is the inbox, everything was shown, and no mark is missing."""
        self.settle()
        client, resume = self.client, self.client.session.resume
        assert resume.copy.window(client.wall) == self.server.window()
        assert resume.copy.unread(client.wall, resume.marks.mark_of) == self.server.unread()
        assert len(resume.marks) == 0
        due = {(id_, row.revision) for id_, row in self.server.rows.items() if not row.hidden}
        assert due <= set(client.shown)
        # Nothing but its own marks on the way can make the copy differ, and those are not judged.
        assert client.session.stats.mismatches == 0


class AnyFrames(RuleBasedStateMachine):
    """Frames in any order, true or not: what the client promises holds whatever the server says."""

    def __init__(self) -> None:
        super().__init__()
        self.client = Client()
        self.cursor = ""
        self.said: dict[str, MarkKind.ValueType] = {}
        self.sent: dict[int, list[tuple[str, MarkKind.ValueType]]] = {}
        self.connect()

    def connect(self) -> None:
        frame = self.client.hello()
        assert frame.hello.cursor in ("", self.cursor), "cursors come from checkpoints only"
        marks = [(ref.notification_id, mark.kind) for mark in frame.hello.unconfirmed_marks for ref in mark.refs]
        self.sent = {1: marks}

    def _take(self, frame: ConnectResponse) -> None:
        self.client.take(frame)
        for sent in self.client.frames():
            self.sent[sent.frame_number] = [(ref.notification_id, sent.mark.kind) for ref in sent.mark.refs]
        if self.client.leaving:
            self.end(1000)

    @rule()
    def welcome(self) -> None:
        self._take(welcome(now=self.client.wall))

    @rule(number=NUMBERS, revision=REVISIONS, state=st.sampled_from(NotificationState.values()))
    def notify(self, number: int, revision: int, state: NotificationState.ValueType) -> None:
        self._take(notify(number, revision=revision, state=state))

    @rule(number=NUMBERS, state=st.sampled_from(NotificationState.values()))
    def changed(self, number: int, state: NotificationState.ValueType) -> None:
        self._take(changed(state, number))

    @rule(cursor=st.integers(min_value=1), reload=st.booleans(), rows=st.integers(min_value=0, max_value=2))
    def replayed(self, cursor: int, reload: bool, rows: int) -> None:
        self.cursor = f"c{cursor}"
        self._take(replayed(self.cursor, [(id_of(number), 1, False) for number in range(rows)], reload=reload))

    @rule(number=st.integers(min_value=0, max_value=9))
    def confirmed(self, number: int) -> None:
        for frame_number in [known for known in self.sent if known <= number]:
            for id_, kind in self.sent.pop(frame_number):
                if self.said.get(id_) == kind:
                    del self.said[id_]
        self._take(confirmed(number))

    @rule(number=st.integers(min_value=1, max_value=9), full=st.booleans())
    def refused(self, number: int, full: bool) -> None:
        failure = (
            ResourceExhausted("full", reason="OVERLOADED", retry_delay=1.0)
            if full
            else InvalidArgument("unknown", reason="NOTIFICATION_UNKNOWN")
        )
        if number > 1:
            self.sent.pop(number, None)
        self._take(refused(number, failure))

    @rule(number=NUMBERS, kind=st.sampled_from(STATE_KINDS))
    def mark(self, number: int, kind: MarkKind.ValueType) -> None:
        if self.client.session.resume.knows(id_of(number)):
            self.client.session.mark(kind, [id_of(number)], self.client.wall)
            self.said[id_of(number)] = kind

    @rule(delay=st.integers(min_value=0, max_value=9))
    def go_away(self, delay: int) -> None:
        self._take(go_away("DRAINING", delay=delay))

    @rule(seconds=st.floats(min_value=0, max_value=300))
    def tick(self, seconds: float) -> None:
        self.client.now += seconds
        self.client.carry_out(self.client.session.tick(self.client.now))
        if self.client.leaving:
            self.end(1000)

    @rule(code=st.sampled_from([1000, 1006, 4000, 4001, 4002, 4003, 4004, 4099]))
    def end(self, code: int) -> None:
        follows = self.client.session.ended(code, "", self.client.now)
        if isinstance(follows, Stop):
            assert code == 4003
        else:
            assert 0 <= follows.delay <= 15.0 + 9.0
        self.connect()

    @rule()
    def restart(self) -> None:
        """The process ends and another one goes on from what was saved; what was said is still known."""
        state = self.client.session.resume.dump(without=())
        self.client.session = _session()
        self.client.session.resume.load(state, self.client.now)
        self.connect()

    @invariant()
    def no_mark_is_lost(self) -> None:
        for id_, kind in self.said.items():
            assert self.client.session.resume.marks.mark_of(id_) == kind


@pytest.mark.parametrize("machine", [HonestServer, AnyFrames])
def test_promises_hold_in_any_order(machine: type[RuleBasedStateMachine]) -> None:
    """Nothing is shown twice, no mark is lost, cursors come from checkpoints, and the copy becomes the inbox."""
    run_state_machine_as_test(machine, settings=STEPS)
