"""Unix sockets that only their owner may use.

A socket in the run folder is how a sidecar speaks to its service, and whoever may connect is trusted as that sidecar:
hence mode 0600, and no moment with a wider one. Must not remove a socket that somebody still serves.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mesh.errors import StartError

# The kernel's sun_path has 108 bytes, the last one a zero.
_LONGEST_PATH_BYTES = 107
_PROBE_LIMIT_S = 1.0


def claim(path: Path) -> None:
    """Makes a path free for binding: removes the file of a process that is gone.

    Raises:
        StartError: the path is too long, no socket, in a missing folder, or served by a living process.
    """
    if len(os.fsencode(path)) > _LONGEST_PATH_BYTES:
        raise StartError(f"{path}: longer than {_LONGEST_PATH_BYTES} bytes; choose a shorter run folder")
    if not path.parent.is_dir():
        raise StartError(f"{path.parent}: no such folder; create it or set another run folder")
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise StartError(f"{path}: exists and is not a socket; remove it or set another run folder")
    if _served(path):
        raise StartError(f"{path}: another process serves this socket; stop it or set another run folder")
    path.unlink(missing_ok=True)


@contextmanager
def owner_only() -> Iterator[None]:
    """Files and sockets made inside get mode 0600 from their first moment. The block must not await."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


def _served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_LIMIT_S)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            # A full backlog or a foreign owner: somebody is there.
            return True
        return True
