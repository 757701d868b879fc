"""`heliograph up` with one more channel behind live, whose sender writes into a folder whom it was to reach.

Run as a program: `python -m tests.support.channelled up ...` is the command itself; with `prefs` and `delivery` it is
the two services that know the channel: prefs puts it at the end of every decision that has channels, delivery has its
sender. Must not assert anything.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from unittest import mock

import msgspec

from heliograph.type.v1 import envelope_pb2
from heliograph_cli import main as command
from heliograph_cli.plan import Plan, Process, plan_direct, plan_mesh
from mesh.app import run
from svc_delivery import main as delivery
from svc_delivery.ports_channels import Attempt, Outcome, Refused, Sent
from svc_delivery.settings import DeliverySettings
from svc_prefs import main as prefs
from svc_prefs.settings import PrefsSettings
from tests.support.next_channel import CHANNEL, ChannelledPrefs

# Names the folder.
VARIABLE: Final = "HELIOGRAPH_TEST_CHANNEL"
# While the folder has no file of this name, recipients of this name have no address.
ADDRESSES: Final = "addresses"
WITHOUT_ADDRESS: Final = "unknown"
# While the folder has a file of this name, no call is answered.
SILENT: Final = "silent"
MODULE: Final = "tests.support.channelled"
_CALLS: Final = "calls.jsonl"


class Call(msgspec.Struct, frozen=True):
    """One call of the sender.

    Attributes:
        recipient_key: whom it was to reach.
        notification_id: with what.
        attempt_id: the attempt's name.
        time: Unix seconds.
    """

    recipient_key: str
    notification_id: str
    attempt_id: str
    time: float


def calls(folder: Path) -> Sequence[Call]:
    """Returns the calls so far, in their order."""
    path = folder / _CALLS
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [msgspec.json.decode(line, type=Call) for line in lines if line.endswith(b"\n")]


class FolderSender:
    """The way out over the channel: a line in a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def send(self, envelope: envelope_pb2.Envelope, recipient_key: str, attempt: Attempt) -> Outcome:
        """See `svc_delivery.ports_channels.ChannelSender`."""
        call = Call(recipient_key, envelope.event_id, attempt.attempt_id, time.time())
        with (self._folder / _CALLS).open("ab") as file:
            file.write(msgspec.json.encode(call) + b"\n")
        if (self._folder / SILENT).exists():
            await asyncio.Event().wait()
        if recipient_key.endswith(f"/{WITHOUT_ADDRESS}") and not (self._folder / ADDRESSES).exists():
            return Refused("no address")
        return Sent()


def _with_channel(make: Callable[..., Plan]) -> Callable[..., Plan]:
    @functools.wraps(make)
    def planned(*arguments: object, **named: object) -> Plan:
        plan = make(*arguments, **named)
        return msgspec.structs.replace(plan, processes=tuple(map(_swapped, plan.processes)))

    return planned


def _swapped(process: Process) -> Process:
    """Has a service that knows the channel run in the place of one that does not."""
    argv = list(process.argv)
    if process.kind == "service" and process.service in ("prefs", "delivery"):
        at = argv.index(f"svc_{process.service}")
        argv[at : at + 1] = [MODULE, process.service]
    return msgspec.structs.replace(process, argv=tuple(argv))


def main() -> None:
    """Runs what the first word names."""
    role = sys.argv[1]
    if role == "prefs":
        with mock.patch("svc_prefs.main.PrefsService", ChannelledPrefs):
            run(PrefsSettings.service, PrefsSettings, prefs.wire, sys.argv[2:])
    elif role == "delivery":
        senders = {CHANNEL: FolderSender(Path(os.environ[VARIABLE]))}
        wire = functools.partial(delivery.wire, senders=senders)
        run(DeliverySettings.service, DeliverySettings, wire, sys.argv[2:])
    else:
        with (
            mock.patch("heliograph_cli.up.plan_direct", _with_channel(plan_direct)),
            mock.patch("heliograph_cli.envoys.plan_mesh", _with_channel(plan_mesh)),
        ):
            command.main()


if __name__ == "__main__":
    main()
