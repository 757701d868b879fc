"""A program of the last release: generated code of the contract's baseline, gRPC, WebSocket, and nothing of ours.

    python -P old_peer.py client|serve|read|write     a JSON object on standard input says what it needs

It is run with that generated code first on the path and answers in JSON on standard output, one object a line. It must
not import the SDK, `mesh` or a service: whoever built a client a year ago has none of today's.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import importlib
import json
import pkgutil
import ssl
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import websockets
from google.protobuf import descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

import heliograph

_LIMIT_S = 20.0
_DEEPEST = 6
_FORMS = {"json": "heliograph.v1.json", "proto": "heliograph.v1.proto"}


# ---------------------------------------------------------------- messages


@functools.cache
def message_names() -> list[str]:
    """Lists every message of the contract that this program was built with."""
    found = []
    for module in pkgutil.walk_packages(heliograph.__path__, "heliograph."):
        if module.name.endswith("_pb2"):
            file = importlib.import_module(module.name).DESCRIPTOR
            found += [message.full_name for message in file.message_types_by_name.values()]
    return sorted(found)


def empty(full_name: str) -> Message:
    """Returns an empty message."""
    # A message is known once its module was loaded.
    message_names()
    return message_factory.GetMessageClass(descriptor_pool.Default().FindMessageTypeByName(full_name))()


def filled(full_name: str, variant: int) -> Message:
    """Returns a message with every field set, the same ones each time; of a oneof the variant's."""
    message = empty(full_name)
    _fill(message, variant, _DEEPEST)
    return message


def _fill(message: Message, variant: int, levels: int) -> None:
    descriptor = message.DESCRIPTOR
    if descriptor.file.package.startswith("google."):
        _fill_well_known(message)
        return
    for field in descriptor.fields:
        group = field.containing_oneof
        if group is not None and group.fields[variant % len(group.fields)] is not field:
            continue
        if field.message_type is None:
            _set(message, field)
        elif field.message_type.GetOptions().map_entry:
            getattr(message, field.name)["key"] = "value"
        elif levels:
            target = getattr(message, field.name)
            inner = target.add() if field.is_repeated else target
            inner.SetInParent()
            _fill(inner, variant, levels - 1)


def _fill_well_known(message: Message) -> None:
    if getattr(message, "paths", None) is None:
        message.seconds, message.nanos = 1_764_437_000, 123_456_000  # type: ignore[attr-defined] # times have both
    else:
        message.paths.append("categories")  # type: ignore[attr-defined] # a mask has paths


def _set(message: Message, field: Any) -> None:
    values: dict[int, Any] = {
        FieldDescriptor.TYPE_STRING: f"{field.name} ü",
        FieldDescriptor.TYPE_BYTES: bytes([field.number, 255]),
        FieldDescriptor.TYPE_BOOL: True,
        FieldDescriptor.TYPE_ENUM: field.enum_type.values[-1].number if field.enum_type else 0,
    }
    value = values.get(field.type, field.number + 1_000)
    if field.is_repeated:
        getattr(message, field.name).extend([value, value])
    else:
        setattr(message, field.name, value)


def as_json(message: Message) -> Any:
    """Returns a message as JSON, with the names of the proto."""
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def written(variants: int) -> Iterator[dict[str, Any]]:
    """Yields every message of the contract, filled."""
    for name in message_names():
        for variant in range(variants):
            message = filled(name, variant)
            yield {"name": name, "bytes": _text(message.SerializeToString()), "json": as_json(message)}


def _read(name: str, content: bytes) -> dict[str, Any]:
    message = empty(name)
    message.ParseFromString(content)
    return {
        "name": name,
        "json": as_json(message),
        "fields": [field.name for field in message.DESCRIPTOR.fields],
        "bytes": _text(message.SerializeToString()),
    }


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


# ---------------------------------------------------------------- client


class Session:
    """One device's session, as a client of the last release speaks it."""

    def __init__(self, connection: Any, form: str) -> None:
        from heliograph.gateway.v1 import client_frames_pb2 as frames

        self._connection = connection
        self._form = form
        self._number = 0
        self._waiting: list[Any] = []
        self.frames = frames

    async def say(self, **frame: Any) -> int:
        """Sends a frame and returns its number."""
        self._number += 1
        request = self.frames.ConnectRequest(frame_number=self._number, **frame)
        binary = self._form == "proto"
        await self._connection.send(request.SerializeToString() if binary else json_format.MessageToJson(request))
        return self._number

    async def hear(self, kind: str) -> Any:
        """Waits for the next frame of this kind; others wait until they are asked for."""
        for response in self._waiting:
            if response.WhichOneof("frame") == kind:
                self._waiting.remove(response)
                return getattr(response, kind)
        while True:
            payload = await self._connection.recv()
            response = self.frames.ConnectResponse()
            if isinstance(payload, bytes):
                response.ParseFromString(payload)
            else:
                # As a client does that expects to meet newer servers.
                json_format.Parse(payload, response, ignore_unknown_fields=True)
            if response.WhichOneof("frame") == kind:
                return getattr(response, kind)
            self._waiting.append(response)


