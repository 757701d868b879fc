"""What ingest can be told. Each description is the documentation of its setting."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from mesh.settings import ServiceSettings


class IngestSettings(ServiceSettings):
    """Settings of ingest: where its stores are, and who may publish what."""

    service: ClassVar[str] = "ingest"

    lanes_url: str = Field(
        "sqlite:///lanes",
        description="event lanes: sqlite:///FOLDER, below data_dir unless absolute, or "
        "kafka://HOST:PORT,HOST:PORT/PREFIX?partitions=4&replicas=3 with ca=, cert=, key=, credentials=FILE, sasl=",
    )
    request_log_url: str = Field(
        "sqlite:///requests.db",
        description="request log: sqlite:///FILE, below data_dir unless absolute, or Redis: "
        "redis://HOST:PORT/DATABASE?prefix=NAME, redis+cluster://HOST:PORT,HOST:PORT/, "
        "redis+sentinel://HOST:PORT,HOST:PORT/SERVICE",
    )
    categories_file: Path = Field(
        Path("deploy/categories.toml"), description="TOML file with the registry of categories"
    )
    producers_file: Path = Field(
        Path("deploy/producers.example.toml"), description="TOML file with the producers and what each may publish"
    )
    positions_url: str = Field(
        "sqlite:///positions.db",
        description="where fanout keeps how far it has read, to know what waits: sqlite:///FILE, below data_dir unless "
        "absolute; only read, and only for embedded lanes",
    )
    wait_limit: Annotated[float, Field(gt=0.0, le=3600.0)] = Field(
        5.0,
        description="overload: seconds that events may wait in the normal lane before normal ones are refused; bulk is "
        "from 0.4 of it, high from 2 times it in the high lane; above 0 to 3600",
    )
    backlog_limit: Annotated[int, Field(ge=1)] = Field(
        1_000_000,
        description="overload: events that a lane may hold unfinished, while fanout is away as well; at least 1",
    )
    append_limit: Annotated[float, Field(gt=0.0, le=60.0)] = Field(
        0.2,
        description="overload: seconds that an append may take, in the median, before normal events are refused; bulk "
        "from 0.5 of it, high from 4 times it; above 0 to 60",
    )
    loop_lag_limit: Annotated[float, Field(gt=0.0, le=60.0)] = Field(
        0.1,
        description="overload: seconds that the event loop may be late, at its best in half a second, before normal "
        "events are refused; bulk from 0.5 of it, high from 5 times it; above 0 to 60",
    )
    call_limit: Annotated[float, Field(gt=0.0, le=60.0)] = Field(
        0.5,
        description="overload: seconds from the arrival of a call to its answer, while calls queue up, before normal "
        "events are refused; bulk from 0.5 of it, high from 4 times it; above 0 to 60",
    )
    in_flight_limit: Annotated[int, Field(ge=1)] = Field(
        4_000,
        description="overload: events being worked on at once in this process; bulk is refused from 0.5 of it, normal "
        "from 0.8; at least 1",
    )
