"""Questions that show whether a server works: an open port is not an answer.

Each asks in the engine's own protocol, by hand, as no driver need be installed. A server that does not answer raises
`OSError` or gives `None`/`False`. It must not change anything, but for `command` of Redis, which does what it is told.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Final

_CONNECT_LIMIT_S: Final = 1.0
_ANSWER_LIMIT_S: Final = 5.0
_LARGEST_ANSWER: Final = 16 * 1024 * 1024


class _Link:
    """One connection, read in exact pieces."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), _CONNECT_LIMIT_S)
        self._socket.settimeout(_ANSWER_LIMIT_S)

    def __enter__(self) -> _Link:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def read(self, count: int) -> bytes:
        if not 0 <= count <= _LARGEST_ANSWER:
            raise ConnectionError("no answer of this protocol")
        found = b""
        while len(found) < count:
            more = self._socket.recv(count - len(found))
            if not more:
                raise ConnectionError("closed in the middle of an answer")
            found += more
        return found

    def number(self) -> int:
        return int(struct.unpack(">i", self.read(4))[0])

    def line(self) -> bytes:
        found = b""
        while not found.endswith(b"\r\n"):
            found += self.read(1)
        return found[:-2]


# ---------------------------------------------------------------- Kafka


def kafka_brokers(host: str, port: int) -> set[int]:
    """Returns the ids of the brokers that this one lists: a Metadata request, version 4, that creates nothing."""
    request = struct.pack(">hhih", 3, 4, 7, 5) + b"probe" + struct.pack(">i?", 0, False)
    with _Link(host, port) as link:
        link.send(struct.pack(">i", len(request)) + request)
        return brokers_of(link.read(link.number()))


def brokers_of(answer: bytes) -> set[int]:
    """Reads the ids of brokers out of an answer to Metadata, version 4."""
    # Correlation id and throttle time come first.
    at, found = 8, set()
    (count,) = struct.unpack_from(">i", answer, at)
    at += 4
    for _ in range(count):
        node, length = struct.unpack_from(">ih", answer, at)
        # Id, host, port; then the rack, whose length is -1 when there is none.
        at += 6 + length + 4
        (rack,) = struct.unpack_from(">h", answer, at)
        at += 2 + max(rack, 0)
        found.add(node)
    return found


# ---------------------------------------------------------------- Cassandra

_STARTUP, _QUERY, _READY, _RESULT = 1, 7, 2, 8
_ROWS, _CONSISTENCY_ONE, _WITHOUT_METADATA, _NO_METADATA = 2, 1, 2, 4


def cassandra_peers(host: str, port: int) -> int | None:
    """Returns how many other nodes this one knows: native protocol 4, a select; None when it has no answer yet."""
    with _Link(host, port) as link:
        version = _short(b"CQL_VERSION") + _short(b"3.0.0")
        if _frame(link, _STARTUP, struct.pack(">h", 1) + version)[0] != _READY:
            return None
        text = b"select peer from system.peers"
        query = struct.pack(">i", len(text)) + text + struct.pack(">hB", _CONSISTENCY_ONE, _WITHOUT_METADATA)
        operation, body = _frame(link, _QUERY, query)
        return rows_of(body) if operation == _RESULT else None


def rows_of(body: bytes) -> int | None:
    """Reads the number of rows out of a result without metadata; None when it is not such a result."""
    # Kind, flags, number of columns, number of rows; the rows themselves are not looked at.
    kind, flags, _, rows = struct.unpack_from(">iiii", body)
    return int(rows) if kind == _ROWS and flags & _NO_METADATA else None


def _short(text: bytes) -> bytes:
    return struct.pack(">h", len(text)) + text


def _frame(link: _Link, operation: int, body: bytes) -> tuple[int, bytes]:
    link.send(struct.pack(">BBhBi", 4, 0, 1, operation, len(body)) + body)
    _, _, _, answered, length = struct.unpack(">BBhBi", link.read(9))
    return int(answered), link.read(length)


# ---------------------------------------------------------------- Redis


def redis_command(host: str, port: int, *words: str) -> str:
    """Runs one command whose answer is a text, and returns it.

    Raises:
        OSError: no answer, or a refusal, with the server's words.
    """
    parts = [word.encode() for word in words]
    data = b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
    with _Link(host, port) as link:
        link.send(b"*%d\r\n%b" % (len(parts), data))
        head = link.line()
        kind, rest = head[:1], head[1:].decode(errors="replace")
        if kind == b"$":
            return link.read(max(int(rest), 0)).decode(errors="replace")
        if kind in (b"+", b":"):
            return rest
        raise ConnectionError(rest)


def redis_answers(host: str, port: int) -> bool:
    """Tells whether the server has its data and serves."""
    return redis_command(host, port, "PING") == "PONG"


def redis_cluster_state(host: str, port: int) -> dict[str, str]:
    """Returns what CLUSTER INFO says."""
    lines = redis_command(host, port, "CLUSTER", "INFO").split()
    return {name: value for name, colon, value in (line.partition(":") for line in lines) if colon}


# ---------------------------------------------------------------- PostgreSQL


def postgresql_answers(host: str, port: int, name: str = "postgres") -> bool:
    """Logs in without a password and selects a value."""
    words: Sequence[bytes] = (b"user", name.encode(), b"database", b"postgres")
    body = struct.pack(">i", 196_608) + b"".join(word + b"\0" for word in words) + b"\0"
    query = b"select 7\0"
    with _Link(host, port) as link:
        link.send(struct.pack(">i", len(body) + 4) + body)
        if "E" in _until_idle(link):
            return False
        link.send(b"Q" + struct.pack(">i", len(query) + 4) + query)
        return "D" in _until_idle(link)


def _until_idle(link: _Link) -> str:
    """Reads messages until the server waits or refuses, and returns their kinds."""
    kinds = ""
    while not kinds.endswith(("Z", "E")):
        kinds += link.read(1).decode("latin-1")
        link.read(link.number() - 4)
    return kinds
