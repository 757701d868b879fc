"""What a client's frames do to its session."""

from __future__ import annotations

import pytest

from heliograph.gateway.v1.client_frames_pb2 import ClientMark, ConnectRequest, Ping, Reauthenticate
from heliograph.type.v1.notification_pb2 import MarkKind, NotificationRef
from mesh.errors import Failure, InvalidArgument, Unavailable
from svc_gateway import inbound
from svc_gateway.decisions import CloseCode, Limits, State
from tests.support.sessions import RECIPIENT, Driver, id_of


def _reason(driver: Driver) -> str:
    return driver.last("refused").refused.refusal.reason


def test_welcome_answers_hello() -> None:
    """It names the session and its times."""
    driver = Driver()
    driver.hello(features=["later"])
    welcome = driver.last("welcome").welcome
    assert welcome.session_id == "s-1"
    assert welcome.heartbeat_interval.seconds == 120
    assert welcome.token_expire_time.seconds == 1_700_003_600
    assert welcome.server_time.seconds == 1_700_000_000
    assert list(welcome.features) == []


@pytest.mark.parametrize("number", [0, 2])
def test_hello_has_number_one(number: int) -> None:
    """Any other number ends the session."""
    driver = Driver()
    frame = ConnectRequest(frame_number=number)
    frame.hello.token, frame.hello.device_id = "good", "phone"
    driver.run(inbound.receive(driver.session, frame, driver.now, driver.desk))
    assert driver.end_code() == CloseCode.PROTOCOL


def test_another_frame_before_hello_ends_the_session() -> None:
    """Nothing is done for a client that has not said who it is."""
    driver = Driver()
    driver.say(ConnectRequest(ping=Ping()))
    assert driver.end_code() == CloseCode.PROTOCOL
    assert _reason(driver) == "FRAME_INVALID"


@pytest.mark.parametrize(
    ("token", "code", "reason"),
    [
        ("bad", CloseCode.TOKEN_INVALID, "TOKEN_INVALID"),
        ("", CloseCode.TOKEN_INVALID, "TOKEN_INVALID"),
        ("old", CloseCode.TOKEN_EXPIRED, "TOKEN_EXPIRED"),
    ],
)
def test_a_token_that_does_not_verify_ends_the_session(token: str, code: CloseCode, reason: str) -> None:
    """The code says whether to come back with another one."""
    driver = Driver()
    driver.hello(token=token)
    assert driver.end() == (code, reason)
    assert driver.registers == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"device_id": ""},
        {"device_id": "a b"},
        {"device_id": "x" * 129},
        {"client_name": "x" * 101},
        {"received_refs": [{"notification_id": "no id"}]},
        {"received_refs": [{"notification_id": id_of(number)} for number in range(501)]},
        {"unconfirmed_marks": [{"kind": 0, "refs": [{"notification_id": id_of(1)}]}]},
        {"unconfirmed_marks": [{"kind": 1, "refs": []}]},
    ],
)
def test_a_hello_that_breaks_a_rule_ends_the_session(fields: dict[str, object]) -> None:
    """The refusal names the field; the token is not even looked at."""
    driver = Driver()
    driver.hello(**fields)
    assert driver.end_code() == CloseCode.PROTOCOL
    refusal = driver.last("refused").refused.refusal
    assert refusal.reason == "FIELD_INVALID"
    assert refusal.violations[0].field.startswith(f"hello.{next(iter(fields))}")


@pytest.mark.parametrize("cursor", ["nonsense", "5", ".store", "5.", "-1.store", "5.a b"])
def test_a_malformed_cursor_is_told_and_everything_follows(cursor: str) -> None:
    """The session goes on with a reload."""
    driver = Driver()
    driver.hello(cursor=cursor)
    assert _reason(driver) == "CURSOR_INVALID"
    assert driver.end() is None
    driver.run(driver.session.registered())
    request = driver.session.begin_replay(driver.now)
    assert request is not None
    assert not request.HasField("cursor")


def test_marks_are_stored_under_the_session_s_name_and_confirmed_in_order() -> None:
    """A later frame that is durable first waits for the earlier one."""
    driver = Driver()
    driver.go_live()
    driver.offer(id_of(1), source="delivery-7")
    driver.mark([id_of(1)])
    driver.mark([id_of(1)], MarkKind.MARK_KIND_READ)
    first, second = driver.stored
    assert (first.frame_number, second.frame_number) == (2, 3)
    assert first.source == "delivery-7"
    mark = second.marks[0]
    assert (mark.recipient_key, mark.device_id, mark.kind) == (RECIPIENT, "phone", MarkKind.MARK_KIND_READ)
    inbound.stored(driver.session, 3)
    assert not inbound.confirmation(driver.session)
    inbound.stored(driver.session, 2)
    driver.run(inbound.confirmation(driver.session))
    assert driver.last("confirmed").confirmed.frame_number == 3
    assert not inbound.confirmation(driver.session)


