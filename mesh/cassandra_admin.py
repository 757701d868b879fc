"""The upkeep of a keyspace in Cassandra: is it there, does it keep what is written, is its schema this version's.

It must not know any table of a service: those bring their migrations.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import msgspec

from mesh.cassandra import REQUEST_TIMEOUT, StoreUnavailable, replicas
from mesh.cassandra_migrations import Migration, applied, differences, migrate
from mesh.errors import StartError
from mesh.stores import EngineUrl, Finding
from mesh.telemetry import logger

if TYPE_CHECKING:
    from mesh.cassandra_driver import DriverSession

_KEYSPACE: Final = "select replication from system_schema.keyspaces where keyspace_name = ?"
_TABLES: Final = "select table_name from system_schema.tables where keyspace_name = ?"
_SYNC: Final = "select value from system_views.settings where name = 'commitlog_sync'"


class KeyspaceAdmin:
    """Implements `mesh.stores.StoreAdmin` for one keyspace. Always through the driver, whichever client is chosen."""

    def __init__(self, what: str, url: EngineUrl, migrations: Sequence[Migration]) -> None:
        self._what = what
        self._url = url
        self._migrations = migrations
        self._replicas = replicas(url)

    @property
    def what(self) -> str:
        """See `StoreAdmin`."""
        return self._what

    @property
    def url(self) -> str:
        """See `StoreAdmin`."""
        return self._url.text

    async def check(self) -> Sequence[Finding]:
        """See `StoreAdmin`."""
        async with self._connected() as session:
            datacenter = self._url.options.get("datacenter") or session.datacenter
            nodes = session.datacenters()
            place = judge_datacenter(datacenter, nodes, wanted=self._replicas)
            if place.state != "ok":
                return [place]
            replication = await self._replication(session)
            if replication is None:
                return [place, Finding(f"keyspace {self._url.name}", "missing")]
            keyspace = judge_replication(self._url.name, replication, datacenter, nodes, wanted=self._replicas)
            found = [place, keyspace]
            synced = {address: str(rows[0][0]) for address, rows in (await session.on_each_node(_SYNC)).items()}
            alone = copies_of(replication, datacenter) <= 1 or nodes[datacenter] == 1
            found.append(judge_sync(synced, alone=alone))
            found.append(await self._judge_schema(session))
        if self._replicas == 1:
            logger().warning("store_without_copies", store_url=self._url.text, what=self._what)
        return found

    async def create(self, *, dry_run: bool) -> Sequence[str]:
        """See `StoreAdmin`."""
        async with self._connected() as session:
            datacenter = self._url.options.get("datacenter") or session.datacenter
            place = judge_datacenter(datacenter, session.datacenters(), wanted=self._replicas)
            if place.state != "ok":
                raise StartError(f"{self._url.text}: {place.what}: {place.detail}")
            if await self._replication(session) is not None:
                return []
            name = self._url.name
            if not dry_run:
                await session.run(
                    f"create keyspace if not exists {name} with replication = "
                    f"{{'class': 'NetworkTopologyStrategy', '{datacenter}': {self._replicas}}}"
                )
                await session.run(f"use {name}")
                await migrate(session, self._migrations)
            made = f"keyspace {name}, {self._replicas} copies in {datacenter}"
            return [made, *(f"schema {one}" for one in self._migrations)]

    async def migrate(self, *, dry_run: bool) -> Sequence[str]:
        """See `StoreAdmin`."""
        async with self._connected() as session:
            if await self._replication(session) is None:
                raise StartError(
                    f"{self._url.text}: keyspace {self._url.name} is missing; make it with `heliograph stores create`"
                )
            if dry_run:
                found = await self._applied(session)
                steps = [one for one in self._migrations if one.number not in found]
            else:
                await session.run(f"use {self._url.name}")
                steps = await migrate(session, self._migrations)
            return [f"schema {one}" for one in steps]

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[DriverSession]:
        try:
            from mesh.cassandra_driver import open_driver
        except ModuleNotFoundError as error:
            raise StartError(
                f"{self._url.text}: {error.name} is not installed: pip install 'heliograph[engines]'"
            ) from None
        # Whatever data centre was asked for: a wrong one is a finding, and the nodes can say which there are.
        options = {name: value for name, value in self._url.options.items() if name != "datacenter"}
        url = msgspec.structs.replace(self._url, options=options)
        session = await open_driver(url, keyspace=None, timeout=2 * REQUEST_TIMEOUT)
        try:
            yield session
        except (StoreUnavailable, StartError) as error:
            text = error.message if isinstance(error, StoreUnavailable) else str(error)
            raise StartError(text if text.startswith(self._url.text) else f"{self._url.text}: {text}") from None
        finally:
            await session.close()

    async def _replication(self, session: DriverSession) -> Mapping[str, str] | None:
        rows = await session.execute(_KEYSPACE, (self._url.name,))
        return dict(rows[0][0]) if rows else None

    async def _applied(self, session: DriverSession) -> Mapping[int, str]:
        tables = {name for (name,) in await session.execute(_TABLES, (self._url.name,))}
        if "schema_migrations" not in tables:
            return {}
        await session.run(f"use {self._url.name}")
        return await applied(session)

    async def _judge_schema(self, session: DriverSession) -> Finding:
        found = await self._applied(session)
        what = f"schema of {self._url.name}"
        if wrong := differences(self._migrations, found):
            return Finding(what, "wrong", "; ".join(wrong))
        missing = [str(one) for one in self._migrations if one.number not in found]
        return Finding(what, "behind", f"without {', '.join(missing)}") if missing else Finding(what, "ok")


# ---------------------------------------------------------------- judgements


def judge_datacenter(datacenter: str, nodes: Mapping[str, int], *, wanted: int) -> Finding:
    """Says whether a quorum can be reached in a data centre.

    Args:
        datacenter: where rows are read and written.
        nodes: how many each data centre has.
        wanted: copies.
    """
    what = f"datacenter {datacenter}"
    if re.fullmatch(r"[\w.:-]+", datacenter) is None or datacenter not in nodes:
        return Finding(what, "wrong", f"it has no node; there are {', '.join(sorted(nodes))}")
    quorum = wanted // 2 + 1
    if nodes[datacenter] < quorum:
        detail = f"replicas={wanted} needs {quorum} nodes for a quorum, and it has {nodes[datacenter]}"
        return Finding(what, "wrong", f"{detail}; in development say replicas=1")
    return Finding(what, "ok")


def judge_replication(
    keyspace: str, replication: Mapping[str, str], datacenter: str, nodes: Mapping[str, int], *, wanted: int
) -> Finding:
    """Says whether a keyspace keeps enough copies, and only where there are nodes."""
    what = f"keyspace {keyspace}"
    copies = copies_of(replication, datacenter)
    if copies < wanted:
        right = f"{{'class': 'NetworkTopologyStrategy', '{datacenter}': {wanted}}}"
        detail = f"replication keeps {copies} copies in {datacenter} and must keep {wanted}"
        return Finding(what, "wrong", f"{detail}: alter keyspace … with replication = {right}, then repair")
    dead = [name for name in replication if name not in nodes and name not in ("class", "replication_factor")]
    if dead:
        return Finding(what, "wrong", f"replication names {', '.join(dead)}, a data centre without nodes")
    return Finding(what, "ok")


def judge_sync(synced: Mapping[str, str], *, alone: bool) -> Finding:
    """Says whether what was answered survives.

    Args:
        synced: address → commitlog_sync.
        alone: there is one copy, which must be on the disk before it counts; of several, two would have to be lost.
    """
    lax = sorted(address for address, value in synced.items() if value == "periodic")
    if alone and lax:
        return Finding(
            "commitlog_sync",
            "wrong",
            f"periodic on {lax[0]} loses what it had just answered when the node dies, and there is no other copy; "
            "it must be batch or group in cassandra.yaml",
        )
    return Finding("commitlog_sync", "ok", f"periodic on {', '.join(lax)}" if lax else "")


def copies_of(replication: Mapping[str, str], datacenter: str) -> int:
    """Returns how many copies a data centre keeps, by what system_schema says."""
    kind = replication.get("class", "").rpartition(".")[2]
    text = replication.get("replication_factor" if kind == "SimpleStrategy" else datacenter, "0")
    # "3/1" is three copies, one of them transient: that one does not count.
    whole, _, transient = text.partition("/")
    return int(whole) - int(transient or "0")
