# ruff: noqa: N803, N815
"""The published WebSocket conformance cases against an echo server.

The case files (sdist `autobahntestsuite`, Apache-2.0) are Python 2 and need a client library of their day; here they
are loaded as they are, and `Peer` stands in for what they call, hence its foreign names. Payloads inside the cases are
text of one character a byte. Left out: the compression cases (12 and 13), since compression is refused, and 9.9.1,
which needs another framework. Must not judge: the cases do.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import codecs
import collections
import random
import re
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

_CASE_LIMIT_S = 120
_CLOSE_LIMIT_S = 1.0
_LEFT_OUT = re.compile(r"case(12|13|9_9_1)")
_FINAL = 0x80
# Cases may derive from cases in other files, three deep.
_LOAD_ROUNDS = 4


class Verdict(NamedTuple):
    """What a case says of the server: its behaviour, the way it closed, and why."""

    behavior: str
    close: str
    text: str


def to_bytes(value: str | bytes) -> bytes:
    """Returns the bytes of a case's text."""
    return value.encode("latin-1") if isinstance(value, str) else bytes(value)


def to_text(value: bytes | bytearray) -> str:
    """Returns bytes as the cases write them."""
    return value.decode("latin-1")


def _plain(value: Any) -> Any:
    """Returns a value in which text and bytes, lists and tuples compare as they did in Python 2."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return to_text(value) if isinstance(value, bytes) else value


class _Utf8Validator:
    """What the cases about text use to know the right answer."""

    def reset(self) -> None:
        """Starts anew; there is nothing to forget."""

    def validate(self, text: str) -> tuple[bool, bool, int, int]:
        """Says whether this may begin a text, and whether it ends with a whole character."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            decoder.decode(to_bytes(text))
        except UnicodeDecodeError:
            return False, False, 0, 0
        return True, not decoder.getstate()[0], 0, 0


class Names:
    """Constants that the cases read from the protocol class."""

    CLOSE_STATUS_CODE_NORMAL = 1000
    CLOSE_STATUS_CODE_GOING_AWAY = 1001
    CLOSE_STATUS_CODE_PROTOCOL_ERROR = 1002
    CLOSE_STATUS_CODE_INVALID_PAYLOAD = 1007
    STATE_CLOSED, STATE_CONNECTING, STATE_CLOSING, STATE_OPEN = 0, 1, 2, 3
    MESSAGE_TYPE_TEXT, MESSAGE_TYPE_BINARY = 1, 2


# ---------------------------------------------------------------- loading


def load(folder: Path) -> dict[tuple[int, ...], type[Any]]:
    """Returns the cases of an unpacked sdist by number."""
    base = next(folder.rglob("case1_1_1.py")).parent
    space = _namespace()
    _run(base / "case.py", space)
    files = sorted(path for path in base.glob("case*.py") if re.match(r"case\d", path.name))
    waiting = [path for path in files if not _LEFT_OUT.match(path.name)]
    for _ in range(_LOAD_ROUNDS):
        waiting = [path for path in waiting if not _run(path, space)]
    if waiting:
        raise LookupError(f"cases that do not load: {[path.name for path in waiting]}")
    return dict(sorted(_classes(space)))


def _namespace() -> dict[str, Any]:
    """Returns what the case files find instead of their imports, which are cut out."""
    return {
        "xrange": range,
        "unicode": str,
        "binascii": types.SimpleNamespace(
            b2a_hex=lambda text: to_text(binascii.b2a_hex(to_bytes(text))),
            a2b_hex=lambda text: to_text(binascii.a2b_hex(text)),
        ),
        "WebSocketProtocol": Names,
        "Utf8Validator": _Utf8Validator,
        "pickle": types.SimpleNamespace(dumps=_plain),
    }


def _run(path: Path, space: dict[str, Any]) -> bool:
    """Executes one case file; False when it needs another one first."""
    source = path.read_text(encoding="latin-1")
    source = re.sub(r"^\s*#.*coding.*$", "", source, count=1, flags=re.MULTILINE)
    source = re.sub(r"^(\s*)((import|from|print) .*)$", r"\1pass", source, flags=re.MULTILINE)
    source = source.replace("(object, Case, )", "(Case, )").replace("has_key", "__contains__")
    source = source.replace("len(self.payload) / self", "len(self.payload) // self")
    try:
        exec(compile(source, str(path), "exec"), space)
    except NameError:
        return False
    return True


