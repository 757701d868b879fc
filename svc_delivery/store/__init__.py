"""Opens the store of inboxes that a URL names, with its follow-ups in it or on retry lanes of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from mesh.clock import Clock, SystemClock
from mesh.sqlite import file_of
from svc_delivery.ports import FollowUps
from svc_delivery.ports_dead_letters import Suspects
from svc_delivery.store.lane_store import LaneStore, RowStore
from svc_delivery.store.sqlite import Limits
from svc_delivery.store.sqlite_store import SqliteStore

__all__ = ["InboxStore", "Limits", "open_store"]


class InboxStore(RowStore, Protocol):
    """Everything that delivery keeps; `open` before use, `close` at the end."""

    @property
    def follow_ups(self) -> FollowUps:
        """What is to be looked at again."""
        ...

    @property
    def suspects(self) -> Suspects:
        """What was worked on when the process died."""
        ...


def open_store(
    url: str,
    data_dir: Path,
    *,
    follow_ups_url: str = "",
    run_dir: Path | None = None,
    clock: Clock | None = None,
    limits: Limits | None = None,
) -> InboxStore:
    """Returns the store for a URL, not yet open.

    Args:
        url: `sqlite:///inbox.db`, a path below `data_dir`.
        data_dir: folder of the process's data.
        follow_ups_url: lanes for the follow-ups, `sqlite:///lanes`; empty: in the store itself.
        run_dir: where doorbells of embedded lanes are; `data_dir` when left out.
        clock: for what waits in lanes; the system's when left out.
        limits: how much an inbox keeps; the defaults of `Limits` when left out.

    Raises:
        mesh.sqlite.StoreUrlError: a scheme is unknown; names the known ones.
    """
    rows = SqliteStore(file_of(url, data_dir), limits=limits or Limits())
    if not follow_ups_url:
        return rows
    return LaneStore(
        rows,
        follow_ups_url,
        data_dir=data_dir,
        run_dir=data_dir if run_dir is None else run_dir,
        clock=SystemClock() if clock is None else clock,
    )
