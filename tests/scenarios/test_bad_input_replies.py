"""What replies show: whatever is wrong with a request, the caller learns what to do, and nothing of the inside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import grpc.aio
import pytest
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from mesh import status
from mesh.access import PRODUCER, RECIPIENT
from mesh.envoy.topology import load_topology
from mesh.errors import Failure, Internal, Unknown
from mesh.identity import TOKEN_HEADER
from tests.support import contract
from tests.support.mesh import TOPOLOGY
from tests.support.raw_socket import End, hello, opened
from tests.support.rest import routes
from tests.support.site import IN_A_MESH, Site
from tests.support.spoiling import INSIDE, spoiled

SUBJECTS = {PRODUCER: "demo", RECIPIENT: "mallory"}
NO_MESSAGES = (b"\xff\xff\xff\xff", b"\x0a\xff\xff\xff\x7f", b"\x0a\x02\xff\xfe", b"<html>", b"\x00" * 1_000)
NO_JSON = (
    "{",
    "[1]",
    '{"a": ',
    "null",
    '"text"',
    "\x00",
    '{"colour": "red"}',
    '{"tenantId": {"a": [1]}}',
    "{}{}",
    "NaN",
)
FIRST_WORDS = (
    "{",
    "[]",
    '{"hello": 1}',
    '{"hello": {"token": 5}}',
    '{"hello": {}, "ping": {}}',
    "\x00",
    "{}",
    '{"colour": {}}',
)


class Open(NamedTuple):
    """One method that is open to the outside: the service that serves it, its path, and whose token opens it."""

    service: str
    path: str
    role: str
    method: MethodDescriptor


def _open_methods() -> Iterator[Open]:
    for service, full_names in load_topology(TOPOLOGY).serving().items():
        for path, roles in contract.access_of(full_names).items():
            name, _, method = path.removeprefix("/").partition("/")
            found = contract.services()[name].methods_by_name[method]
            if roles & {PRODUCER, RECIPIENT} and not found.client_streaming:
                yield Open(service, path, PRODUCER if PRODUCER in roles else RECIPIENT, found)


OPEN = {one.path.rpartition("/")[2]: one for one in _open_methods()}


async def _reply(site: Site, one: Open, request: bytes) -> str:
    """Calls a method and returns all that came back, as text; no bug may stand behind it."""
    raw: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = site.door(one.service).unary_unary(one.path)
    try:
        answer = await raw(request, timeout=10.0, metadata=site.bearer(one.role, SUBJECTS[one.role]))
    except grpc.aio.AioRpcError as error:
        failure = status.from_call(error)
        assert not isinstance(failure, Internal | Unknown), (one.path, request[:100], failure)
        return f"{_text(failure)} {error.initial_metadata()!r} {error.trailing_metadata()!r}"
    return str(message_factory.GetMessageClass(one.method.output_type).FromString(answer))


def _text(failure: Failure) -> str:
    violations = [f"{one.field}: {one.description}" for one in failure.violations]
    return " ".join([failure.message, failure.reason, *failure.metadata.values(), *violations])


@pytest.mark.parametrize("name", sorted(OPEN))
async def test_no_method_shows_what_is_inside(site: Site, name: str) -> None:
    """Bytes that are no message, and messages with one field that makes no sense: nothing is stored nor told."""
    one = OPEN[name]
    requests = [message.SerializePartialToString() for message in spoiled(one.method.input_type)]
    async with site.undisturbed():
        for request in (*NO_MESSAGES, b"", *requests):
            shown = INSIDE.search(await _reply(site, one, request))
            assert shown is None, (request[:100], shown)
    assert requests


@IN_A_MESH
async def test_no_route_shows_what_is_inside(site: Site) -> None:
    """The same over REST, in bodies and in queries, and with what is no JSON."""
    methods = {one.path.removeprefix("/").replace("/", "."): one for one in OPEN.values()}
    tried = 0
    async with site.undisturbed(), site.rest() as client:
        for route in routes():
            one = methods[route.called]
            headers = {
                TOKEN_HEADER: f"Bearer {site.cluster.token(SUBJECTS[one.role], role=one.role)}",
                "content-type": "application/json",
            }
            requests = [route.request(fields) for fields in map(_fields, spoiled(one.method.input_type)) if fields]
            requests += [(route.path, text) for text in NO_JSON if route.has_body]
            for url, body in requests:
                answer = await client.request(route.method, url, content=body, headers=headers)
                assert answer.status_code not in (500, 502), (route.label, body[:100], answer.text)
                told = {name: value for name, value in answer.headers.items() if name != "server"}
                shown = INSIDE.search(f"{told} {answer.text}")
                assert shown is None, (route.label, url[:200], body[:100], shown)
                tried += 1
    assert tried > 100


def _fields(message: Message) -> dict[str, object]:
    """Returns a message as JSON has it; nothing for one that JSON cannot say, or that no address has room for."""
    try:
        fields = json_format.MessageToDict(message)
    except (json_format.Error, ValueError):
        return {}
    return fields if len(str(fields)) < 10_000 else {}


async def test_no_session_shows_what_is_inside(site: Site) -> None:
    """Neither the reason of a close nor what is refused before it."""
    words = [*FIRST_WORDS, hello("no-token"), hello(site.cluster.token("mallory"), "' OR 1=1; --")]
    async with site.undisturbed():
        for text in words:
            async with opened(site.live_url, site.tls()) as raw:
                await raw.say(text)
                came = await raw.next()
                while not isinstance(came, End):
                    assert INSIDE.search(str(came)) is None, (text, came)
                    assert not came.HasField("welcome"), text
                    came = await raw.next()
                assert INSIDE.search(came.reason) is None, (text, came)


def test_the_search_finds_what_is_inside() -> None:
    """Each kind of what must not be shown is found, and what people write is not."""
    inside = (
        *('Traceback (most recent call last):\n  File "core.py", line 7', "KeyError: 'a'", "<Reader object at 0x7f00>"),
        *("/tmp/hg-1/state/lanes.db", "unix:ingest.sock", "connect to 127.0.0.1:21011", "no such table: rows"),
        *("SELECT id FROM rows", "svc_ingest.core", "[Errno 2]"),
    )
    assert [text for text in inside if INSIDE.search(text) is None] == []
    assert INSIDE.search("event.category: must be one of the registered categories; select another one") is None
