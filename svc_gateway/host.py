"""The port between transports and sessions: what a connection tells the gateway, and what the gateway needs of it.

Must not hold code: it says who calls whom and when. Steps 7 and 10 of one notification (`architecture.md` §3).
"""

from __future__ import annotations

import enum
from typing import Protocol


class Form(enum.Enum):
    """How a connection carries the server's frames."""

    TEXT = "WebSocket text frames with proto3 JSON"
    BINARY = "WebSocket binary frames with the serialised message"
    MESSAGE = "the serialised message; gRPC frames it"


class ClientConnection(Protocol):
    """One client's connection, whatever carries it.

    Attributes:
        session: whatever the host keeps with it.
        form: in which form frames are written.
    """

    session: object | None
    form: Form

    def write(self, frame: bytes) -> None:
        """Sends a frame in this connection's form; nothing happens once the connection is closing."""
        ...

    def close(self, code: int, reason: str, delay: float = 0.0) -> None:
        """Ends the connection behind what was written; repeating it changes nothing. `Host.closed` follows later.

        Args:
            code: a `CloseCode`.
            reason: name of an ErrorReason.
            delay: seconds that the client was told to wait, for transports that say so at the end as well.
        """
        ...

    @property
    def peer(self) -> str:
        """The client's address, for logs."""
        ...

    @property
    def recipient_key(self) -> str:
        """Whom the transport knows to be there already; empty: hello tells."""
        ...

    @property
    def buffered(self) -> int:
        """Bytes that wait to be sent."""
        ...


class Host(Protocol):
    """Who lives behind the connections. Calls come from the event loop and must not wait."""

    def opened(self, connection: ClientConnection) -> None:
        """The opening is done; frames may be written."""
        ...

    def received(self, connection: ClientConnection, payload: bytes | bytearray, text: bool) -> None:
        """One whole message came; text is valid UTF-8. Not called after `close`."""
        ...

    def behind(self, connection: ClientConnection) -> None:
        """The transport holds more than the high-water mark; what is written now only makes it grow."""
        ...

    def writable(self, connection: ClientConnection) -> None:
        """The transport has drained."""
        ...

    def closed(self, connection: ClientConnection, code: int) -> None:
        """The end, exactly once for every opened connection, never from inside `close`.

        Args:
            connection: it takes nothing any more.
            code: what this side closed with, else what the client closed with; 1005 for a closing frame without a code,
                1006 for a connection that broke.
        """
        ...
