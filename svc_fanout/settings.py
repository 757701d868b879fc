"""Settings of svc_fanout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from mesh.settings import ServiceSettings


class FanoutSettings(ServiceSettings):
    """What svc_fanout can be told."""

    service: ClassVar[str] = "fanout"

    lanes_url: str = Field(
        "sqlite:///lanes",
        description="where the event lanes are: sqlite:///folder, relative to data_dir, or "
        "kafka://HOST:PORT,HOST:PORT/PREFIX?partitions=4&replicas=3 with ca=, cert=, key=, credentials=FILE, sasl=",
    )
    positions_url: str = Field(
        "sqlite:///positions.db",
        description="where embedded lanes keep positions and parked records: sqlite:///path, relative to data_dir",
    )
    lost_positions: Literal["stop", "restart"] = Field(
        "stop",
        description="what becomes of a lane whose next record is gone, or that was made anew: stop ends the process; "
        "restart goes on with the first record that is left, which loses what is gone",
    )
    categories_file: Path = Field(
        Path("deploy/categories.toml"), description="TOML file with the registry of categories"
    )
    read_limit: Annotated[int, Field(ge=1, le=5_000)] = Field(500, description="events read at once, 1 to 5,000")
    batches_in_flight: Annotated[int, Field(ge=1, le=64)] = Field(
        8, description="batches of one lane that may be unanswered, 1 to 64; delivery's window may allow fewer"
    )
    commit_interval: Annotated[float, Field(gt=0.0, le=60.0)] = Field(
        0.2, description="seconds between two commits of a position, above 0 to 60"
    )
    large_audience: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        10_000, description="recipients above which an event is planned into slices, 1 to 1,000,000"
    )
    slice_size: Annotated[int, Field(ge=1, le=2_000)] = Field(
        2_000, description="recipients of a slice and subscribers read at once, 1 to 2,000"
    )
    slices_in_flight: Annotated[int, Field(ge=1, le=64)] = Field(
        2, description="slices of one priority that may be unanswered, 1 to 64: the rest of the window is for events"
    )
    held_limit: Annotated[int, Field(ge=1, le=100_000)] = Field(
        2_000,
        description="events of one lane that wait for prefs while others go on, 1 to 100,000; then the lane waits",
    )
    remembered_recipients: Annotated[int, Field(ge=1, le=10_000_000)] = Field(
        200_000, description="recipients whose decisions are remembered, 1 to 10,000,000; about 0.4 KB each"
    )
    poll_interval: Annotated[float, Field(gt=0.0, le=30.0)] = Field(
        1.0, description="seconds between two looks at whose wishes changed, above 0 to 30: so late an opt-out counts"
    )
