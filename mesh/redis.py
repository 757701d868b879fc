"""Redis and Valkey from 7.0 on: atomic scripts and reads at the primary; one server, Sentinel or Cluster.

Whatever goes wrong is `Unavailable` within `LIMIT_S`, and the next call finds the way by itself: to another primary,
with the scripts loaded again. So that this works, every script must be harmless when it runs twice, and touch keys of
one slot only. Must not know what is kept there. Only commands that Redis 7.0 has.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import re
from collections.abc import Sequence

import msgspec

from mesh.errors import StartError, Unavailable
from mesh.redis_checks import facts_of, judge
from mesh.redis_connections import Access, Argument, Command, Lost, Refusal, Reply, Server, slot_of
from mesh.redis_routes import Routes, Single, parts_of_slots, routes_of
from mesh.stores import EngineUrl, Finding, parse_url
from mesh.telemetry import logger

__all__ = [
    "KNOWN",
    "SCHEMES",
    "Argument",
    "Call",
    "Redis",
    "RedisAdmin",
    "Reply",
    "Script",
    "connect",
    "parts_of_slots",
    "slot_of",
]

SCHEMES = ("redis", "rediss", "redis+cluster", "redis+sentinel")
KNOWN = (
    "redis://HOST:PORT/DATABASE?prefix=NAME",
    "rediss://HOST:PORT/DATABASE",
    "redis+cluster://HOST:PORT,HOST:PORT/",
    "redis+sentinel://HOST:PORT,HOST:PORT/SERVICE",
)
LIMIT_S = 2.0
_TRIES = 4
_PAUSE_S = 0.03
_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,64}")
# The server that answers so is not, or not now, the one to ask.
_ELSEWHERE = frozenset({"NOSCRIPT", "MOVED", "READONLY", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "LOADING"})
_PING_MS = 60_000


class Script:
    """A Lua script, known to servers by its digest."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class Call(msgspec.Struct, frozen=True, gc=False):
    """One run of a script.

    Attributes:
        keys: at least one; in a Cluster all of one slot.
        arguments: the others.
    """

    keys: Sequence[bytes]
    arguments: Sequence[Argument]


class _Asked(msgspec.Struct, frozen=True, gc=False):
    slot: int
    command: Command


def connect(setting: str, text: str) -> Redis:
    """Returns the client for a URL; nothing is connected yet.

    Raises:
        StartError: the URL, or a file that it names, is wrong; one line.
    """
    known = ", ".join(KNOWN)
    url = parse_url(
        setting, text, schemes=SCHEMES, default_port=6379, known=known, options=("prefix", "sentinel_credentials")
    )
    prefix = url.options.get("prefix", "heliograph")
    if not _PREFIX.fullmatch(prefix):
        raise StartError(f"{setting}: prefix {prefix!r} must be 1 to 64 of A-Z a-z 0-9 . _ -")
    tls = url.tls()
    if tls is None and url.scheme == "rediss":
        raise StartError(f"{setting}: {text!r} speaks TLS: name the file of trusted roots, ca=FILE")
    access = Access(credentials=url.credentials(), tls=tls)
    return Redis(setting, url, prefix, routes_of(setting, url, access))


