"""One session, three ways to carry it: JSON and binary over WebSocket, and gRPC say the same, in the same order."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from google.protobuf import json_format
from websockets.exceptions import ConnectionClosed

from heliograph.gateway.v1 import gateway_service_pb2 as pb
from heliograph.gateway.v1.client_frames_pb2 import ConnectResponse
from heliograph.type.v1.notification_pb2 import MarkKind, NotificationRef, NotificationState
from tests.support.device import Device, Form
from tests.support.nodes import DeliveryLink, Node, delivery_of
from tests.support.sessions import id_of
from tests.support.wait import until

FORMS: tuple[Form, ...] = ("json", "proto", "grpc")
_STEPS = ("offer", "again", "mark", "foreign", "subscribe", "malformed", "unsubscribe", "ping", "change", "stranger")


class Seen(msgspec.Struct, frozen=True):
    """What a client saw of a session: the frames, and the close code or what says the same."""

    frames: list[dict[str, Any]]
    code: int


class Script:
    """One session: the same steps for every form, each awaited before the next."""

    def __init__(self, node: Node, link: DeliveryLink, form: Form, seed: int) -> None:
        self.node = node
        self.link = link
        self.recipient = f"{form}-{seed}"
        self.random = random.Random(seed)
        self.offered = self.revision = 0

    async def run(self, form: Form, ending: str) -> Seen:
        """Plays it."""
        key = f"acme/{self.recipient}"
        inbox = self.node.inbox.of(key)
        for number in range(1, 4):
            inbox.write(id_of(1_000 + number), number, time.time() - 100)
        async with self.node.connected(form) as device:
            await device.hello(self.node.token(self.recipient), "phone", cursor="nonsense")
            await device.ready()
            for _ in range(25):
                await self._step(device, key)
            await self._end(device, ending)
            return Seen([_plain(frame) for frame in device.frames], await device.is_closed())

    async def _step(self, device: Device, key: str) -> None:
        step = self.random.choice(_STEPS)
        before, more = len(device.frames), 1
        if step == "offer" or (step in ("again", "mark") and not self.offered):
            self.offered += 1
            self.revision = 1
            await self.link.result(self.link.offer(delivery_of(id_of(self.offered), key, title="Grüße 🎉")))
        elif step == "again":
            # A higher revision is written, the same one is not.
            more = self.random.randint(0, 1)
            self.revision += more
            delivery = delivery_of(id_of(self.offered), key, revision=self.revision)
            await self.link.result(self.link.offer(delivery))
        elif step == "mark":
            await device.mark(self.random.choice(MarkKind.values()[1:]), id_of(self.random.randint(1, self.offered)))
        elif step == "foreign":
            await device.mark(MarkKind.MARK_KIND_READ, id_of(99_999))
        elif step == "change":
            change = pb.Change(
                recipient_key=key,
                refs=[NotificationRef(notification_id=id_of(1), revision=1)],
                state=NotificationState.NOTIFICATION_STATE_READ,
            )
            change.unread.unread_count = self.random.randint(0, 9)
            self.link.send(changes=pb.ChangeBatch(changes=[change]))
            more = 2
        else:
            await self._say(device, step)
        await until(lambda: len(device.frames) >= before + more, 10.0, f"{more} frames follow {step}")

    async def _say(self, device: Device, step: str) -> None:
        said: dict[str, Callable[[], Awaitable[Any]]] = {
            "subscribe": lambda: device.subscribe("deploys", "team/blue"),
            "unsubscribe": lambda: device.unsubscribe("deploys"),
            "malformed": lambda: device.subscribe("not a topic"),
            "ping": device.ping,
            "stranger": lambda: device.reauthenticate(self.node.token("stranger")),
        }
        await said[step]()

    async def _end(self, device: Device, ending: str) -> None:
        if ending == "superseded":
            async with self.node.device(self.recipient):
                await device.is_closed()
        elif ending == "nonsense":
            while device.closed is None:
                count = len(device.frames)
                with contextlib.suppress(ConnectionClosed):
                    await device.mark(MarkKind.MARK_KIND_READ, id_of(99_999))
                await until(lambda: len(device.frames) > count or device.closed is not None, 10.0, "it is refused")  # noqa: B023
        else:
            await device.reauthenticate(self.node.token(self.recipient, lifetime=1.0))


def _plain(frame: ConnectResponse) -> dict[str, Any]:
    """Returns a frame without what differs from session to session: its id and its times."""
    for name in ("session_id", "server_time", "token_expire_time"):
        if frame.HasField("welcome"):
            frame.welcome.ClearField(name)
    if frame.HasField("replayed"):
        frame.replayed.ClearField("cursor")
        frame.replayed.unread.ClearField("head_time")
    return json_format.MessageToDict(frame)


@pytest.mark.parametrize(
    ("seed", "ending", "code"),
    [
        (1, "superseded", 4500),
        (2, "nonsense", 4503),
        (3, "expired", 4003),
        (4, "superseded", 4500),
        (5, "nonsense", 4503),
    ],
)
async def test_all_forms_say_the_same(run_dir: Path, tmp_path: Path, seed: int, ending: str, code: int) -> None:
    """Frame by frame, up to the end and its code."""
    node = Node(run_dir, tmp_path)
    async with node.running(with_topics=True), node.link() as link:
        seen = {form: await Script(node, link, form, seed).run(form, ending) for form in FORMS}
        kinds = {kind for frame in seen["grpc"].frames for kind in frame}
        assert {"welcome", "refused", "notify", "replayed", "confirmed"} <= kinds
        assert seen["grpc"].code == code
        assert seen["json"] == seen["proto"] == seen["grpc"]
