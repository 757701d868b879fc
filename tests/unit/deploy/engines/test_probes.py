"""Answers are read as the engines write them; what is no answer is taken for none."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable

import pytest

from deploy.engines import probes


def test_brokers_are_read_past_their_hosts_and_racks() -> None:
    """A rack may be absent, and its length is then -1."""
    head = struct.pack(">iii", 7, 0, 2)
    brokers = struct.pack(">ih", 1, 3) + b"one" + struct.pack(">ih", 9092, -1)
    brokers += struct.pack(">ih", 3, 5) + b"three" + struct.pack(">ih", 9092, 2) + b"r1"
    assert probes.brokers_of(head + brokers + b"more") == {1, 3}
    with pytest.raises(struct.error):
        probes.brokers_of(head + brokers[:10])


def test_rows_are_counted_without_reading_them() -> None:
    """Flags may say more than that there is no metadata; with metadata the number stands elsewhere."""
    assert probes.rows_of(struct.pack(">iiii", 2, 5, 1, 2) + b"rows") == 2
    assert probes.rows_of(struct.pack(">iiii", 2, 1, 1, 2)) is None
    assert probes.rows_of(struct.pack(">iiii", 1, 4, 1, 2)) is None


_QUESTIONS: list[Callable[[str, int], object]] = [
    probes.kafka_brokers,
    probes.cassandra_peers,
    probes.redis_answers,
    probes.postgresql_answers,
]


@pytest.mark.parametrize("question", _QUESTIONS)
@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", b"\xff" * 64])
def test_a_stranger_at_the_port_is_no_answer(question: Callable[[str, int], object], answer: bytes) -> None:
    """Somebody who speaks another protocol, or closes, does not pass for the engine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def stranger() -> None:
            link, _ = listener.accept()
            with link:
                link.recv(1024)
                link.sendall(answer)

        thread = threading.Thread(target=stranger)
        thread.start()
        try:
            assert question("127.0.0.1", listener.getsockname()[1]) in (None, False)
        except (OSError, struct.error, ValueError):
            pass
        finally:
            thread.join()


def test_nobody_at_the_port_is_no_answer() -> None:
    """A refused connection says so."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with pytest.raises(OSError, match="refused"):
            probes.redis_answers("127.0.0.1", held.getsockname()[1])