async def _client(told: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """Listens, publishes, receives, marks, lists, and reads and changes preferences."""
    from heliograph.type.v1 import notification_pb2

    address, form = told["websocket"], told["form"]
    context = ssl.create_default_context(cafile=told["roots"]) if told["roots"] else None
    async with (
        websockets.connect(address, subprotocols=[_FORMS[form]], max_size=None, ssl=context) as connection,  # type: ignore[list-item] # a NewType of str
        _channel(told, "ingest") as ingest,
        _channel(told, "delivery") as delivery,
        _channel(told, "prefs") as prefs,
    ):
        session = Session(connection, form)
        await session.say(hello=session.frames.Hello(token=told["recipient_token"], device_id="old"))
        await session.hear("welcome")
        checkpoint = await session.hear("replayed")
        yield {"what": "ready", "cursor": checkpoint.cursor}
        async for answer in _publish(ingest, told):
            yield answer
        # Its own two, and one of today's producers with fields that this client does not know.
        for _ in range(told["expected"]):
            notification = (await session.hear("notify")).notification
            yield {"what": "notified", "id": notification.notification_id, "title": notification.content.title}
            ref = notification_pb2.NotificationRef(notification_id=notification.notification_id, revision=1)
            mark = session.frames.ClientMark(kind=notification_pb2.MARK_KIND_READ, refs=[ref])
            number = await session.say(mark=mark)
            while (await session.hear("confirmed")).frame_number < number:
                pass
        async for answer in _ask(delivery, prefs, told):
            yield answer


def _channel(told: dict[str, Any], service: str) -> grpc.aio.Channel:
    """Opens a channel to the edge, or to a service's own socket where no certificate is to be checked."""
    if not told["roots"]:
        return grpc.aio.insecure_channel(told[service])
    credentials = grpc.ssl_channel_credentials(Path(told["roots"]).read_bytes())
    return grpc.aio.secure_channel(told[service], credentials, [("grpc.ssl_target_name_override", "localhost")])


async def _publish(ingest: grpc.aio.Channel, told: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    from heliograph.ingest.v1 import ingest_service_pb2, ingest_service_pb2_grpc
    from heliograph.type.v1 import event_pb2, notification_pb2

    stub = ingest_service_pb2_grpc.IngestServiceStub(ingest)
    bearer = (("authorization", f"Bearer {told['producer_token']}"),)

    def request(title: str) -> ingest_service_pb2.PublishRequest:
        audience = event_pb2.Audience(recipient_ids=[told["recipient"]])
        content = notification_pb2.Content(title=title, body="From the last release")
        event = event_pb2.Event(category="general", audience=audience, content=content)
        return ingest_service_pb2.PublishRequest(event=event, request_id=str(uuid.uuid4()))

    once = request("Alone")
    first = await stub.Publish(once, metadata=bearer, timeout=_LIMIT_S)
    again = await stub.Publish(once, metadata=bearer, timeout=_LIMIT_S)
    yield {"what": "published", "id": first.event_id, "again": again.event_id, "replayed": again.replayed}
    batch = ingest_service_pb2.BatchPublishRequest(requests=[request("Of two"), request("")])
    results = (await stub.BatchPublish(batch, metadata=bearer, timeout=_LIMIT_S)).results
    yield {"what": "batch", "id": results[0].accepted.event_id, "refused": results[1].refused.reason}


async def _ask(
    delivery: grpc.aio.Channel, prefs: grpc.aio.Channel, told: dict[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    from heliograph.delivery.v1 import inbox_service_pb2, inbox_service_pb2_grpc
    from heliograph.prefs.v1 import prefs_service_pb2, prefs_service_pb2_grpc

    bearer = (("authorization", f"Bearer {told['recipient_token']}"),)
    inbox = inbox_service_pb2_grpc.InboxServiceStub(delivery)
    listed = await inbox.ListInbox(inbox_service_pb2.ListInboxRequest(page_size=50), metadata=bearer, timeout=_LIMIT_S)
    items = [[item.notification.content.title, item.state] for item in listed.items]
    yield {"what": "listed", "items": items, "unread": listed.unread.unread_count}
    wishes = prefs_service_pb2_grpc.PrefsServiceStub(prefs)
    before = await wishes.GetPreferences(prefs_service_pb2.GetPreferencesRequest(), metadata=bearer, timeout=_LIMIT_S)
    # Read, changed and sent back as a whole: what this client does not know of it must survive.
    next(one for one in before.preferences.categories if one.category == "mention").enabled = False
    change = prefs_service_pb2.UpdatePreferencesRequest(preferences=before.preferences)
    after = await wishes.UpdatePreferences(change, metadata=bearer, timeout=_LIMIT_S)
    states = {one.category: one.enabled for one in after.preferences.categories}
    yield {"what": "changed", "mention": states["mention"], "general": states["general"]}


# ---------------------------------------------------------------- server


async def _serve(told: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """Serves publishes and sessions at Unix sockets, as the last release did, until its input ends."""
    from heliograph.ingest.v1 import ingest_service_pb2, ingest_service_pb2_grpc
    from heliograph.type.v1 import notification_pb2

    sessions: list[Session] = []
    said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    class Ingest(ingest_service_pb2_grpc.IngestServiceServicer):
        """Accepts everything, and sends it to whoever listens."""

        async def Publish(self, request: Any, context: Any) -> Any:
            """Accepts one event."""
            id_ = str(uuid.uuid4())
            notification = notification_pb2.Notification(
                notification_id=id_, revision=1, category=request.event.category, content=request.event.content
            )
            for session in sessions:
                frame = session.frames.ConnectResponse(notify=session.frames.Notify(notification=notification))
                await session._connection.send(frame.SerializeToString())
            await said.put({"what": "accepted", "id": id_, "json": as_json(request)})
            return ingest_service_pb2.PublishResponse(event_id=id_)

        async def BatchPublish(self, request: Any, context: Any) -> Any:
            """Is not called here."""
            raise NotImplementedError

    async def hold(connection: Any) -> None:
        await _hold(Session(connection, "proto"), sessions, said)

    async with contextlib.AsyncExitStack() as stack:
        server = await _healthy(stack, told["ingest"])
        ingest_service_pb2_grpc.add_IngestServiceServicer_to_server(Ingest(), server)
        await server.start()
        for node in told["nodes"]:
            await (await _healthy(stack, node["socket"])).start()
            forms = [_FORMS["proto"]]
            await stack.enter_async_context(websockets.unix_serve(hold, node["websocket"], subprotocols=forms))
        yield {"what": "serving"}
        ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        while not ended.done():
            waiting = asyncio.create_task(said.get())
            await asyncio.wait([waiting, ended], return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                yield waiting.result()
            waiting.cancel()


async def _healthy(stack: contextlib.AsyncExitStack, socket: str) -> grpc.aio.Server:
    """Returns a server at a socket that says of itself that it serves; sidecars let nobody else be called."""
    server = grpc.aio.server()
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    server.add_insecure_port(f"unix:{socket}")
    stack.push_async_callback(server.stop, None)
    return server


async def _hold(session: Session, sessions: list[Session], said: asyncio.Queue[dict[str, Any]]) -> None:
    """Answers hello with an empty inbox, and confirms marks."""
    frames, connection = session.frames, session._connection
    async for payload in connection:
        request = frames.ConnectRequest.FromString(payload)
        kind = request.WhichOneof("frame")
        if kind == "hello":
            welcome = frames.Welcome(session_id="old-1")
            welcome.heartbeat_interval.seconds = 120
            await connection.send(frames.ConnectResponse(welcome=welcome).SerializeToString())
            replayed = frames.Replayed(cursor="1.old", reload=True)
            await connection.send(frames.ConnectResponse(replayed=replayed).SerializeToString())
            sessions.append(session)
        elif kind == "mark":
            confirmed = frames.Confirmed(frame_number=request.frame_number)
            await connection.send(frames.ConnectResponse(confirmed=confirmed).SerializeToString())
        await said.put({"what": kind, "json": as_json(request)})


# ---------------------------------------------------------------- command


async def _run(command: str, told: dict[str, Any]) -> None:
    if command in ("client", "serve"):
        async for answer in _client(told) if command == "client" else _serve(told):
            print(json.dumps(answer), flush=True)
    elif command == "read":
        # A message is known once its module is imported.
        message_names()
        for one in told["messages"]:
            print(json.dumps(_read(one["name"], base64.b64decode(one["bytes"]))))
    elif command == "write":
        for one in written(told["variants"]):
            print(json.dumps(one))
    elif command == "where":
        print(json.dumps({"where": heliograph.__file__, "messages": message_names()}))


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], json.loads(sys.stdin.readline())))
