"""What a subscriber needs of a connection, whatever carries it: frames out, frames in, the end.

Must not hold code beside the port and its values.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

import msgspec

from heliograph.gateway.v1.client_frames_pb2 import ConnectRequest, ConnectResponse
from mesh.errors import Failure

Transport: TypeAlias = Literal["websocket", "grpc"]

BROKEN = 1006


class WireClosed(Exception):
    """The connection is over; `Wire.end` says how."""


class NotOpened(msgspec.Struct, frozen=True):
    """No connection came about; final: trying again does not help."""

    failure: Failure
    final: bool


class Wire(Protocol):
    """An open connection. One reader and one writer at a time."""

    async def send(self, frame: ConnectRequest) -> None:
        """Sends a frame; raises WireClosed when the connection is over."""
        ...

    async def receive(self) -> ConnectResponse:
        """Waits for a frame; may be cancelled.

        Raises:
            WireClosed: none follows.
            DataLoss: what came is no frame.
        """
        ...

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Leaves in order, within two seconds; repeating it is harmless."""
        ...

    def abort(self) -> None:
        """Breaks off: a peer that is silent answers no goodbye either."""
        ...

    async def dispose(self) -> None:
        """Gives back what the connection holds; it is over or breaks off."""
        ...

    def end(self) -> tuple[int, str]:
        """Returns the close code, or what says the same (1006: it broke), and the peer's words."""
        ...
