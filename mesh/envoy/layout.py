"""Where an Envoy finds sockets, certificates and files. Must not create any of them."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from mesh.errors import StartError

# The kernel's sun_path has 108 bytes, the last one a zero.
_LONGEST_SOCKET_PATH = 107


class Layout(msgspec.Struct, frozen=True):
    """The folders of one mesh, absolute.

    `run_dir` holds sockets, `certs_dir` one folder per identity, `mesh_dir` the rendered files, `log_dir` access logs.
    """

    run_dir: Path
    certs_dir: Path
    mesh_dir: Path
    log_dir: Path

    def socket(self, process: str) -> str:
        """Returns the socket where a process serves gRPC."""
        return self._short(f"{process}.sock")

    def outbound(self, process: str) -> str:
        """Returns the socket where a process's sidecar takes its calls to others."""
        return self._short(f"{process}.out")

    def admin(self, process: str) -> str:
        """Returns the admin socket of an Envoy."""
        return self._short(f"{process}.admin")

    def websocket(self, process: str) -> str:
        """Returns the socket where a gateway node takes WebSocket connections."""
        return self._short(f"{process}.ws")

    def access_log(self, process: str) -> str:
        """Returns the access log of an Envoy."""
        return str(self.log_dir / f"{process}.access.log")

    def config(self, process: str) -> Path:
        """Returns the rendered file of an Envoy."""
        return self.mesh_dir / f"{process}.json"

    @property
    def descriptors(self) -> Path:
        """The descriptor set that the edge transcodes by."""
        return self.mesh_dir / "descriptors.binpb"

    def _short(self, name: str) -> str:
        path = str(self.run_dir / name)
        if len(os.fsencode(path)) > _LONGEST_SOCKET_PATH:
            raise StartError(
                f"run folder {self.run_dir}: socket paths exceed {_LONGEST_SOCKET_PATH} bytes; use a shorter one"
            )
        return path
