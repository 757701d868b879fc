"""A process full of listening sessions, as seen by the benchmark that starts it and tells it what to do."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import msgspec

from bench import listeners
from bench.installation import Installation
from mesh.tokens import TokenSigner

_RESULTS_LIMIT = 120.0
_TOKEN_LIFE = 7_200.0
# New sessions a second of all processes; the edge makes a TLS handshake of each, on one core.
PACE, _PACE_AT_EDGE = 1_500.0, 500.0
# Of those who come through the edge.
_ADDRESSES = 50
_READY = b'"ready"'


class Crowd:
    """Runs while the context is open."""

    def __init__(self, order: listeners.Order) -> None:
        self._order = order
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "bench.listeners"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._write(self._order)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process is not None
        return self._process.pid

    def wait(self) -> None:
        """Returns when what was ordered, or begun, is done.

        Raises:
            RuntimeError: the process has ended, or says something else.
        """
        answer = self._read()
        if answer.strip() != _READY:
            raise RuntimeError(f"sessions did not connect: {answer[:500]!r}")

    def begin(self, command: listeners.Command) -> None:
        """Sends a command; `wait` returns when it is carried out. Several processes work at the same time so."""
        self._write(command)

    def report(self) -> listeners.Report:
        """Returns what is seen now."""
        self._write(listeners.Command(report=True))
        return msgspec.json.decode(self._read(), type=listeners.Report)

    def end(self) -> listeners.Result:
        """Ends the process and returns what was seen."""
        assert self._process is not None
        output, _ = self._process.communicate(timeout=_RESULTS_LIMIT)
        return msgspec.json.decode(output.splitlines()[-1], type=listeners.Result)

    def _write(self, message: msgspec.Struct) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(message) + b"\n")
        self._process.stdin.flush()

    def _read(self) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def sessions_of(installation: Installation, recipients: Sequence[str]) -> list[tuple[str, str]]:
    """Returns a device and a token for each recipient."""
    signer = TokenSigner(installation.folder / "certs" / "tokens" / "signing.pem")
    now = time.time()
    return [("bench", signer.sign(name, "acme", "recipient", _TOKEN_LIFE, now)) for name in recipients]


def live_order(
    installation: Installation, recipients: Sequence[str], *, node: int | None = None, processes: int = 1
) -> listeners.Order:
    """Returns the order for a session of each recipient.

    Args:
        installation: it serves.
        recipients: who listens.
        node: number of the gateway node that they connect to; in turn when left out. The edge chooses by itself.
        processes: of sessions, which connect at the same time and share the pace.
    """
    targets = installation.live_targets()
    return listeners.Order(
        targets=targets if node is None or not installation.direct else targets[node : node + 1],
        server_name=installation.live_name,
        ca_file=installation.ca_file,
        sessions=sessions_of(installation, recipients),
        pace=(PACE if installation.direct else _PACE_AT_EDGE) / processes,
        # The edge takes so many handshakes a second from one address.
        addresses=0 if installation.direct else _ADDRESSES,
    )
