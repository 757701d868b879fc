"""What a WebSocket connection tells the gateway: the port between transport and sessions.

Must not hold code: it says who calls whom and when. Steps 7 and 10 of one notification (`architecture.md` §3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from svc_gateway.connection import Connection


class Host(Protocol):
    """Who lives behind the connections. Calls come from the event loop and must not wait."""

    def opened(self, connection: Connection) -> None:
        """The opening handshake is done; frames may be written."""
        ...

    def received(self, connection: Connection, payload: bytes | bytearray, text: bool) -> None:
        """One whole message came; text is valid UTF-8. Not called after `close`."""
        ...

    def behind(self, connection: Connection) -> None:
        """The transport holds more than the high-water mark; what is written now only makes it grow."""
        ...

    def writable(self, connection: Connection) -> None:
        """The transport has drained."""
        ...

    def closed(self, connection: Connection, code: int) -> None:
        """The end, exactly once for every opened connection, never from inside `close`.

        Args:
            connection: it takes nothing any more.
            code: what this side closed with, else what the client closed with; 1005 for a closing frame without a code,
                1006 for a connection that broke.
        """
        ...
