"""An HTTP/2 client without manners: it sends frames as a test makes them, and keeps no rule of the protocol.

Must not judge what comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from hpack import Encoder
from hyperframe.exceptions import HyperframeError
from hyperframe.frame import ContinuationFrame, Frame, GoAwayFrame, HeadersFrame, RstStreamFrame, SettingsFrame

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_CANCEL = 8
_FRAME_HEADER = 9
# Generous: two cores may be busy with other things.
_LIMIT_S = 15.0

Fields = Sequence[tuple[str, str]]


class Http2:
    """One connection.

    Attributes:
        settings: what the peer announced.
        answered: streams on which headers came.
        reset: streams that the peer broke off.
        gone: the peer ended the connection.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.settings: dict[int, int] = {}
        self.answered: set[int] = set()
        self.reset: set[int] = set()
        self.gone = False
        self._reader = reader
        self._writer = writer
        self._encoder = Encoder()
        self._number = -1

    def request(self, fields: Fields, *, ends: bool = False) -> tuple[int, bytes]:
        """Returns the number of the next stream, and the bytes that open it."""
        self._number += 2
        frame = HeadersFrame(self._number, self._encoder.encode(list(fields)), flags=["END_HEADERS"])
        if ends:
            frame.flags.add("END_STREAM")
        return self._number, frame.serialize()

    def opened_and_reset(self, fields: Fields) -> bytes:
        """Returns the bytes that open a stream and break it off at once."""
        number, head = self.request(fields)
        return head + RstStreamFrame(number, _CANCEL).serialize()

    def unfinished(self, fields: Fields) -> tuple[int, bytes]:
        """Returns the number of a stream, and the bytes of headers that do not say that they are all."""
        self._number += 2
        return self._number, HeadersFrame(self._number, self._encoder.encode(list(fields))).serialize()

    def more(self, number: int, fields: Fields) -> bytes:
        """Returns the bytes of more headers, which are not all either."""
        return ContinuationFrame(number, self._encoder.encode(list(fields)) if fields else b"").serialize()

    async def send(self, data: bytes) -> bool:
        """Sends bytes as they are; returns whether the peer is still there."""
        try:
            self._writer.write(data)
            async with asyncio.timeout(_LIMIT_S):
                await self._writer.drain()
        except ConnectionError:
            self.gone = True
        return not self.gone

    async def read(self) -> None:
        """Reads frames until the connection ends."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            while True:
                head = await self._reader.readexactly(_FRAME_HEADER)
                frame, length = Frame.parse_frame_header(memoryview(head))
                with contextlib.suppress(HyperframeError):
                    frame.parse_body(memoryview(await self._reader.readexactly(length)))
                await self._note(frame)
        self.gone = True

    async def _note(self, frame: Frame) -> None:
        if isinstance(frame, SettingsFrame) and "ACK" not in frame.flags:
            self.settings.update(frame.settings)
            await self.send(SettingsFrame(0, flags=["ACK"]).serialize())
        elif isinstance(frame, HeadersFrame):
            self.answered.add(frame.stream_id)
        elif isinstance(frame, RstStreamFrame):
            self.reset.add(frame.stream_id)
        elif isinstance(frame, GoAwayFrame) and frame.error_code:
            self.gone = True


@asynccontextmanager
async def http2(host: str, port: int, context: ssl.SSLContext) -> AsyncIterator[Http2]:
    """Connects and says the preface; frames are read meanwhile."""
    context.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname="localhost")
    client = Http2(reader, writer)
    await client.send(_PREFACE + SettingsFrame(0).serialize())
    reading = asyncio.create_task(client.read())
    try:
        yield client
    finally:
        reading.cancel()
        writer.transport.abort()
