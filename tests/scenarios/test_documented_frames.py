"""The session protocol as its pages write it: examples are said word by word, and what is answered is described.

The frames are those of `docs/protocol.md`, what comes back is judged by `docs/asyncapi.json`, strictly.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import websockets
from websockets.asyncio.client import ClientConnection
from websockets.typing import Subprotocol

from heliograph.type.v1.notification_pb2 import MARK_KIND_READ
from svc_gateway.handshake import JSON_SUBPROTOCOL
from tests.meta.tree import ROOT
from tests.support.apps import Apps
from tests.support.publishing import publish_request
from tests.support.schemas import faults
from tests.support.site import IN_EVERY_SHAPE, Site
from tests.support.wait import until

pytestmark = IN_EVERY_SHAPE

# Any: JSON.
Frame = dict[str, Any]

_PAGE: Final = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
_DOCUMENT: Final[Frame] = json.loads((ROOT / "docs" / "asyncapi.json").read_text(encoding="utf-8"))
_MESSAGES: Final[Mapping[str, Any]] = _DOCUMENT["components"]["messages"]
_EXAMPLES: Final = [
    json.loads(one) for one in re.findall(r"^```json client\n(.*?)\n```$", _PAGE, re.MULTILINE | re.DOTALL)
]
_LIMIT_S: Final = 15.0


def _kind(frame: Frame) -> str:
    (kind,) = frame.keys() - {"frameNumber"}
    return kind


def _odd(side: str, frame: Frame) -> list[str]:
    return faults(_DOCUMENT, _MESSAGES[f"{side}.{_kind(frame)}"]["payload"], frame)


class _Client:
    """Says frames as they are, and keeps those that come."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self.frames: list[Frame] = []
        self.closed = False

    async def say(self, frame: Frame) -> None:
        """Says one that is described."""
        assert _odd("client", frame) == [], frame
        await self._connection.send(json.dumps(frame))

    async def read(self) -> None:
        """Reads until the end."""
        async for text in self._connection:
            self.frames.append(json.loads(text))
        self.closed = True

    async def hears(self, what: str, condition: Callable[[Frame], bool]) -> Frame:
        """Waits for a frame."""
        await until(lambda: self.closed or any(map(condition, self.frames)), _LIMIT_S, what)
        return next(frame for frame in self.frames if condition(frame))

    async def hears_kind(self, kind: str) -> Frame:
        """Waits for a frame of a kind."""
        return await self.hears(f"{kind} comes", lambda frame: _kind(frame) == kind)


@asynccontextmanager
async def _client(site: Site) -> AsyncIterator[_Client]:
    connection = await websockets.connect(
        site.live_url, subprotocols=[Subprotocol(JSON_SUBPROTOCOL)], ssl=site.tls(), proxy=None, ping_interval=None
    )
    client = _Client(connection)
    reading = asyncio.create_task(client.read())
    try:
        yield client
    finally:
        await connection.close()
        await reading


def _filled(example: Frame, token: str, event_id: str) -> Frame:
    """An example with a token that is valid and the id of a notification that there is."""
    text = re.sub(r'"token": "[^"]*"', f'"token": "{token}"', json.dumps(example))
    return dict(json.loads(re.sub(r'"notificationId": "[^"]*"', f'"notificationId": "{event_id}"', text)))


def _is_confirmed(number: int) -> Callable[[Frame], bool]:
    return lambda frame: int(frame.get("confirmed", {}).get("frameNumber", 0)) >= number


def _undescribed(client: _Client) -> list[str]:
    return [f"{_kind(frame)}: {odd}" for frame in client.frames for odd in _odd("server", frame)]


async def test_a_session_of_the_pages_examples(site: Site) -> None:
    """Each example is taken as the page says, and every frame that answers is described, with nothing left over."""
    who = "reader-of-pages"
    token = site.cluster.token(who)
    first = next(one for one in _EXAMPLES if _kind(one) == "hello")
    others = [one for one in _EXAMPLES if _kind(one) != "hello"]
    async with site.undisturbed(stored=1), _client(site) as client, Apps(site.cluster).device(who) as tablet:
        await tablet.ready()
        await client.say(_filled(first, token, ""))
        await client.hears_kind("replayed")
        event_id = (await site.publish(publish_request("To be marked", to=[who]))).event_id
        await client.hears_kind("notify")
        await tablet.has(event_id)
        for example in others:
            await client.say(_filled(example, token, event_id))
        await client.hears_kind("pong")
        durable = max(one["frameNumber"] for one in others if _kind(one) in ("mark", "subscribe", "unsubscribe"))
        await client.hears("marks and topics are durable", _is_confirmed(durable))
        assert "refused" not in map(_kind, client.frames)
        # An id as the page shows it was given to nobody.
        mark = next(one for one in others if _kind(one) == "mark")
        await client.say({**mark, "frameNumber": max(one["frameNumber"] for one in others) + 1})
        assert (await client.hears_kind("refused"))["refused"]["refusal"]["reason"] == "NOTIFICATION_UNKNOWN"
        await tablet.mark(MARK_KIND_READ, event_id)
        await client.hears_kind("changed")
        await client.hears_kind("unread")
        assert _undescribed(client) == []


async def test_a_device_comes_back_as_the_page_says(site: Site) -> None:
    """With a cursor, what it has and what it said: the last hello of the page is answered by a checkpoint."""
    who = "returning-reader"
    token = site.cluster.token(who)
    *_, last = [one for one in _EXAMPLES if _kind(one) == "hello"]
    async with site.undisturbed(stored=1):
        event_id = (await site.publish(publish_request("From before", to=[who]))).event_id
        async with Apps(site.cluster).device(who, device_id=last["hello"]["deviceId"]) as device:
            await device.has(event_id)
        async with _client(site) as client:
            await client.say(_filled(last, token, event_id))
            await client.hears_kind("replayed")
            await client.hears("the old marks are durable", _is_confirmed(last["frameNumber"]))
            assert _undescribed(client) == []
