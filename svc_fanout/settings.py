"""Settings of svc_fanout."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from mesh.settings import ServiceSettings


class FanoutSettings(ServiceSettings):
    """What svc_fanout can be told."""

    service: ClassVar[str] = "fanout"

    lanes_url: str = Field(
        "sqlite:///lanes", description="where the event lanes are: sqlite:///folder, relative to data_dir"
    )
    positions_url: str = Field(
        "sqlite:///positions.db",
        description="where positions and parked records are kept: sqlite:///path, relative to data_dir",
    )
    read_limit: Annotated[int, Field(ge=1, le=5_000)] = Field(500, description="events read at once, 1 to 5,000")
    batches_in_flight: Annotated[int, Field(ge=1, le=64)] = Field(
        8, description="batches of one lane that may be unanswered, 1 to 64; delivery's window may allow fewer"
    )
    commit_interval: Annotated[float, Field(gt=0.0, le=60.0)] = Field(
        0.2, description="seconds between two commits of a position, above 0 to 60"
    )