def _classes(space: dict[str, Any]) -> Iterator[tuple[tuple[int, ...], type[Any]]]:
    """Finds cases by their names; some files keep theirs in a list."""
    for value in list(space.values()):
        for item in value if isinstance(value, list) else [value]:
            match = re.fullmatch(r"Case(\d+(?:_\d+)*)", item.__name__) if isinstance(item, type) else None
            if match:
                yield tuple(int(part) for part in match[1].split("_")), item


# ---------------------------------------------------------------- running


async def run_cases(folder: Path, port: int) -> dict[str, Verdict]:
    """Runs every case, one after the other, against the server at that port."""
    verdicts = {}
    for number, case in load(folder).items():
        async with asyncio.timeout(_CASE_LIMIT_S):
            verdicts[".".join(map(str, number))] = await Peer(case).run(port)
    return verdicts


class Peer(Names):
    """The client that a case drives: the attributes and methods are those the cases use."""

    autoFragmentSize = 0
    createWirelog = True
    trafficStats = None
    factory = types.SimpleNamespace(isServer=False)

    _writer: asyncio.StreamWriter

    def __init__(self, case: type[Any]) -> None:
        self.state = self.STATE_CONNECTING
        self.txFrameStats: collections.Counter[int] = collections.Counter()
        self.connectionWasOpen = self.closedByMe = self.wasClean = self.droppedByMe = self.failedByMe = False
        self.remoteCloseCode: int | None = None
        self.localCloseCode: int | None = None
        self.localCloseReason: str | bytes | None = None
        self._queue: asyncio.Queue[tuple[bytes, int | None]] = asyncio.Queue()
        self._close_sent = self._close_received = False
        self._message, self._opcode, self._part_opcode = bytearray(), 0, 1
        # Any: the cases are foreign code without types.
        self.case: Any = case(self)

    async def run(self, port: int) -> Verdict:
        """Connects, lets the case play, and returns what it says in the end."""
        reader, self._writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        key = base64.b64encode(random.randbytes(16)).decode()
        self._writer.write(
            f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(self._send())
            try:
                await self._receive(reader)
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                self.state = self.STATE_CLOSED
                sending.cancel()
                self._writer.close()
        self.case.onConnectionLost(self.failedByMe)
        return Verdict(self.case.behavior, self.case.behaviorClose, f"{self.case.result} {self.case.resultClose}")

    async def _send(self) -> None:
        """Writes what is queued, whole or in the pieces that the case asked for."""
        while True:
            data, piece = await self._queue.get()
            step = piece or len(data) or 1
            try:
                for start in range(0, len(data), step):
                    self._writer.write(data[start : start + step])
                    if start % (step * 64) == 0:
                        await self._writer.drain()
                        await asyncio.sleep(0)
            except ConnectionError:
                return

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 101"):
            raise ConnectionError(f"the handshake was refused: {head[:80]!r}")
        self.state, self.connectionWasOpen = self.STATE_OPEN, True
        self.case.onOpen()
        while True:
            first, size = await reader.readexactly(2)
            if size > 125:
                size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8), "big")
            self._frame(first >= _FINAL, first & 15, await reader.readexactly(size))

    def _frame(self, final: bool, opcode: int, payload: bytes) -> None:
        if opcode == 8:
            self._closing_frame(payload)
        elif opcode == 9:
            if self.state == self.STATE_OPEN:
                self.sendFrame(10, payload)
            self.case.onPing(to_text(payload))
        elif opcode == 10:
            self.case.onPong(to_text(payload))
        else:
            if opcode:
                self._opcode, self._message = opcode, bytearray()
            self._message += payload
            if final:
                self.case.onMessage(to_text(self._message), self._opcode == 2)

    def _closing_frame(self, payload: bytes) -> None:
        self._close_received = True
        self.remoteCloseCode = int.from_bytes(payload[:2], "big") if len(payload) >= 2 else None
        if not self._close_sent:
            self.sendCloseFrame(self.remoteCloseCode, isReply=True)
        self.wasClean = True
        self._later(_CLOSE_LIMIT_S, self._drop)
        self.case.onClose(True, self.remoteCloseCode, to_text(payload[2:]))

    # ------------------------------------------------------------ what the cases call

    def enableWirelog(self, _: bool) -> None:
        """Nothing is logged."""

    def sendFrame(
        self,
        opcode: int,
        payload: str | bytes = "",
        fin: bool = True,
        rsv: int = 0,
        mask: str | bytes | None = None,
        payload_len: int | None = None,
        chopsize: int | None = None,
        sync: bool = False,
    ) -> None:
        """Queues one frame, right or wrong."""
        data = to_bytes(payload)
        if payload_len is not None and data:
            data = data * (payload_len // len(data)) + data[: payload_len % len(data)]
        key, size = to_bytes(mask) if mask else random.randbytes(4), len(data)
        stream = (key * (size // 4 + 1))[:size]
        body = (int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")).to_bytes(size, "big")
        self.txFrameStats[opcode] += 1
        head = bytes(((_FINAL if fin else 0) | rsv << 4 | opcode,)) + _length(size)
        self._queue.put_nowait((head + key + body, chopsize))

    def sendMessage(
        self,
        payload: str | bytes,
        isBinary: bool = False,
        fragmentSize: int | None = None,
        sync: bool = False,
        doNotCompress: bool = False,
    ) -> None:
        """Queues a message in fragments of that size."""
        data = to_bytes(payload)
        size = fragmentSize or self.autoFragmentSize or len(data) or 1
        starts = range(0, len(data), size) or range(1)
        for start in starts:
            opcode = (2 if isBinary else 1) if start == 0 else 0
            self.sendFrame(opcode, data[start : start + size], fin=start == starts[-1])

    def beginMessage(self, opcode: int = 1, **_: Any) -> None:
        """The next frame's kind."""
        self._part_opcode = opcode

    def beginMessageFrame(self, length: int) -> None:
        """Queues the header of a single frame; its mask is zero, so that the payload may follow as it is."""
        self._queue.put_nowait((bytes((_FINAL | self._part_opcode,)) + _length(length) + bytes(4), None))

    def sendMessageFrameData(self, payload: str | bytes, sync: bool = False) -> None:
        """Queues a piece of that frame."""
        self._queue.put_nowait((to_bytes(payload), None))

    def endMessage(self) -> None:
        """The frame was final."""

    def sendCloseFrame(
        self,
        code: int | None = None,
        reasonUtf8: str | bytes | None = None,
        reason: str | bytes | None = None,
        isReply: bool = False,
        **_: Any,
    ) -> None:
        """Queues a closing frame, right or wrong."""
        text = reasonUtf8 if reasonUtf8 is not None else reason
        head = b"" if code is None else code.to_bytes(2, "big")
        self.sendFrame(8, head + (b"" if text is None else to_bytes(text)))
        self._close_sent, self.state, self.closedByMe = True, self.STATE_CLOSING, not isReply
        self.localCloseCode, self.localCloseReason = code, text
        if not isReply:
            self._later(_CLOSE_LIMIT_S, lambda: None if self._close_received else self._drop())

    def sendClose(self, code: int | None = None, reason: str | None = None) -> None:
        """Starts the closing handshake."""
        if self.state == self.STATE_OPEN:
            self.sendCloseFrame(code, reason=None if reason is None else reason.encode())

    def killAfter(self, delay: float) -> None:
        """Fails the connection later, unless it has ended."""
        self._later(delay, self._fail)

    def closeAfter(self, delay: float) -> None:
        """Closes later, unless it has ended."""
        self._later(delay, self.sendClose)

    def continueLater(self, delay: float, step: Callable[[], object], tag: str | None = None) -> None:
        """Calls the case back later, unless the connection has ended."""
        self._later(delay, step)

    def _later(self, delay: float, step: Callable[[], object]) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(delay, lambda: None if self.state == self.STATE_CLOSED else step())

    def _fail(self) -> None:
        self.failedByMe = True
        if self.state == self.STATE_OPEN:
            self.sendClose(self.CLOSE_STATUS_CODE_GOING_AWAY)
        else:
            self._drop()

    def _drop(self) -> None:
        self.droppedByMe = True
        self._writer.transport.abort()


def _length(size: int) -> bytes:
    """Returns a masked frame's length."""
    if size < 126:
        return bytes((0x80 | size,))
    return b"\xfe" + size.to_bytes(2, "big") if size < 65_536 else b"\xff" + size.to_bytes(8, "big")
