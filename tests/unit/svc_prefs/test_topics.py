"""The rules of subscriptions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.prefs.v1 import topic_service_pb2 as pb
from mesh.errors import InvalidArgument
from svc_prefs import topics
from svc_prefs.ports import Subscription

ALPHABET = "ABCXYZabcxyz0189._-@:+=/"


def refused(attempt: object) -> list[str]:
    """The fields that a call is refused for."""
    assert callable(attempt)
    with pytest.raises(InvalidArgument) as caught:
        attempt()
    assert caught.value.reason == "FIELD_INVALID"
    return [violation.field for violation in caught.value.violations]


def test_topics_of_a_call_count_once() -> None:
    """In the order in which they came."""
    assert topics.check_topics(["b", "a", "b"]) == ["b", "a"]
    assert len(topics.check_topics([f"t{number}" for number in range(topics.TOPICS_A_CALL)])) == topics.TOPICS_A_CALL


@pytest.mark.parametrize("wrong", ["", " ", "two words", "t" * 129, "news\n", "né", "a%2Fb", "a,b", "a\x00b", "#"])
def test_a_malformed_topic_is_refused(wrong: str) -> None:
    """Its place is named, its text is not repeated."""
    assert refused(lambda: topics.check_topics(["news", wrong])) == ["topic_ids[1]"]
    assert refused(lambda: topics.subscriber_page(pb.ListSubscribersRequest(tenant_id="acme", topic_id=wrong))) == [
        "topic_id"
    ]


@pytest.mark.parametrize("count", [0, topics.TOPICS_A_CALL + 1])
def test_a_call_has_a_hundred_topics_at_most(count: int) -> None:
    """And one at least."""
    assert refused(lambda: topics.check_topics([f"t{number}" for number in range(count)])) == ["topic_ids"]


def test_many_malformed_topics_are_named_up_to_a_limit() -> None:
    """A refusal travels in trailers, which are small."""
    assert len(refused(lambda: topics.check_topics(["?" * 60_000] * 100))) == 20


@pytest.mark.parametrize(
    ("tenant_id", "recipient_id", "fields"),
    [
        ("acme", "alice", []),
        ("acme-2", "Al.i_c-e@x:y+z=1", []),
        ("Acme", "alice", ["tenant_id"]),
        ("acme", "al/ice", ["recipient_id"]),
        ("a" * 65, "a" * 129, ["tenant_id", "recipient_id"]),
        ("acme", "alice\n", ["recipient_id"]),
    ],
)
def test_only_whom_events_can_reach_may_subscribe(tenant_id: str, recipient_id: str, fields: list[str]) -> None:
    """Fanout gets no name that the contract does not allow."""
    if fields:
        assert refused(lambda: topics.check_owner(tenant_id, recipient_id)) == fields
    else:
        topics.check_owner(tenant_id, recipient_id)


@given(st.text(alphabet=ALPHABET, min_size=1, max_size=128))
def test_a_token_goes_on_after_its_topic(topic_id: str) -> None:
    """Whatever a topic may be called."""
    request = pb.ListSubscriptionsRequest(page_token=topics.write_token(topic_id))
    assert topics.subscription_page(request) == (topic_id, topics.SUBSCRIPTION_PAGE)


@given(st.one_of(st.text(min_size=1), st.binary(min_size=1).map(lambda raw: raw.hex())))
def test_what_no_answer_gave_is_no_token(token: str) -> None:
    """It is refused as such, whatever it is."""
    request = pb.ListSubscriptionsRequest(page_token=token)
    assert refused(lambda: topics.subscription_page(request)) == ["page_token"]


def test_pages_have_sizes() -> None:
    """None is the default, more is cut down, negative numbers are refused."""
    sizes = [topics.subscription_page(pb.ListSubscriptionsRequest(page_size=size))[1] for size in (0, 1, 1_000, 5_000)]
    assert sizes == [100, 1, 1_000, 1_000]
    asked = [pb.ListSubscribersRequest(tenant_id="acme", topic_id="t", page_size=n) for n in (0, 1, 10_000, 50_000)]
    assert [topics.subscriber_page(request) for request in asked] == [1_000, 1, 10_000, 10_000]
    assert refused(lambda: topics.subscription_page(pb.ListSubscriptionsRequest(page_size=-1))) == ["page_size"]
    assert refused(lambda: topics.subscriber_page(pb.ListSubscribersRequest(page_size=-1))) == [
        "tenant_id",
        "topic_id",
        "page_size",
    ]


def test_a_page_names_the_next_one_only_if_there_is_one() -> None:
    """One subscription more than fits says that there is."""
    found = [Subscription(f"t{number}", 1_700_000_000_000_001) for number in range(3)]
    page = topics.list_page(found, 2)
    assert [one.topic_id for one in page.subscriptions] == ["t0", "t1"]
    assert page.subscriptions[0].create_time.ToMicroseconds() == 1_700_000_000_000_001
    assert topics.subscription_page(pb.ListSubscriptionsRequest(page_token=page.next_page_token))[0] == "t1"
    assert topics.list_page(found, 3).next_page_token == ""
    assert topics.list_page([], 3) == pb.ListSubscriptionsResponse()
