"""The second client of Cassandra, as far as it needs no server: what it cannot do is said before it connects."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from mesh.cassandra import IN_FLIGHT, WAITING, StoreUnavailable, open_session, parse
from mesh.cassandra_acsylla import Turns
from mesh.envoy import pki
from mesh.errors import StartError

NOW = 1_800_000_000.0


@pytest.fixture
def nobody() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def refusal(rest: str) -> str:
    """Why a session is not opened."""
    with pytest.raises(StartError) as caught:
        await open_session(parse("delivery.store_url", f"cassandra+acsylla://{rest}"))
    text = str(caught.value)
    assert "\n" not in text
    return text


async def test_a_node_that_is_not_there_is_one_line(nobody: int) -> None:
    """It says which URL, and that nobody answered."""
    text = await refusal(f"127.0.0.1:{nobody}/inbox")
    assert text.startswith(f"cassandra+acsylla://127.0.0.1:{nobody}/inbox: cannot be reached: ")
    assert "refused" in text


async def test_a_start_that_is_given_up_ends() -> None:
    """While a node takes the connection and says nothing; the client would stop the whole process for good."""
    connected = asyncio.Event()

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await ended.wait()
        writer.close()

    ended = asyncio.Event()
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    opening = asyncio.ensure_future(
        open_session(parse("delivery.store_url", f"cassandra+acsylla://127.0.0.1:{port}/inbox"))
    )
    await connected.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    ended.set()
    server.close()


async def test_hosts_must_have_the_same_port() -> None:
    """This client has one setting for the port; the other has one for each host."""
    assert "the same port on every host; or use cassandra://" in await refusal("127.0.0.1:9042,127.0.0.2:9043/inbox")


async def test_roots_are_named_and_are_one(tmp_path: Path, nobody: int) -> None:
    """It would take the first of two certificates and nothing of the system's, without a word."""
    one, other = (pki.create_authority(name, NOW, 3600.0) for name in ("one", "other"))
    leaf = pki.issue(one, pki.Names("delivery"), NOW, 3600.0)
    (tmp_path / "cert.pem").write_bytes(leaf.certificate)
    (tmp_path / "key.pem").write_bytes(leaf.key)
    files = f"cert={tmp_path}/cert.pem&key={tmp_path}/key.pem"
    assert "name ca=FILE" in await refusal(f"127.0.0.1:{nobody}/inbox?{files}")
    both = tmp_path / "both.pem"
    both.write_bytes(pki.pem(one.certificate) + pki.pem(other.certificate))
    assert f"ca={both}: this client takes exactly one" in await refusal(f"127.0.0.1:{nobody}/inbox?ca={both}")
    single = tmp_path / "one.pem"
    single.write_bytes(pki.pem(one.certificate))
    assert "cannot be reached" in await refusal(f"127.0.0.1:{nobody}/inbox?ca={single}&{files}")


async def test_turns_are_given_in_order() -> None:
    """256 at a time; who waited is told how long the request may still take."""
    turns = Turns(timeout=5.0)
    assert [await turns.take() for _ in range(IN_FLIGHT)] == [None] * IN_FLIGHT
    order: list[int] = []

    async def wait(number: int) -> None:
        rest = await turns.take()
        assert rest is not None
        assert 0.0 < rest <= 5.0
        order.append(number)

    waiting = [asyncio.ensure_future(wait(number)) for number in range(3)]
    await asyncio.sleep(0)
    assert order == []
    waiting[1].cancel()
    await asyncio.wait([waiting[1]])
    for _ in range(IN_FLIGHT):
        turns.give()
    await asyncio.gather(waiting[0], waiting[2])
    assert order == [0, 2]
    for _ in range(2):
        turns.give()
    assert [await turns.take() for _ in range(IN_FLIGHT)] == [None] * IN_FLIGHT


async def test_a_turn_that_does_not_come_is_no_statement() -> None:
    """It was never begun; its place is not lost, and beyond a bound nobody waits at all."""
    turns = Turns(timeout=0.0)
    for _ in range(IN_FLIGHT):
        await turns.take()
    with pytest.raises(StoreUnavailable, match="did not come in time") as late:
        await turns.take()
    assert not late.value.outcome_unknown
    turns.give()
    assert await turns.take() is None
    patient = Turns(timeout=5.0)
    for _ in range(IN_FLIGHT):
        await patient.take()
    crowd = [asyncio.ensure_future(patient.take()) for _ in range(WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(StoreUnavailable, match="too many"):
        await patient.take()
    for one in crowd:
        one.cancel()
    await asyncio.wait(crowd)
