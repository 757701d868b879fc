"""What a device keeps between connections and across restarts."""

from __future__ import annotations

import pytest

from heliograph.type.v1.notification_pb2 import MarkKind, NotificationState
from heliograph_client.marks import Said
from heliograph_client.resume import LARGEST_REFS, Resume
from mesh.errors import FailedPrecondition
from tests.support.scripted_gateway import id_of

NEW = NotificationState.NOTIFICATION_STATE_NEW


def _resume(device_id: str = "laptop") -> Resume:
    resume = Resume(device_id)
    resume.owner = "acme/alice"
    return resume


def _named(resume: Resume) -> list[str]:
    return [ref.notification_id for ref in resume.received_refs()]


def test_it_names_what_came_since_a_minute_before_the_checkpoint() -> None:
    """What is older the cursor covers; the newest stands last."""
    resume = _resume()
    for number, time in enumerate([0.0, 30.0, 50.0, 100.0, 120.0]):
        resume.remember(id_of(number), 1, time)
    resume.checkpoint("c1", 110.0)
    assert _named(resume) == [id_of(number) for number in (2, 3, 4)]


def test_it_names_the_copy_as_well() -> None:
    """Only what is named can be marked; what came since the checkpoint is never left out for it."""
    resume = _resume()
    for number in range(600):
        resume.copy.put(id_of(number), 1, high=number % 2 == 0, state=NEW, expire_time=0.0)
    resume.checkpoint("c1", 100.0)
    for number in range(600, 900):
        resume.remember(id_of(number), 1, 200.0)
    named = _named(resume)
    assert len(named) == LARGEST_REFS
    assert named[-300:] == [id_of(number) for number in range(600, 900)]


def test_it_names_the_newest_when_too_much_came() -> None:
    """At most 500, and the newest of them."""
    resume = _resume()
    for number in range(700):
        resume.remember(id_of(number), 1, float(number))
    assert _named(resume) == [id_of(number) for number in range(200, 700)]


def test_a_revision_is_news_once() -> None:
    """A higher one is news again, a lower one never."""
    resume = _resume()
    assert resume.remember("a", 2, 0.0)
    assert not resume.remember("a", 2, 0.0)
    assert not resume.remember("a", 1, 0.0)
    assert resume.remember("a", 3, 0.0)


def test_it_comes_back_as_it_was() -> None:
    """Cursor, copy, ids and marks survive; what was not handed over yet does not, so it comes again."""
    resume = _resume()
    for id_ in ("shown", "waiting"):
        resume.remember(id_, 1, 5.0)
        resume.copy.put(id_, 1, high=False, state=NEW, expire_time=7.0)
    resume.checkpoint("c1", 6.0)
    resume.marks.say(Said("shown", 1, MarkKind.MARK_KIND_READ, 8.0))
    again = Resume("laptop")
    again.load(resume.dump(without={"waiting"}), 1_000.0)
    assert (again.owner, again.cursor, _named(again)) == ("acme/alice", "c1", ["shown"])
    assert (again.knows("shown"), again.knows("waiting")) == (True, False)
    assert not again.remember("shown", 1, 1_000.0)
    assert again.copy.rows == {"shown": resume.copy.rows["shown"]}
    assert again.marks.all() == resume.marks.all()


def test_what_another_device_saved_is_left_alone() -> None:
    """A cursor belongs to the copy of one device."""
    resume = _resume()
    resume.checkpoint("c1", 6.0)
    other = Resume("phone")
    other.load(resume.dump(without=()), 0.0)
    assert other.cursor == ""


@pytest.mark.parametrize("state", [b"", b"{", b"[]", b'{"version":1}', b"\xff"])
def test_what_cannot_be_read_is_refused(state: bytes) -> None:
    """The failure says what to do."""
    with pytest.raises(FailedPrecondition, match="remove it"):
        _resume().load(state, 0.0)


def test_a_later_version_is_refused() -> None:
    """A file of a newer release is not guessed at."""
    state = _resume().dump(without=()).replace(b'"version":1', b'"version":2')
    with pytest.raises(FailedPrecondition, match="version 2"):
        _resume().load(state, 0.0)