class Redis:
    """A client that finds its servers; see `connect`.

    Attributes:
        url: where, without a secret.
        prefix: what all keys begin with.
    """

    def __init__(self, setting: str, url: EngineUrl, prefix: str, routes: Routes) -> None:
        self.url = url.text
        self.prefix = prefix
        self._setting = setting
        self._routes = routes
        self._ping_keys: dict[range, bytes] = {}

    @property
    def clustered(self) -> bool:
        """Only keys of one slot go together."""
        return self._routes.clustered

    def slots_of(self, keys: Sequence[bytes]) -> list[int]:
        """Returns what must go apart: the slot of each key in a Cluster, else 0."""
        return [slot_of(key) for key in keys] if self.clustered else [0] * len(keys)

    def tag_within(self, slots: range) -> str:
        """Returns what to put between braces in keys, so that they have a slot among these; always the same."""
        return next(
            tag for tag in map(f"{self.prefix}:{{}}".format, itertools.count()) if slot_of(tag.encode()) in slots
        )

    # ---------------------------------------------------------------- calls

    async def run(self, script: Script, calls: Sequence[Call], *, repeat: bool = True) -> list[Reply]:
        """Runs a script once for each call, those of one server in order and in one piece.

        Args:
            script: the script.
            calls: its runs.
            repeat: run again what may have been done, when its answer is lost. False where the answer says what the
                first run changed.

        Raises:
            Unavailable: not every call was answered; those that were are done, of the others nothing is known.
        """
        asked = [
            _Asked(
                slot_of(call.keys[0]) if self.clustered else 0,
                ("EVALSHA", script.digest, len(call.keys), *call.keys, *call.arguments),
            )
            for call in calls
        ]
        return await self._send(asked, script, repeat=repeat)

    async def read(self, groups: Sequence[Sequence[bytes]]) -> list[list[bytes | None]]:
        """Reads the values of keys, each group at one moment; in a Cluster the keys of a group have one slot.

        Raises:
            Unavailable: not every value could be read.
        """
        slots = [slot_of(keys[0]) if self.clustered else 0 for keys in groups]
        asked = [_Asked(slot, ("MGET", *keys)) for slot, keys in zip(slots, groups, strict=True)]
        replies = await self._send(asked)
        return [[value if isinstance(value, bytes) else None for value in _list(reply)] for reply in replies]

    async def time(self, tag: str) -> float:
        """Returns the Unix time of the server that has this tag's slot."""
        (reply,) = await self._send([_Asked(slot_of(tag.encode()) if self.clustered else 0, ("TIME",))])
        seconds, micros = _list(reply)
        if not (isinstance(seconds, bytes) and isinstance(micros, bytes)):
            raise self._unavailable(f"TIME answers {reply!r}")
        return int(seconds) + int(micros) / 1_000_000

    async def ping(self) -> None:
        """Writes a key at every primary: a replica, a full or a half server answers a mere PING.

        Raises:
            Unavailable: one of them takes no writes, or a slot belongs to nobody.
        """
        try:
            async with asyncio.timeout(LIMIT_S):
                await self._refresh()
                for server, slots in await self._routes.primaries():
                    (reply,) = await server.run([("SET", self._ping_key(slots), b"", "PX", _PING_MS)])
                    if isinstance(reply, Refusal):
                        raise self._refused(server, reply)
        except Lost as error:
            raise self._unavailable(str(error)) from error
        except TimeoutError:
            raise self._unavailable("no answer in time") from None

    async def close(self) -> None:
        """Closes all connections; harmless when there are none."""
        await self._routes.close()

    async def _send(self, asked: Sequence[_Asked], script: Script | None = None, *, repeat: bool = True) -> list[Reply]:
        replies: dict[int, Reply] = {}
        trouble = "no answer in time"
        try:
            async with asyncio.timeout(LIMIT_S):
                for attempt in range(_TRIES):
                    if attempt > 1:
                        await asyncio.sleep(_PAUSE_S * attempt)
                    trouble = await self._round(asked, script, replies, repeat=repeat)
                    if len(replies) == len(asked):
                        return [replies[index] for index in range(len(asked))]
                    if not trouble.startswith("NOSCRIPT"):
                        await self._refresh()
        except Lost as error:
            raise self._unavailable(str(error)) from error
        except TimeoutError:
            raise self._unavailable(trouble) from None
        raise self._unavailable(trouble)

    async def _round(
        self, asked: Sequence[_Asked], script: Script | None, replies: dict[int, Reply], *, repeat: bool
    ) -> str:
        """Sends what has no reply yet, once; returns what was in the way of the rest."""
        groups: dict[Server, list[int]] = {}
        for index, one in enumerate(asked):
            if index not in replies:
                try:
                    server = await self._routes.find(one.slot)
                except Lost as error:
                    return _trouble(error)
                groups.setdefault(server, []).append(index)
        runs = [
            self._run_at(server, asked, indexes, script, replies, repeat=repeat) for server, indexes in groups.items()
        ]
        # A task each only where there is more than one.
        troubles = [await runs[0]] if len(runs) == 1 else await asyncio.gather(*runs, return_exceptions=True)
        for trouble in troubles:
            if isinstance(trouble, BaseException):
                raise trouble
        return next((trouble for trouble in troubles if isinstance(trouble, str) and trouble), "")

    async def _run_at(
        self,
        server: Server,
        asked: Sequence[_Asked],
        indexes: Sequence[int],
        script: Script | None,
        replies: dict[int, Reply],
        *,
        repeat: bool,
    ) -> str:
        """Sends commands to one server, and takes down the replies; returns what was in the way of others."""
        try:
            answers = await server.run([asked[index].command for index in indexes])
            refusals = []
            for index, answer in zip(indexes, answers, strict=True):
                if isinstance(answer, Refusal):
                    refusals.append((index, answer))
                else:
                    replies[index] = answer
            if script is not None and any(answer.code == "NOSCRIPT" for _, answer in refusals):
                await server.run([("SCRIPT", "LOAD", script.text)])
            for index, answer in refusals:
                reply = await self._go_on(server, asked[index].command, answer, script)
                if not isinstance(reply, Refusal):
                    replies[index] = reply
        except Lost as error:
            # Where there is one server, and it is silent, nobody else can be found.
            if (error.sent and not repeat) or (error.silent and isinstance(self._routes, Single)):
                raise
            return _trouble(error)
        return str(refusals[0][1]) if refusals else ""

    async def _go_on(self, server: Server, command: Command, answer: Refusal, script: Script | None) -> Reply:
        """Follows where a server points to for this once; raises when another try will not help."""
        if answer.code == "ASK" and answer.host is not None:
            target = self._routes.at(answer.host)
            if script is not None:
                await target.run([("SCRIPT", "LOAD", script.text)])
            _, reply = await target.run([("ASKING",), command])
            return reply
        if answer.code not in _ELSEWHERE or (answer.code == "READONLY" and isinstance(self._routes, Single)):
            raise self._refused(server, answer)
        return answer

    async def _refresh(self) -> None:
        try:
            await self._routes.refresh()
        except Lost as error:
            _trouble(error)

    def _refused(self, server: Server, refusal: Refusal) -> Unavailable:
        if refusal.code == "READONLY":
            return self._unavailable(f"{server.host} is a read-only replica: name the primary")
        return self._unavailable(f"{server.host}: {refusal}")

    def _unavailable(self, text: str) -> Unavailable:
        return Unavailable(f"{self._setting}: {self.url}: {text}", reason="STORE_UNAVAILABLE")

    def _ping_key(self, slots: range) -> bytes:
        known = self._ping_keys.get(slots)
        if known is None:
            known = self._ping_keys[slots] = f"{{{self.tag_within(slots)}}}:ping".encode()
        return known

    # ---------------------------------------------------------------- upkeep

    async def enter(self, *, bear_absence: bool) -> None:
        """Refuses the start when a server is not as it must be.

        Args:
            bear_absence: one that does not answer is only logged: the process has work without it.

        Raises:
            StartError: one line with what is wrong.
        """
        try:
            findings = await self.look()
        except (Lost, TimeoutError) as error:
            text = f"{self._setting}: {self.url}: {str(error) or 'no answer in time'}"
            if not bear_absence or (isinstance(error, Lost) and error.wrong):
                raise StartError(text) from None
            logger().warning("store_absent", where=self.url, error=text)
            return
        for finding in findings:
            if finding.state != "ok":
                raise StartError(f"{self._setting}: {self.url}: {finding.what}: {finding.detail}")

    async def look(self) -> list[Finding]:
        """Looks at every primary: version, role, what it does when its memory is full, whether it takes writes.

        Raises:
            Lost: one cannot be asked; `wrong` when a person must mend it.
        """
        findings = []
        async with asyncio.timeout(LIMIT_S):
            await self._routes.refresh()
            for server, slots in await self._routes.primaries():
                sections = [("INFO", section) for section in ("server", "replication", "memory")]
                *infos, written = await server.run([*sections, ("SET", self._ping_key(slots), b"", "PX", _PING_MS)])
                facts = facts_of(infos)
                if not facts:
                    logger().warning("redis_not_looked_at", where=str(server.host), answer=str(infos[0]))
                findings += judge(str(server.host), facts, written)
        return findings


class RedisAdmin:
    """`StoreAdmin` of a store in Redis: there is nothing to make, only to look at."""

    def __init__(self, what: str, redis: Redis) -> None:
        self._what = what
        self._redis = redis

    @property
    def what(self) -> str:
        """See the protocol."""
        return self._what

    @property
    def url(self) -> str:
        """See the protocol."""
        return self._redis.url

    async def check(self) -> Sequence[Finding]:
        """See the protocol."""
        try:
            return await self._redis.look()
        except (Lost, TimeoutError) as error:
            raise StartError(f"{self._what} at {self.url}: {str(error) or 'no answer in time'}") from None
        finally:
            await self._redis.close()

    async def create(self, *, dry_run: bool) -> Sequence[str]:
        """Keys come with their first use."""
        return []

    async def migrate(self, *, dry_run: bool) -> Sequence[str]:
        """Values have no schema."""
        return []


def _trouble(error: Lost) -> str:
    """Returns what another try may get over; raises the error when it will not."""
    if error.wrong:
        raise error
    return str(error)


def _list(reply: Reply) -> list[Reply]:
    return reply if isinstance(reply, list) else []
