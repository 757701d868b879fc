"""The sending half of a load: publishes at a pace, in an open loop, in a process of its own.

Run as `python -m bench.publishers`, told what to do by one JSON line on standard input; prints the result as a JSON
line. Sends are scheduled by intended time; the time travels in the content, so a stall makes the latencies longer
instead of the sends fewer.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias, TypeVar

import grpc
import grpc.aio
import msgspec

from heliograph.ingest.v1 import ingest_service_pb2 as pb
from heliograph.type.v1 import event_pb2, notification_pb2
from mesh import status
from mesh.ids import to_text, uuid7

Res = TypeVar("Res")
_Method: TypeAlias = grpc.aio.UnaryUnaryMultiCallable[bytes, Res]

_TIMEOUT = 30.0
_ERRORS = 5
_SERVICE = pb.DESCRIPTOR.services_by_name["IngestService"].full_name
_REQUESTS = pb.BatchPublishRequest.REQUESTS_FIELD_NUMBER
_EVENT = pb.PublishRequest.EVENT_FIELD_NUMBER
_REQUEST_ID = pb.PublishRequest.REQUEST_ID_FIELD_NUMBER
_CATEGORY = event_pb2.Event.CATEGORY_FIELD_NUMBER
_AUDIENCE = event_pb2.Event.AUDIENCE_FIELD_NUMBER
_CONTENT = event_pb2.Event.CONTENT_FIELD_NUMBER
_BODY = notification_pb2.Content.BODY_FIELD_NUMBER
_RECIPIENT = event_pb2.Audience.RECIPIENT_IDS_FIELD_NUMBER
_TOPIC = event_pb2.Audience.TOPIC_IDS_FIELD_NUMBER


class Order(msgspec.Struct, frozen=True):
    """What the process is told.

    Attributes:
        target: gRPC target.
        metadata: headers of each call.
        ca_file: the certificate authority; empty: plain.
        cert_file: the producer's certificate.
        key_file: its key.
        server_name: for TLS.
        recipients: ids to publish to, in turn.
        rate: notifications a second.
        audience: recipients of one event; with topics, subscribers of each.
        batch: events of one call; 1 uses Publish.
        seconds: for how long.
        category: of every event, unless there is a mix.
        mix: shares of categories, drawn event by event.
        phases: (seconds, rate) one after the other, instead of `seconds` and `rate`.
        timeout: seconds a call may take.
        topics: topics to publish to, in turn, instead of recipients.
        padding: characters of three bytes behind the time in the body: nobody who reads them may be measured.
    """

    target: str
    metadata: list[tuple[str, str]]
    ca_file: str
    cert_file: str
    key_file: str
    server_name: str
    recipients: list[str]
    rate: float
    audience: int
    batch: int
    seconds: float
    category: str = "general"
    mix: dict[str, float] = {}
    phases: list[tuple[float, float]] = []
    timeout: float = _TIMEOUT
    topics: list[str] = []
    padding: int = 0


class Result(msgspec.Struct, frozen=True):
    """What was sent.

    Attributes:
        published: events that were answered OK.
        due: notifications that these make.
        refused: events that were refused or failed.
        calls: µs from the intended time of a call to its answer.
        errors: the first few failures.
        began: µs of CLOCK_MONOTONIC, when the first call was due.
        seconds: for each second of the run, by category, events by what became of them: "accepted" or a reason.
    """

    published: int
    due: int
    refused: int
    calls: list[int]
    errors: list[str]
    began: int = 0
    seconds: list[dict[str, dict[str, int]]] = []


class Publishers:
    """Sends on schedule, without waiting for answers."""

    def __init__(self, order: Order, channel: grpc.aio.Channel) -> None:
        self._order = order
        self._publish: _Method[pb.PublishResponse] = channel.unary_unary(
            f"/{_SERVICE}/Publish", response_deserializer=pb.PublishResponse.FromString
        )
        self._publish_batch: _Method[pb.BatchPublishResponse] = channel.unary_unary(
            f"/{_SERVICE}/BatchPublish", response_deserializer=pb.BatchPublishResponse.FromString
        )
        self._writer = RequestWriter()
        self._recipients = [wire_field(_RECIPIENT, recipient.encode()) for recipient in order.recipients]
        self._topics = itertools.cycle([wire_field(_TOPIC, topic.encode()) for topic in order.topics])
        self._next = 0
        self._published = 0
        self._refused = 0
        self._calls: list[int] = []
        self._errors: list[str] = []
        self._began = 0
        # (second, category, what became of it) -> events
        self._tally: Counter[tuple[int, str, str]] = Counter()
        self._categories = self._draw()

    async def run(self) -> Result:
        """Publishes for the time that was asked for, then waits for the last answers."""
        self._began = time.monotonic_ns() // 1_000 + 50_000
        async with asyncio.TaskGroup() as group:
            for intended in self._schedule():
                ahead = intended - time.monotonic_ns() // 1_000
                if ahead > 0:
                    await asyncio.sleep(ahead / 1_000_000)
                group.create_task(self._send(intended))
        due = self._published * self._order.audience
        return Result(self._published, due, self._refused, self._calls, self._errors, self._began, self._seconds())

    def _schedule(self) -> Iterator[int]:
        """Yields when each call is due."""
        order = self._order
        start = float(self._began)
        for seconds, rate in order.phases or [(order.seconds, order.rate)]:
            interval = order.batch * order.audience / rate
            for number in range(round(seconds / interval)):
                yield round(start + number * interval * 1_000_000)
            start += seconds * 1_000_000

    def _draw(self) -> Iterator[str]:
        mix = self._order.mix
        if not mix:
            return itertools.repeat(self._order.category)
        source = random.Random(1)
        names, shares = list(mix), list(mix.values())
        return itertools.chain.from_iterable(iter(lambda: source.choices(names, shares, k=1_000), None))

    def _seconds(self) -> list[dict[str, dict[str, int]]]:
        last = max((second for second, _, _ in self._tally), default=-1)
        found: list[dict[str, dict[str, int]]] = [{} for _ in range(last + 1)]
        for (second, category, outcome), count in self._tally.items():
            found[second].setdefault(category, {})[outcome] = count
        return found

    async def _send(self, intended: int) -> None:
        order = self._order
        categories = [next(self._categories) for _ in range(order.batch)]
        requests = [
            self._writer.request(category, self._audience(), intended, padding=order.padding) for category in categories
        ]
        try:
            if order.batch == 1:
                await self._publish(requests[0], timeout=order.timeout, metadata=order.metadata)
                outcomes = ["accepted"]
            else:
                batch = b"".join([wire_field(_REQUESTS, request) for request in requests])
                response = await self._publish_batch(batch, timeout=order.timeout, metadata=order.metadata)
                outcomes = [result.refused.reason or "accepted" for result in response.results]
                if len(self._errors) < _ERRORS:
                    self._errors += [one.refused.message for one in response.results if one.refused.reason]
        except grpc.aio.AioRpcError as error:
            outcomes = [status.from_call(error).reason or error.code().name] * order.batch
            self._errors.append(f"{error.code().name}: {error.details()}")
        del self._errors[_ERRORS:]
        second = (intended - self._began) // 1_000_000
        self._tally.update(zip(itertools.repeat(second), categories, outcomes))
        accepted = outcomes.count("accepted")
        self._published += accepted
        self._refused += len(outcomes) - accepted
        self._calls.append(time.monotonic_ns() // 1_000 - intended)

    def _audience(self) -> list[bytes]:
        if self._order.topics:
            return [next(self._topics)]
        count, first = len(self._recipients), self._next
        self._next += self._order.audience
        return [self._recipients[(first + index) % count] for index in range(self._order.audience)]


class RequestWriter:
    """Writes requests without making messages: the load must cost less than what it loads."""

    def __init__(self) -> None:
        content = notification_pb2.Content(
            title="Build 4711 of the main branch has passed", link="https://builds.example.com/4711"
        )
        self._content = content.SerializeToString()
        self._random = random.Random()

    def request(self, category: str, audience: Iterable[bytes], intended: int, *, padding: int = 0) -> bytes:
        """Returns a serialised `PublishRequest`.

        Args:
            category: of the event.
            audience: fields of `Audience`.
            intended: goes into the body.
            padding: characters of three bytes behind it.
        """
        body = (str(intended) + "☂" * padding).encode()
        event = (
            wire_field(_CATEGORY, category.encode())
            + wire_field(_AUDIENCE, b"".join(audience))
            + wire_field(_CONTENT, self._content + wire_field(_BODY, body))
        )
        request_id = to_text(uuid7(time.time_ns() // 1_000_000, self._random.randbytes(10)))
        return wire_field(_EVENT, event) + wire_field(_REQUEST_ID, request_id.encode())


def wire_field(number: int, value: bytes) -> bytes:
    """Returns a field of bytes, text or a message as it is serialised."""
    size, length = len(value), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return bytes((number << 3 | 2,)) + length + value


def _channel(order: Order) -> grpc.aio.Channel:
    options = [("grpc.ssl_target_name_override", order.server_name)] if order.server_name else []
    if not order.ca_file:
        return grpc.aio.insecure_channel(order.target, options=options)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=Path(order.ca_file).read_bytes(),
        private_key=Path(order.key_file).read_bytes(),
        certificate_chain=Path(order.cert_file).read_bytes(),
    )
    return grpc.aio.secure_channel(order.target, credentials, options=options)


async def run() -> None:
    """Publishes and prints the result."""
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    channel = _channel(order)
    async with channel:
        await channel.channel_ready()
        result = await Publishers(order, channel).run()
    sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
    sys.stdout.flush()


def main() -> None:
    """Runs the process."""
    with contextlib.suppress(ImportError):
        import uvloop

        uvloop.install()
    asyncio.run(run())


if __name__ == "__main__":
    main()
