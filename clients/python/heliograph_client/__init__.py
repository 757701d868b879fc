"""Heliograph for Python: publish events, receive notifications.

A producer publishes; the receipt comes when the event is durable:

    from heliograph_client import Publisher, Tls

    async with Publisher("notify.example.org:443", tls=Tls(), token=PRODUCER_TOKEN) as publisher:
        receipt = await publisher.publish(category="deploy", to=["alice", "bob"], title="Release 7 is live")
        print(receipt.event_id)

A recipient's device receives; each revision of a notification is shown once, whatever happens to the connection:

    from heliograph_client import FileCursorStore, Subscriber

    async with Subscriber(
        "wss://notify.example.org",
        token=current_token,
        device_id="laptop-1",
        store=FileCursorStore(Path("heliograph.state")),
    ) as subscriber:
        async for notification in subscriber:
            print(notification.title, notification.link)
            subscriber.mark_read(notification)

An app may prefer gRPC: `Subscriber("notify.example.org:443", transport="grpc", tls=Tls(), …)`. A subscriber can also
change what its recipient is subscribed to: `await subscriber.subscribe("deploys")`.

Everything that goes wrong is a `Failure`: its class is the category, its `reason` says what exactly.
"""

from __future__ import annotations

from heliograph_client.clock import Clock, SystemClock
from heliograph_client.cursor_store import CursorStore, FileCursorStore, MemoryCursorStore
from heliograph_client.errors import (
    Aborted,
    AlreadyExists,
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    Failure,
    Internal,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    Unimplemented,
    Unknown,
    Violation,
)
from heliograph_client.events import EventFields, PreparedEvent, build_event
from heliograph_client.publish_calls import PublishStats, Receipt
from heliograph_client.publisher import Publisher
from heliograph_client.retry import RetryBudget, RetryPolicy
from heliograph_client.session import Limits
from heliograph_client.subscriber import Subscriber
from heliograph_client.tls import Tls
from heliograph_client.tokens import TokenSource
from heliograph_client.topics import TopicChange
from heliograph_client.values import (
    AckLevel,
    CaughtUp,
    Connected,
    Disconnected,
    MarksConfirmed,
    MarksRefused,
    Notification,
    StateChanged,
    SubscriberStats,
    TopicsChanged,
    UnreadChanged,
    Update,
)
from heliograph_client.wires import Transport

__all__ = [
    "Aborted",
    "AckLevel",
    "AlreadyExists",
    "Cancelled",
    "CaughtUp",
    "Clock",
    "Connected",
    "CursorStore",
    "DataLoss",
    "DeadlineExceeded",
    "Disconnected",
    "EventFields",
    "FailedPrecondition",
    "Failure",
    "FileCursorStore",
    "Internal",
    "InvalidArgument",
    "Limits",
    "MarksConfirmed",
    "MarksRefused",
    "MemoryCursorStore",
    "NotFound",
    "Notification",
    "OutOfRange",
    "PermissionDenied",
    "PreparedEvent",
    "PublishStats",
    "Publisher",
    "Receipt",
    "ResourceExhausted",
    "RetryBudget",
    "RetryPolicy",
    "StateChanged",
    "Subscriber",
    "SubscriberStats",
    "SystemClock",
    "Tls",
    "TokenSource",
    "TopicChange",
    "TopicsChanged",
    "Transport",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "Unknown",
    "UnreadChanged",
    "Update",
    "Violation",
    "build_event",
]
