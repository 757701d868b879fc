"""Events from the command line."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from heliograph.type.v1 import notification_pb2
from heliograph_cli.failures import USAGE, CommandFailed
from heliograph_cli.publishing import Draft, fields_of, render
from heliograph_client import Receipt, build_event

RECEIPT = Receipt(event_id="e", accept_time=datetime(2026, 1, 2, tzinfo=UTC), replayed=False, request_id="r")


def test_every_option_reaches_the_event() -> None:
    """What is said on the command line is what is published."""
    draft = Draft(
        ("alice", "bob"), "Hi", body="there", link="/x", data_json='{"a":1}', category="deploy", priority="high",
        ttl=90.5, ordering_key="k",
    )  # fmt: skip
    event = build_event(**fields_of(draft))
    assert list(event.audience.recipient_ids) == ["alice", "bob"]
    assert (event.content.title, event.content.body, event.content.link) == ("Hi", "there", "/x")
    assert event.content.data_json == '{"a":1}'
    assert (event.category, event.priority, event.ordering_key) == ("deploy", notification_pb2.PRIORITY_HIGH, "k")
    assert event.ttl.ToTimedelta().total_seconds() == 90.5


def test_what_is_left_out_takes_the_contracts_defaults() -> None:
    """No priority and no end are not zero ones."""
    event = build_event(**fields_of(Draft(("alice",), "Hi")))
    assert event.priority == notification_pb2.PRIORITY_UNSPECIFIED
    assert event.WhichOneof("expiration") is None


def test_an_unknown_priority_is_wrong_usage() -> None:
    """The known ones are named."""
    with pytest.raises(CommandFailed, match="use high, normal or bulk") as caught:
        fields_of(Draft(("alice",), "Hi", priority="urgent"))
    assert caught.value.code == USAGE


def test_the_receipt_is_an_id_for_people_and_everything_for_programs() -> None:
    """A script can take the id as it is; a repeat is said."""
    assert render(RECEIPT, False, False) == "e"
    assert render(Receipt("e", RECEIPT.accept_time, True, "r"), False, False) == "e  (published before)"
    assert render(RECEIPT, True, False) == "valid"
    assert render(RECEIPT, False, True) == (
        '{"eventId": "e", "requestId": "r", "replayed": false, "acceptTime": "2026-01-02T00:00:00+00:00"}'
    )