def test_a_confirmation_waits_for_the_socket() -> None:
    """It is said when the socket has drained."""
    driver = Driver()
    driver.go_live()
    driver.offer(id_of(1))
    driver.mark([id_of(1)])
    driver.session.behind(driver.now)
    inbound.stored(driver.session, 2)
    assert not inbound.confirmation(driver.session)
    driver.run(driver.session.writable())
    driver.run(inbound.confirmation(driver.session))
    assert driver.last("confirmed").confirmed.frame_number == 2


def test_unconfirmed_marks_of_hello_are_stored_again_and_confirmed_together() -> None:
    """They belong to frame 1, and their ids may be marked."""
    driver = Driver()
    said = [ClientMark(kind=MarkKind.MARK_KIND_READ, refs=[NotificationRef(notification_id=id_of(n))]) for n in (1, 2)]
    driver.hello(unconfirmed_marks=said)
    assert len(driver.stored[0].marks) == 2
    inbound.stored(driver.session, 1)
    assert not inbound.confirmation(driver.session)
    inbound.stored(driver.session, 1)
    driver.run(inbound.confirmation(driver.session))
    assert driver.last("confirmed").confirmed.frame_number == 1
    driver.mark([id_of(2)])
    assert len(driver.stored) == 2


def test_a_mark_for_a_foreign_id_is_refused_and_stores_nothing() -> None:
    """The session goes on."""
    driver = Driver()
    driver.go_live()
    driver.offer(id_of(1))
    driver.mark([id_of(1), id_of(2)])
    assert driver.stored == []
    refused = driver.last("refused").refused
    assert (refused.frame_number, refused.refusal.reason) == (2, "NOTIFICATION_UNKNOWN")
    assert refused.refusal.metadata["notification_id"] == id_of(2)
    assert driver.end() is None


@pytest.mark.parametrize(
    "mark",
    [
        ClientMark(),
        ClientMark(kind=MarkKind.MARK_KIND_RECEIVED),
        ClientMark(kind=MarkKind.MARK_KIND_RECEIVED, refs=[NotificationRef()]),
    ],
)
def test_a_malformed_mark_is_refused(mark: ClientMark) -> None:
    """Kind and ids are checked before anything is stored."""
    driver = Driver()
    driver.go_live()
    driver.say(ConnectRequest(mark=mark))
    assert _reason(driver) == "FIELD_INVALID"


def test_marks_that_are_not_stored_for_long_are_refused_at_a_limit() -> None:
    """A client that outruns the store is told to wait, and never closed for what it said before it was told."""
    driver = Driver(limits=Limits(pending_count=2, refused_count=3))
    driver.go_live()
    driver.offer(id_of(1))
    for _ in range(12):
        driver.mark([id_of(1)])
    assert len(driver.stored) == 2
    refusal = driver.last("refused").refused.refusal
    assert refusal.reason == "OVERLOADED"
    assert refusal.HasField("retry_delay")
    assert driver.end() is None


def test_marks_for_which_there_is_no_room_are_taken_back() -> None:
    """The client is told to send them again."""
    driver = Driver()
    driver.go_live()
    driver.offer(id_of(1))
    driver.mark([id_of(1)])
    driver.run(inbound.unstored(driver.session, 2))
    assert _reason(driver) == "OVERLOADED"
    assert driver.session.pending is None


def test_frame_numbers_rise() -> None:
    """A repeated number is refused, and its mark not stored."""
    driver = Driver()
    driver.go_live()
    driver.offer(id_of(1))
    driver.mark([id_of(1)])
    again = ConnectRequest(
        frame_number=2,
        mark=ClientMark(kind=MarkKind.MARK_KIND_RECEIVED, refs=[NotificationRef(notification_id=id_of(1))]),
    )
    driver.say(again)
    assert len(driver.stored) == 1
    assert _reason(driver) == "FRAME_INVALID"


def test_a_second_hello_is_refused() -> None:
    """A session belongs to one device for its whole life."""
    driver = Driver()
    driver.go_live()
    driver.hello(device_id="tablet")
    assert _reason(driver) == "FRAME_INVALID"
    assert driver.session.device_id == "phone"


def test_a_fresh_token_extends_the_session_of_its_recipient_only() -> None:
    """Another recipient's token changes nothing."""
    driver = Driver()
    driver.desk.token_life = 60.0
    driver.go_live()
    due = driver.session.token_due
    driver.say(ConnectRequest(reauthenticate=Reauthenticate(token="other")))
    assert _reason(driver) == "CALLER_NOT_ALLOWED"
    driver.say(ConnectRequest(reauthenticate=Reauthenticate(token="bad")))
    assert _reason(driver) == "TOKEN_INVALID"
    assert driver.session.token_due == due
    driver.now += 30.0
    driver.say(ConnectRequest(reauthenticate=Reauthenticate(token="good")))
    assert driver.session.token_due == due + 30.0


