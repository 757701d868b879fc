"""The adapters of follow-ups and suspects, as named factories: contract suites run once for each of them.

Must not assert anything.
"""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mesh.clock import ManualClock
from svc_delivery.store import InboxStore, open_store, store_admins
from tests.support.backends import Opener
from tests.support.engines import urls
from tests.support.inbox import NOW_US

EMBEDDED = "sqlite:///lanes"


def follow_up_backends() -> list[Any]:
    """Stores with follow-ups: data_dir → an opener; their clock stands at `NOW_US`."""
    return [
        pytest.param(in_the_inbox, id="sqlite"),
        pytest.param(on_embedded_lanes, id="lanes"),
        pytest.param(on_kafka, id="kafka", marks=pytest.mark.engines),
    ]


def in_the_inbox(data_dir: Path) -> Opener[InboxStore]:
    """Rows and follow-ups in one file."""
    return _opener(data_dir, "")


def on_embedded_lanes(data_dir: Path) -> Opener[InboxStore]:
    """Rows in a file, follow-ups on lanes in files."""
    return _opener(data_dir, EMBEDDED)


def on_kafka(data_dir: Path) -> Opener[InboxStore]:
    """Rows in a file, follow-ups on lanes in the Kafka of this run that nobody has used."""
    return _opener(data_dir, fresh_kafka())


def fresh_kafka() -> str:
    """Lanes in the Kafka of this run that nobody has used, and that are not made yet."""
    return f"{urls()['kafka'].rstrip('/')}/test-{secrets.token_hex(6)}?partitions=2&replicas=1"


async def make(follow_ups_url: str) -> None:
    """Makes lanes that are in an engine."""
    for admin in store_admins("sqlite:///inbox.db", follow_ups_url):
        await admin.create(dry_run=False)


def _opener(data_dir: Path, follow_ups_url: str) -> Opener[InboxStore]:
    clock = ManualClock(wall=NOW_US / 1e6)

    @contextlib.asynccontextmanager
    async def opener() -> AsyncIterator[InboxStore]:
        with tempfile.TemporaryDirectory(prefix="hg-") as run_dir:
            store = open_store(
                "sqlite:///inbox.db", data_dir, follow_ups_url=follow_ups_url, run_dir=Path(run_dir), clock=clock
            )
            await make(follow_ups_url)
            await store.open()
            try:
                yield store
            finally:
                await store.close()

    return opener
