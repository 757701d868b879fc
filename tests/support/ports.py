"""Free ports for servers of a test's own."""

from __future__ import annotations

import contextlib
import random
import socket

# Below those that the system gives to outgoing connections.
_PORTS = (10_000, 32_000)


def free_port(*beside: int) -> int:
    """Returns a port that nobody listens at now, and that no outgoing connection will get.

    Args:
        beside: distances to further ports that must be free together with it.
    """
    while True:
        port = random.SystemRandom().randrange(*_PORTS)
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for distance in (0, *beside):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port + distance))
            return port