def test_a_ping_is_answered() -> None:
    """It is a sign of life in both directions."""
    driver = Driver()
    driver.go_live()
    driver.now += 50.0
    driver.say(ConnectRequest(ping=Ping()))
    assert driver.kinds()[-1] == "pong"
    assert driver.session.heard == driver.now


def test_who_sends_only_nonsense_is_closed() -> None:
    """A few refused frames are forgiven."""
    driver = Driver(limits=Limits(refused_count=3))
    driver.go_live()
    nonsense = InvalidArgument("no frame", reason="FRAME_UNKNOWN")
    for number in range(2, 5):
        driver.run(inbound.refuse(driver.session, number, nonsense))
    assert driver.state() is State.LIVE
    driver.run(inbound.refuse(driver.session, 5, nonsense))
    assert driver.end_code() == CloseCode.PROTOCOL


# ---------------------------------------------------------------- topics


def test_topics_are_passed_on_in_order_and_confirmed_with_marks() -> None:
    """One number for all: a mark that is durable first waits for the topics before it."""
    driver = Driver()
    driver.go_live()
    driver.offer(id_of(1))
    driver.subscribe("deploys", "team/blue")
    driver.mark([id_of(1)])
    driver.unsubscribe("deploys")
    assert [(list(one.topic_ids), one.begin, one.frame_number) for one in driver.changes] == [
        (["deploys", "team/blue"], True, 2),
        (["deploys"], False, 4),
    ]
    inbound.stored(driver.session, 3)
    assert not inbound.confirmation(driver.session)
    driver.run(inbound.topics_changed(driver.session, 2, None))
    driver.run(inbound.confirmation(driver.session))
    assert driver.last("confirmed").confirmed.frame_number == 3
    driver.run(inbound.topics_changed(driver.session, 4, None))
    driver.run(inbound.confirmation(driver.session))
    assert driver.last("confirmed").confirmed.frame_number == 4


@pytest.mark.parametrize(
    "topics", [[], ["a b"], [""], ["x" * 129], ["ok", "grüß"], [f"t{number}" for number in range(101)]]
)
@pytest.mark.parametrize("begin", [True, False])
def test_malformed_topics_are_refused(topics: list[str], begin: bool) -> None:
    """Every rule is named, and nothing is passed on."""
    driver = Driver()
    driver.go_live()
    (driver.subscribe if begin else driver.unsubscribe)(*topics)
    assert driver.changes == []
    refusal = driver.last("refused").refused.refusal
    assert refusal.reason == "FIELD_INVALID"
    assert refusal.violations[0].field.startswith("subscribe.topic_ids" if begin else "unsubscribe.topic_ids")
    assert driver.end() is None


def test_topics_that_fail_are_refused_and_what_came_after_is_confirmed() -> None:
    """The client says them again; a later mark waited for them and waits no more."""
    driver = Driver()
    driver.go_live()
    driver.offer(id_of(1))
    driver.subscribe("deploys")
    driver.mark([id_of(1)])
    inbound.stored(driver.session, 3)
    away = Unavailable("away", reason="PEER_UNAVAILABLE", retry_delay=2.0)
    driver.run(inbound.topics_changed(driver.session, 2, away))
    driver.run(inbound.confirmation(driver.session))
    refused = driver.last("refused").refused
    assert (refused.frame_number, refused.refusal.reason) == (2, "PEER_UNAVAILABLE")
    assert refused.refusal.retry_delay.seconds == 2
    assert driver.last("confirmed").confirmed.frame_number == 3


def test_only_a_client_s_own_mistakes_end_its_session() -> None:
    """An absent peer never does, however often it is asked for."""
    driver = Driver(limits=Limits(refused_count=3))
    driver.go_live()

    def fail(failure: Failure, times: int) -> None:
        for _ in range(times):
            driver.subscribe("deploys")
            driver.run(inbound.topics_changed(driver.session, driver.changes[-1].frame_number, failure))

    fail(Unavailable("away", reason="PEER_UNAVAILABLE"), 10)
    assert driver.end() is None
    fail(InvalidArgument("too many subscriptions", reason="FIELD_INVALID"), 4)
    assert driver.end_code() == CloseCode.PROTOCOL


def test_a_few_changes_of_topics_may_wait() -> None:
    """One more is refused with a delay; when one is over there is room again."""
    driver = Driver(limits=Limits(topics_count=2))
    driver.go_live()
    for _ in range(3):
        driver.subscribe("deploys")
    assert len(driver.changes) == 2
    assert _reason(driver) == "OVERLOADED"
    driver.run(inbound.topics_changed(driver.session, 2, None))
    driver.subscribe("deploys")
    assert len(driver.changes) == 3


def test_a_token_of_the_call_binds_hello() -> None:
    """A transport that knows who is there lets nobody else say hello."""
    driver = Driver()
    driver.session.recipient_key = "acme/bob"
    driver.hello()
    assert driver.end_code() == CloseCode.TOKEN_INVALID
    assert _reason(driver) == "CALLER_NOT_ALLOWED"
