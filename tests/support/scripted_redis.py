"""A Redis server that answers what a test says, in pieces of its choice. Must not know any command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from mesh.stores import Host


class ScriptedRedis:
    """Takes commands; `answer` makes the bytes of an answer from one, or None to hang up."""

    def __init__(self) -> None:
        self.answer: Callable[[list[bytes]], bytes | None] = lambda command: b"+OK\r\n"
        # Commands in the order of their arrival, those that came in one piece together.
        self.pieces: list[list[list[bytes]]] = []
        self.connections = 0
        self.open = asyncio.Event()
        self.open.set()
        self.host = Host("127.0.0.1", 0)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[ScriptedRedis]:
        """Listens."""
        listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.host = Host("127.0.0.1", listener.sockets[0].getsockname()[1])
        try:
            yield self
        finally:
            listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while data := await reader.read(1 << 20):
            commands = _commands(data)
            self.pieces.append(commands)
            await self.open.wait()
            answers = [self.answer(command) for command in commands]
            for answer in answers:
                if answer is None:
                    writer.close()
                    return
                writer.write(answer)
        writer.close()


def _commands(data: bytes) -> list[list[bytes]]:
    """Reads arrays of strings: a test's commands are short and arrive whole."""
    lines = iter(data.split(b"\r\n"))
    commands = []
    for line in lines:
        if line.startswith(b"*"):
            command = []
            for _ in range(int(line[1:])):
                next(lines)
                command.append(next(lines))
            commands.append(command)
    return commands


def bulk(text: bytes) -> bytes:
    """Returns a string as an answer."""
    return b"$%d\r\n%b\r\n" % (len(text), text)
