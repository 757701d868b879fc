"""Settings of svc_delivery."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from mesh.settings import ServiceSettings
from svc_delivery.core import RETRY_DELAYS


class DeliverySettings(ServiceSettings):
    """What svc_delivery can be told."""

    service: ClassVar[str] = "delivery"

    store_url: str = Field(
        "sqlite:///inbox.db",
        description="where inboxes, decisions and dead letters are kept: sqlite:///path, relative to data_dir, or "
        "cassandra://host:port,host:port/KEYSPACE?replicas=3&datacenter=NAME&credentials=FILE&ca=FILE",
    )
    follow_ups_url: str = Field(
        "",
        description="lanes on which follow-ups wait: kafka://host:port,host:port/PREFIX?partitions=4&replicas=3, or "
        "sqlite:///folder, relative to data_dir; empty: in the file of the inboxes",
    )
    dispatch_window: Annotated[int, Field(ge=1, le=64)] = Field(
        8, description="unanswered batches a Dispatch stream may have, 1 to 64"
    )
    node_poll: Annotated[float, Field(gt=0.0, le=60.0)] = Field(
        1.0, description="seconds between two looks at the list of gateway nodes, above 0 to 60"
    )
    link_queue: Annotated[int, Field(ge=100, le=1_000_000)] = Field(
        50_000, description="recipients that may wait for one gateway node, 100 to 1,000,000; more are not offered"
    )
    retry_delays: Annotated[tuple[float, ...], Field(min_length=1, max_length=10)] = Field(
        RETRY_DELAYS,
        description="seconds until a row that the store refuses is tried again, time after time; then it is given up",
    )
    write_limit: Annotated[float, Field(gt=0.0, le=60.0)] = Field(
        5.0, description="W: seconds within which the store must answer a write, above 0 to 60; later does not count"
    )
    clock_allowance: Annotated[float, Field(ge=0.0, le=60.0)] = Field(
        1.0, description="S: largest difference between the clocks of two processes in seconds, 0 to 60"
    )
