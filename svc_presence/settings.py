"""Settings of svc_presence."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from mesh.settings import ServiceSettings


class PresenceSettings(ServiceSettings):
    """What svc_presence can be told."""

    service: ClassVar[str] = "presence"

    store_url: str = Field(
        "memory://",
        description="where leases and session entries are kept: memory://, or Redis: "
        "redis://HOST:PORT/DATABASE?prefix=NAME, redis+cluster://HOST:PORT,HOST:PORT/, "
        "redis+sentinel://HOST:PORT,HOST:PORT/SERVICE",
    )
    lease: Annotated[float, Field(ge=1.0, le=300.0)] = Field(
        15.0, description="seconds a node's lease lasts without renewal, 1 to 300"
    )
