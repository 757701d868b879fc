"""The socket that takes WebSockets: it accepts connections and ends those whose handshakes take too long.

One sweep serves all of them, so that no connection needs a timer. Must not look into frames. Step 10 of one
notification (`architecture.md` §3).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

from mesh import sockets
from mesh.clock import Clock
from svc_gateway import handshake
from svc_gateway.connection import Connection
from svc_gateway.handshake import JSON_SUBPROTOCOL, PROTO_SUBPROTOCOL, Options
from svc_gateway.host import Host

__all__ = ["JSON_SUBPROTOCOL", "PROTO_SUBPROTOCOL", "Connection", "Host", "Listener", "Options"]

_UNIX = "unix:"


class Listener:
    """The socket: accepts connections, and ends those whose handshakes take too long.

    Attributes:
        host: who lives behind the connections.
        options: what is accepted.
        clock: the clock of `sweep`.
        address: where it listens, with the port that the system chose; empty before `open`.
        accepted: connections so far.
        refused: requests that did not become WebSockets.
    """

    def __init__(self, *, host: Host, options: Options, clock: Clock, admit: Callable[[], float] | None = None) -> None:
        """Makes a listener that does not listen yet.

        Args:
            host: who lives behind the connections.
            options: what is accepted.
            clock: must be the one whose time `sweep` is called with.
            admit: asked for each request; returns 0, or in how many seconds it may come again: that is answered with
                503 at little cost.
        """
        self.host = host
        self.options = options
        self.clock = clock
        self.address = ""
        self.accepted = 0
        self.refused = 0
        self._admit = admit
        self._server: asyncio.Server | None = None
        # When each unfinished handshake must be over; equal limits keep both in order of time.
        self._opening: dict[Connection, float] = {}
        self._closing: dict[Connection, float] = {}

    async def open(self, address: str) -> None:
        """Starts to listen at "unix:<path>" or "<ip>:<port>"; port 0 lets the system choose.

        Raises:
            StartError: the Unix socket cannot be had; its text says why.
        """
        loop, backlog = asyncio.get_running_loop(), self.options.backlog
        if address.startswith(_UNIX):
            path = Path(address.removeprefix(_UNIX))
            sockets.claim(path)
            unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with sockets.owner_only():
                unix.bind(str(path))
            self._server = await loop.create_unix_server(lambda: Connection(self), sock=unix, backlog=backlog)
            self.address = address
            return
        ip, _, port = address.rpartition(":")
        self._server = await loop.create_server(lambda: Connection(self), ip.strip("[]"), int(port), backlog=backlog)
        self.address = f"{ip}:{self._server.sockets[0].getsockname()[1]}"

    def sweep(self, now: float) -> None:
        """Breaks off what should be over by now; call it about once a second."""
        for waiting in (self._opening, self._closing):
            late: list[Connection] = []
            for connection, deadline in waiting.items():
                if deadline > now:
                    break
                late.append(connection)
            for connection in late:
                del waiting[connection]
                connection.abort()

    async def close(self) -> None:
        """Stops to listen and drops unfinished openings; open connections stay, they are the host's."""
        if self._server is not None:
            self._remove_socket()
            # Not wait_closed(): it waits for every connection.
            self._server.close()
            self._server = None
        for connection in list(self._opening):
            connection.abort()
        await asyncio.sleep(0)

    def _remove_socket(self) -> None:
        if self.address.startswith(_UNIX):
            Path(self.address.removeprefix(_UNIX)).unlink(missing_ok=True)

    # ------------------------------------------------------------ what connections call

    def answer(self, head: bytes) -> handshake.Answer:
        """Returns the answer to a request."""
        delay = 0.0 if self._admit is None else self._admit()
        if delay:
            return handshake.not_now(delay)
        return handshake.answer(head, self.options)

    def peer(self, transport: asyncio.Transport, forwarded: str) -> str:
        """Returns the client's address, for logs."""
        if self.address.startswith(_UNIX):
            # The transport knows nothing, and only by asking would it make a socket object and keep it.
            return forwarded
        address = transport.get_extra_info("peername")
        # A connection that broke meanwhile has none.
        return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else ""

    def expect_head(self, connection: Connection) -> None:
        """A connection was accepted; its request must follow."""
        self.accepted += 1
        self._opening[connection] = self.clock.monotonic() + self.options.open_timeout

    def expect_end(self, connection: Connection) -> None:
        """A connection is closing; its transport must be gone in time."""
        self._closing.setdefault(connection, self.clock.monotonic() + self.options.close_timeout)

    def forget(self, connection: Connection) -> None:
        """Nothing is expected any more."""
        self._opening.pop(connection, None)
        self._closing.pop(connection, None)
