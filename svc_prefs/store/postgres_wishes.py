"""Preferences and subscriptions in one schema of PostgreSQL: its pool, and its upkeep."""

from __future__ import annotations

from mesh.postgres import Pool, parse_place
from mesh.postgres_schema import SchemaAdmin, load_migrations
from mesh.stores import require
from svc_prefs.ports import LogLimits, PrefsStore, TopicStore
from svc_prefs.store.postgres import PostgresPrefs, greet
from svc_prefs.store.postgres_topics import PostgresTopics


def wishes_admin(url: str) -> SchemaAdmin:
    """Returns the upkeep of the schema that a URL names.

    Raises:
        StartError: the URL is wrong.
    """
    return SchemaAdmin(
        what="preferences and subscriptions",
        place=parse_place("store_url", url),
        store="prefs",
        migrations=load_migrations("svc_prefs.store", "postgres_migrations"),
    )


class PostgresWishes:
    """Implements `svc_prefs.store.WishStore`."""

    def __init__(self, url: str, *, limits: LogLimits) -> None:
        """Connects nothing yet.

        Raises:
            StartError: the URL is wrong.
        """
        self._admin = wishes_admin(url)
        self._pool = Pool(parse_place("store_url", url), greet=greet)
        self._prefs = PostgresPrefs(self._pool, limits=limits)
        self._topics = PostgresTopics(self._pool)

    @property
    def prefs(self) -> PrefsStore:
        """What recipients chose."""
        return self._prefs

    @property
    def topics(self) -> TopicStore:
        """Who subscribed to what."""
        return self._topics

    async def open(self) -> None:
        """Looks whether everything is as it must be, and connects; makes nothing.

        Raises:
            StartError: it is not, or the server cannot be reached.
        """
        await require(self._admin)
        await self._pool.open()

    async def ping(self) -> None:
        """Asks for something that only a working server answers.

        Raises:
            mesh.postgres.PostgresError: it does not.
        """
        await self._pool.ping()

    async def close(self) -> None:
        """Ends all connections."""
        await self._pool.close()
