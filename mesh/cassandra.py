"""The seam to Cassandra: statements by their text, values in, tuples out. No type of a client goes past it.

The URL's scheme chooses the client behind it. Each reads and writes at LOCAL_QUORUM, never repeats a statement by
itself (a repeated one would carry an old stamp) and never runs it twice at once. Timestamps are for the statements to
bind: `using timestamp ?`.

It must not know any table, and must not import a client before its URL is chosen.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

from mesh.errors import StartError, Unavailable
from mesh.stores import EngineUrl, parse_url

ACSYLLA: Final = "cassandra+acsylla"
SCHEMES: Final = ("cassandra", ACSYLLA)
KNOWN: Final = "cassandra://host:9042/KEYSPACE?replicas=3&datacenter=NAME, cassandra+acsylla:// the same"
DEFAULT_PORT: Final = 9042
DEFAULT_REPLICAS: Final = 3
OLDEST_VERSION: Final = (4, 1)
# More than this many statements wait on our side of the connection.
IN_FLIGHT: Final = 256
# And no more than this many wait there; whoever comes then is told at once.
WAITING: Final = 10_000
REQUEST_TIMEOUT: Final = 4.0
RECONNECT_DELAY: Final = 0.3

_KEYSPACE: Final = re.compile(r"[a-z][a-z0-9_]{0,47}")
_LARGEST_REASON: Final = 300

# A list is for `in ?`.
Value: TypeAlias = str | bytes | int | bool | list[bytes] | Mapping[str, bytes] | None
# Any: which column has which type is known to whoever wrote the statement.
Row: TypeAlias = tuple[Any, ...]
# A statement's text and its values.
Bound: TypeAlias = tuple[str, Sequence[Value]]


class StoreUnavailable(Unavailable):
    """The store did not do what a statement says, or it is not known whether it did.

    Attributes:
        outcome_unknown: it may have happened, or may still happen; otherwise it was never begun.
    """

    def __init__(self, message: str, *, outcome_unknown: bool) -> None:
        super().__init__(one_line(message), reason="STORE_UNAVAILABLE")
        self.outcome_unknown = outcome_unknown


class StatementRefused(StoreUnavailable):
    """The store, or the client before it, refuses this statement with these values: it was never begun.

    Whoever can put it down to the values should; for everybody else the store is not as it must be.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, outcome_unknown=False)


class Session(Protocol):
    """One process's connection to a keyspace; it reconnects by itself.

    Statements are known by their text; each is prepared once. `execute` and `batch` send at once, even when their
    answer is awaited later, unless 256 are unanswered: then they wait their turn, within the same time limit.

    Awaiting raises `StoreUnavailable` when the store does not answer in time, and `StatementRefused`.
    """

    @property
    def datacenter(self) -> str:
        """The data centre whose nodes are asked."""
        ...

    @property
    def connected(self) -> bool:
        """Whether a node of it can be reached, as far as is known."""
        ...

    async def prepare(self, statements: Sequence[str]) -> None:
        """Prepares statements, so that their first use is as quick as the next."""
        ...

    def execute(self, statement: str, values: Sequence[Value] = ()) -> Awaitable[list[Row]]:
        """Runs one statement; all pages of its answer."""
        ...

    def batch(self, statements: Sequence[Bound]) -> Awaitable[None]:
        """Runs statements of one partition as one unlogged batch: all of them or none, seen together."""
        ...

    async def close(self) -> None:
        """Disconnects; harmless a second time."""
        ...


def parse(setting: str, text: str) -> EngineUrl:
    """Parses a URL of Cassandra.

    Raises:
        StartError: one line: the setting, what is wrong, and the known forms.
    """
    url = parse_url(
        setting, text, schemes=SCHEMES, default_port=DEFAULT_PORT, known=KNOWN, options=("replicas", "datacenter")
    )
    if _KEYSPACE.fullmatch(url.name) is None:
        raise StartError(
            f"{setting}: {text!r}: the path names the keyspace: a letter, then letters, digits or _, in lower case, "
            f"48 at most; known: {KNOWN}"
        )
    replicas(url)
    return url


def replicas(url: EngineUrl) -> int:
    """Returns how many copies the URL asks for.

    Raises:
        StartError: it is no number from 1 to 9.
    """
    text = url.options.get("replicas", str(DEFAULT_REPLICAS))
    if len(text) != 1 or text not in "123456789":
        raise StartError(f"{url.text}: replicas={text}: must be a number from 1 to 9")
    return int(text)


async def open_session(url: EngineUrl, *, timeout: float = REQUEST_TIMEOUT) -> Session:
    """Connects to the keyspace that a URL names.

    Raises:
        StartError: one line: the client is not installed, nobody answers, wrong credentials, no such keyspace, a
            version that is not supported.
    """
    try:
        if url.scheme == ACSYLLA:
            from mesh.cassandra_acsylla import open_acsylla

            return await open_acsylla(url, keyspace=url.name, timeout=timeout)
        from mesh.cassandra_driver import open_driver

        return await open_driver(url, keyspace=url.name, timeout=timeout)
    except ModuleNotFoundError as error:
        raise StartError(f"{url.text}: {error.name} is not installed: pip install 'heliograph[engines]'") from None


def check_versions(url: EngineUrl, versions: Mapping[str, str]) -> None:
    """Refuses nodes that are too old.

    Args:
        url: where they were found.
        versions: address → release, such as "5.0.6".

    Raises:
        StartError: one of them is older than 4.1, or what it says is no version.
    """
    for address, version in versions.items():
        found = re.match(r"(\d+)\.(\d+)", version)
        if found is None or (int(found[1]), int(found[2])) < OLDEST_VERSION:
            oldest = ".".join(map(str, OLDEST_VERSION))
            raise StartError(f"{url.text}: {address} runs Cassandra {version}; {oldest} or newer is needed")


def one_line(text: str) -> str:
    """Returns an error's text as one line of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= _LARGEST_REASON else f"{line[:_LARGEST_REASON]}…"
