"""Notifications on the terminal."""

from __future__ import annotations

import json

from google.protobuf.timestamp_pb2 import Timestamp

from heliograph.type.v1 import notification_pb2
from heliograph_cli.listening import render
from heliograph_client import Notification


def _notification(*, replayed: bool = False, title: str = "Hi", body: str = "") -> Notification:
    message = notification_pb2.Notification(
        notification_id="01a2-id",
        revision=1,
        category="deploy",
        priority=notification_pb2.PRIORITY_NORMAL,
        event_time=Timestamp(seconds=1_700_000_000),
        content=notification_pb2.Content(title=title, body=body, link="/x"),
    )
    return Notification(message=message, state="new", replayed=replayed, receive_time=0.0)


def test_a_notification_is_one_line() -> None:
    """Category, title, body, link and id stand in a line; what came earlier is marked."""
    line = render(_notification(body="two\nlines"), as_json=False)
    assert line.endswith(" [deploy] Hi - two lines /x  01a2-id")
    assert "(earlier)" in render(_notification(replayed=True), as_json=False)


def test_a_notification_cannot_command_the_terminal() -> None:
    """A producer's text has no escapes when it is shown."""
    assert "\x1b" not in render(_notification(title="\x1b[2Jgone"), as_json=False)


def test_json_has_the_contracts_names() -> None:
    """Programs get the notification as REST and WebSocket give it, and whether it is a replay."""
    found = json.loads(render(_notification(replayed=True), as_json=True))
    assert found["notificationId"] == "01a2-id"
    assert found["content"] == {"title": "Hi", "link": "/x"}
    assert found["replayed"] is True
