"""The adapters of each storage port, as named factories: contract suites run once for each of them.

A new adapter is one line here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from svc_presence.ports import PresenceStore


def presence_backends() -> list[Any]:
    """Factories of empty presence stores."""
    return [pytest.param(_memory_presence, id="memory")]


@asynccontextmanager
async def _memory_presence() -> AsyncIterator[PresenceStore]:
    from svc_presence.store import open_store

    yield open_store("memory://", lease=15.0)
