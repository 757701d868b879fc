"""The rules of subscriptions: what a topic's name is, how many there may be, and how lists are paged.

Pure: no I/O. A topic exists by being used; nobody makes one.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Final

from heliograph.prefs.v1 import topic_service_pb2 as pb
from mesh.errors import InvalidArgument, Violation
from svc_prefs.core import invalid
from svc_prefs.mutes import TOPIC_RULE, is_topic
from svc_prefs.ports import Subscription

LARGEST_SUBSCRIPTIONS: Final = 1_000
TOPICS_A_CALL: Final = 100
SUBSCRIPTION_PAGE: Final = 100
LARGEST_SUBSCRIPTION_PAGE: Final = 1_000
SUBSCRIBER_PAGE: Final = 1_000
LARGEST_SUBSCRIBER_PAGE: Final = 10_000
RECIPIENT_CHARACTERS: Final = 128
TENANT_CHARACTERS: Final = 64

_RECIPIENT = re.compile(rf"[A-Za-z0-9._@:+=-]{{1,{RECIPIENT_CHARACTERS}}}")
_TENANT = re.compile(rf"[a-z0-9-]{{1,{TENANT_CHARACTERS}}}")
_MICROS: Final = 1_000_000
# What a token begins with: its version and what it belongs to.
_TOKEN: Final = b"1S"


def too_many(most: int) -> InvalidArgument:
    """The recipient would have more subscriptions than one may have."""
    return invalid([Violation("topic_ids", f"a recipient may have at most {most} subscriptions: end some first")])


def check_topics(topic_ids: Sequence[str]) -> Sequence[str]:
    """Returns the topics of a call, each once.

    Raises:
        InvalidArgument: there are none or too many, or one is malformed.
    """
    if not 1 <= len(topic_ids) <= TOPICS_A_CALL:
        raise invalid([Violation("topic_ids", f"must be 1 to {TOPICS_A_CALL}, not {len(topic_ids)}")])
    wrong = [
        Violation(f"topic_ids[{index}]", TOPIC_RULE)
        for index, topic_id in enumerate(topic_ids)
        if not is_topic(topic_id)
    ]
    if wrong:
        raise invalid(wrong)
    return list(dict.fromkeys(topic_ids))


def check_owner(tenant_id: str, recipient_id: str) -> None:
    """Checks that events can reach a subscriber of this name.

    Raises:
        InvalidArgument: tenant or recipient is malformed.
    """
    violations = []
    if _TENANT.fullmatch(tenant_id) is None:
        violations.append(Violation("tenant_id", f"must be 1 to {TENANT_CHARACTERS} characters out of a-z 0-9 -"))
    if _RECIPIENT.fullmatch(recipient_id) is None:
        rule = f"must be 1 to {RECIPIENT_CHARACTERS} characters out of A-Z a-z 0-9 . _ - @ : + ="
        violations.append(Violation("recipient_id", rule))
    if violations:
        raise invalid(violations)


def subscription_page(request: pb.ListSubscriptionsRequest) -> tuple[str, int]:
    """Returns the topic that a page begins after, and how many it may have.

    Raises:
        InvalidArgument: the size is negative, or the token is none that an answer gave.
    """
    violations = []
    if request.page_size < 0:
        violations.append(Violation("page_size", "must not be negative"))
    after = _read_token(request.page_token)
    if after is None:
        violations.append(Violation("page_token", "must be one that the last answer gave"))
    if after is None or violations:
        raise invalid(violations)
    return after, min(request.page_size or SUBSCRIPTION_PAGE, LARGEST_SUBSCRIPTION_PAGE)


def subscriber_page(request: pb.ListSubscribersRequest) -> int:
    """Returns how many subscribers a page may have.

    Raises:
        InvalidArgument: the tenant is missing, the topic malformed, or the size negative.
    """
    violations = []
    if not request.tenant_id:
        violations.append(Violation("tenant_id", "must be given"))
    if not is_topic(request.topic_id):
        violations.append(Violation("topic_id", TOPIC_RULE))
    if request.page_size < 0:
        violations.append(Violation("page_size", "must not be negative"))
    if violations:
        raise invalid(violations)
    return min(request.page_size or SUBSCRIBER_PAGE, LARGEST_SUBSCRIBER_PAGE)


def list_page(found: Sequence[Subscription], page_size: int) -> pb.ListSubscriptionsResponse:
    """Returns a page, of one subscription more than it may have if there are more."""
    taken = found[:page_size]
    token = write_token(taken[-1].topic_id) if len(found) > page_size else ""
    return pb.ListSubscriptionsResponse(subscriptions=[show(one) for one in taken], next_page_token=token)


def show(subscription: Subscription) -> pb.Subscription:
    """Returns a subscription as it is answered."""
    shown = pb.Subscription(topic_id=subscription.topic_id)
    shown.create_time.seconds, rest = divmod(subscription.create_us, _MICROS)
    shown.create_time.nanos = rest * 1_000
    return shown


def write_token(topic_id: str) -> str:
    """Returns the token of the page after this topic."""
    return urlsafe_b64encode(_TOKEN + topic_id.encode()).decode()


def _read_token(token: str) -> str | None:
    """Returns the topic that a token names, "" for no token, None for what is none."""
    if not token:
        return ""
    try:
        packed = urlsafe_b64decode(token.encode("ascii"))
        topic_id = packed.removeprefix(_TOKEN).decode("ascii")
    except ValueError:
        return None
    return topic_id if packed.startswith(_TOKEN) and is_topic(topic_id) else None
