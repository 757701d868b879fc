"""Settings of svc_gateway."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from mesh.settings import Seconds, ServiceSettings

_LISTEN = re.compile(r"unix:/?[^\x00]+|(?:127\.0\.0\.1|\[::1\]):[0-9]{1,5}")
# As browsers write it: no path, no default port, nothing in capitals; whatever differs would never be equal.
_ORIGIN = re.compile(r"https?://(?:[a-z0-9.-]+|\[[0-9a-f:]+\])(?::[0-9]{1,5})?")
_NODE = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


class GatewaySettings(ServiceSettings):
    """What svc_gateway can be told."""

    service: ClassVar[str] = "gateway"

    node_id: str = Field("", description="id of this gateway node, also the name of the process: gw-<host>-<index>")
    address: str = Field("", description="ip:port where this node's sidecar takes links; empty without sidecars")
    websocket_listen: str = Field(
        "", description="where WebSockets are taken: unix:<path> or 127.0.0.1:<port>; default: <run_dir>/<node_id>.ws"
    )
    allowed_origins: tuple[str, ...] = Field(
        (), description="origins whose pages may connect, like https://app.example; others are refused"
    )
    session_limit: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        18_000, description="sessions on this node; cut down to what the limit of open files allows"
    )
    open_rate: Annotated[float, Field(ge=1.0)] = Field(
        1_000.0, description="new sessions a second that this node takes, from 1; others are told when to come back"
    )
    open_burst: Annotated[int, Field(ge=1)] = Field(
        1_000, description="new sessions that this node takes at once after a calm time, from 1"
    )
    open_delay_limit: Seconds = Field(
        60.0, description="seconds after which a client is told to come back at most, 0 to 3600"
    )
    heartbeat_interval: Annotated[float, Field(ge=0.5, le=3600.0)] = Field(
        120.0, description="seconds between two pings of a session, 0.5 to 3600; silence for two ends it"
    )
    session_age: Annotated[float, Field(ge=1.0)] = Field(
        6 * 3600.0, description="seconds after which a session is recycled, from 1; dithered by 20 %"
    )
    round_interval: Annotated[float, Field(ge=1.0)] = Field(
        600.0, description="seconds between two slow rounds of a session, from 1; dithered by 20 %, the first by 50 %"
    )
    behind_limit: Annotated[float, Field(gt=0.0)] = Field(
        30.0, description="seconds a session may be behind before it is closed, above 0"
    )
    backlog_bytes: Annotated[int, Field(ge=65_536)] = Field(
        256 * 1024 * 1024,
        description="bytes that may wait in all sessions' sockets, from 65536; beyond them the fattest are closed",
    )
    replay_limit: Annotated[int, Field(ge=1, le=400)] = Field(
        128, description="replays that are read at once, 1 to 400; more wait"
    )
    mark_limit: Annotated[int, Field(ge=1)] = Field(
        100_000, description="marks that may wait to be stored, from 1; more are refused"
    )
    topic_limit: Annotated[int, Field(ge=1, le=1_000)] = Field(
        16, description="changes of topics that are stored at once, 1 to 1000; more wait"
    )
    topic_queue_limit: Annotated[int, Field(ge=1)] = Field(
        10_000, description="changes of topics that may wait, from 1; more are refused"
    )
    link_window_count: Annotated[int, Field(ge=1, le=64)] = Field(
        4, description="batches a link may have unanswered, 1 to 64"
    )
    link_window_bytes: Annotated[int, Field(ge=65_536)] = Field(
        1024 * 1024, description="bytes a link may have unanswered, from 65536"
    )
    lease: Annotated[float, Field(ge=1.0, le=300.0)] = Field(
        15.0, description="seconds a lease lasts at presence, 1 to 300: the same as presence's setting"
    )
    lease_renewal: Annotated[float, Field(gt=0.0)] = Field(
        5.0, description="seconds between two renewals of the lease, above 0; dithered by 20 %"
    )
    peer_timeout: Seconds = Field(5.0, description="seconds a call to presence, delivery or prefs may take")
    drain_grace: Seconds = Field(
        5.0, description="seconds sessions are given to leave when the node drains; they spread their return over it"
    )

    @property
    def listen(self) -> str:
        """Where WebSockets are taken."""
        return self.websocket_listen or f"unix:{self.run_dir / self.node_id}.ws"

    @model_validator(mode="before")
    @classmethod
    def _name_node(cls, values: dict[str, Any]) -> dict[str, Any]:
        host = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().lower()).strip("-")[:40] or "local"
        node_id = values.get("node_id") or values.get("process") or f"gw-{host}-0"
        return {**values, "node_id": node_id, "process": values.get("process") or node_id}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not _NODE.fullmatch(self.node_id):
            raise ValueError("node_id: must be 1 to 63 of a-z, 0-9 and -")
        if self.process != self.node_id:
            raise ValueError(f"process: must be the node id, {self.node_id}; leave it out")
        if self.websocket_listen and not _LISTEN.fullmatch(self.websocket_listen):
            raise ValueError("websocket_listen: must be unix:<path> or a loopback address with a port")
        for origin in self.allowed_origins:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(f"allowed_origins: {origin!r} is no origin; write it like https://app.example")
        if self.tokens_file is None:
            raise ValueError("tokens_file: is needed; name the JWKS file that clients' tokens are checked by")
        if self.lease_renewal >= self.lease:
            raise ValueError("lease_renewal: must be shorter than the lease")
        return self

    @property
    def tokens(self) -> Path:
        """The file with the public keys."""
        assert self.tokens_file is not None
        return self.tokens_file
