"""A fan-out that dies at a record: its prefs ends the process when it is asked about one recipient.

Run as a program: works a lane until nothing is left, or until it dies; prints what it dispatched. Must not assert
anything.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from heliograph.delivery.v1 import delivery_service_pb2
from heliograph.prefs.v1 import prefs_service_pb2
from tests.support.dispatching import InProcessPrefs
from tests.support.fanning import fanning

POISON = "poison"
DIED = 9
# Begins a line that names a dispatched event: logs are printed too.
SENT = "sent "


class DeadlyPrefs(InProcessPrefs):
    """Ends the process, without any order, when it is asked about the poisonous recipient."""

    async def resolve(self, request: prefs_service_pb2.BatchResolveRequest) -> prefs_service_pb2.BatchResolveResponse:
        """See the port."""
        if any(POISON in item.recipient_ids for item in request.items):
            os._exit(DIED)
        return await super().resolve(request)


def _print(batch: delivery_service_pb2.DispatchBatch) -> Sequence[delivery_service_pb2.DispatchRefusal]:
    for dispatch in batch.dispatches:
        print(SENT + dispatch.envelope.event_id, flush=True)
    return ()


async def work(folder: Path, run_dir: Path) -> None:
    """Works the lane in a folder."""
    async with fanning(folder, run_dir) as fanout:
        fanout.ask = DeadlyPrefs()
        await fanout.start_anew()
        fanout.delivery.reply = _print
        working = asyncio.create_task(fanout.run())
        await fanout.committed(0)
        await fanout.drain()
        await working


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1]), Path(sys.argv[2])))
