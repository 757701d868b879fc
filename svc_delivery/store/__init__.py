"""Opens the store of inboxes that a URL names, with its follow-ups in it or on retry lanes of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from mesh.clock import Clock, SystemClock
from mesh.errors import StartError
from mesh.lanes import KNOWN as KNOWN_LANES
from mesh.lanes import lane_stores
from mesh.sqlite import StoreUrlError, file_of
from mesh.stores import StoreAdmin
from svc_delivery.ports import FollowUps
from svc_delivery.ports_dead_letters import Suspects
from svc_delivery.retry_lanes import LANES
from svc_delivery.store.lane_store import LaneStore, Part, RowStore
from svc_delivery.store.sqlite import Limits
from svc_delivery.store.sqlite_store import SqliteStore

__all__ = ["InboxStore", "Limits", "open_store", "store_admins"]

_KNOWN = (
    "sqlite:///path, cassandra://host:9042,host:9042/KEYSPACE?replicas=3&datacenter=NAME, "
    "cassandra+acsylla:// the same through another client"
)
_CASSANDRA = ("cassandra", "cassandra+acsylla")


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

    @property
    def parts(self) -> Sequence[Part]:
        """What it is made of, each with the setting that chose it."""
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
        url: `sqlite:///inbox.db`, a path below `data_dir`, or `cassandra://host:port/KEYSPACE`.
        data_dir: folder of the process's data.
        follow_ups_url: lanes for the follow-ups, `kafka://host:port/PREFIX` or `sqlite:///lanes`; empty: in the file
            of the inboxes.
        run_dir: where doorbells of embedded lanes are; `data_dir` when left out.
        clock: for stamps, and for what waits in lanes; the system's when left out.
        limits: how much an inbox keeps; the defaults of `Limits` when left out.

    Raises:
        StoreUrlError: a scheme is unknown; names the known ones.
        StartError: a URL is wrong, or names no place for follow-ups.
    """
    clock = SystemClock() if clock is None else clock
    limits = limits or Limits()
    scheme = _scheme(url)
    _check_lanes(scheme, follow_ups_url)
    rows: RowStore
    before: FollowUps | None = None
    if scheme in _CASSANDRA:
        # Imported when it is chosen: its drivers may not be installed.
        from svc_delivery.store.cassandra_store import CassandraStore

        rows = CassandraStore(url, limits=limits, clock=clock)
    else:
        file = SqliteStore(url, file_of(url, data_dir), limits=limits)
        if not follow_ups_url:
            return file
        rows, before = file, file.follow_ups
    return LaneStore(
        Part("store_url", url, rows),
        rows,
        follow_ups_url,
        data_dir=data_dir,
        run_dir=data_dir if run_dir is None else run_dir,
        clock=clock,
        before=before,
    )


def store_admins(url: str, follow_ups_url: str) -> Sequence[StoreAdmin]:
    """Returns the upkeep of the stores that the URLs name; none for embedded ones.

    Raises:
        StoreUrlError: a scheme is unknown; names the known ones.
        StartError: a URL is wrong, or names no place for follow-ups.
    """
    scheme = _scheme(url)
    _check_lanes(scheme, follow_ups_url)
    found: list[StoreAdmin] = []
    if scheme in _CASSANDRA:
        from svc_delivery.store.cassandra_store import inbox_admin

        found.append(inbox_admin(url))
    if follow_ups_url:
        found += lane_stores(follow_ups_url, [lane.name for lane in LANES], reads=True)
    return found


def _scheme(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in ("sqlite", *_CASSANDRA):
        raise StoreUrlError(f"store_url: {_shown(url)!r} is no known store; known: {_KNOWN}")
    return scheme


def _check_lanes(scheme: str, follow_ups_url: str) -> None:
    if not follow_ups_url:
        if scheme != "sqlite":
            raise StartError(f"follow_ups_url: must name lanes when the inboxes are in no file; known: {KNOWN_LANES}")
        return
    lanes, separator, _ = follow_ups_url.partition("://")
    if not separator or lanes not in ("sqlite", "kafka"):
        raise StoreUrlError(f"follow_ups_url: {_shown(follow_ups_url)!r} is no known lane; known: {KNOWN_LANES}")
    if lanes == "kafka":
        from mesh.kafka import parse_cluster

        # Whoever opens lanes calls the setting by another name.
        parse_cluster("follow_ups_url", follow_ups_url)


def _shown(url: str) -> str:
    # Of a URL that may hold a password, which does not belong there, only the scheme is repeated.
    return url.partition("://")[0] if "@" in url else url
