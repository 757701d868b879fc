"""Free ports for servers of a test's own."""

from __future__ import annotations

import contextlib
import os
import random
import socket

# Below those that the system gives to outgoing connections.
_PORTS = (10_000, 32_000)
# Of whole clusters and meshes, which need all offsets of their topology.
_FIRST_BASE, _LAST_BASE, _PORTS_A_BASE = 20_000, 31_000, 500
# With each listener's port, those of its metrics.
_PROBED = tuple(offset + more for offset in (0, 11, 12, 13, 14, 15, 20, 21, 40, 41) for more in (0, 200, 300))


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


def free_base_port() -> int:
    """Returns the first of a range of ports that nobody uses now; test runs side by side begin at different places.

    Raises:
        AssertionError: every range is in use.
    """
    count = (_LAST_BASE - _FIRST_BASE) // _PORTS_A_BASE
    for step in range(count):
        base = _FIRST_BASE + (os.getpid() + step) % count * _PORTS_A_BASE
        if all(_is_free(base + offset) for offset in _PROBED):
            return base
    raise AssertionError("no range of free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
