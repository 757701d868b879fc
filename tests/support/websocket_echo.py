"""A WebSocket echo server on the gateway's own connection class: `python -m tests.support.websocket_echo`.

It prints the port it listens on and serves until its input ends. Must not be used for anything but the protocol: no
subprotocol is asked for, and messages may be as large as the conformance cases send them.
"""

from __future__ import annotations

import asyncio
import sys

from mesh.clock import SystemClock
from svc_gateway import wire
from svc_gateway.host import ClientConnection
from svc_gateway.websocket import Listener, Options

# The largest message of the cases has 16 MiB, the most fragments 65,536.
OPTIONS = Options(any_subprotocol=True, max_message=32 << 20, max_fragments=1 << 17, path="/")
_SWEEP_S = 0.2


class Echo:
    """Sends every message back as it came."""

    def opened(self, connection: ClientConnection) -> None:
        """Nothing to say."""

    def received(self, connection: ClientConnection, payload: bytes | bytearray, text: bool) -> None:
        """Sends it back."""
        connection.write(wire.frame(wire.TEXT if text else wire.BINARY, bytes(payload)))

    def behind(self, connection: ClientConnection) -> None:
        """The cases read all they asked for."""

    def writable(self, connection: ClientConnection) -> None:
        """The cases read all they asked for."""

    def closed(self, connection: ClientConnection, code: int) -> None:
        """Nothing is kept."""


async def serve() -> None:
    """Runs until standard input ends."""
    clock = SystemClock()
    listener = Listener(host=Echo(), options=OPTIONS, clock=clock)
    await listener.open("127.0.0.1:0")
    print(listener.address.rpartition(":")[2], flush=True)
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    while not ended.done():
        listener.sweep(clock.monotonic())
        await asyncio.wait([ended], timeout=_SWEEP_S)
    await listener.close()


def main() -> None:
    """Serves on uvloop where it is installed, as the gateway does."""
    try:
        from uvloop import run
    except ImportError:
        asyncio.run(serve())
    else:
        run(serve())


if __name__ == "__main__":
    main()
