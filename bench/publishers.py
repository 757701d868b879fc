"""The sending half of a load: publishes at a pace, in an open loop, in a process of its own.

Run as `python -m bench.publishers`, told what to do by one JSON line on standard input; prints the result as a JSON
line. Sends are scheduled by intended time; the time travels in the content, so a stall makes the latencies longer
instead of the sends fewer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path

import grpc
import grpc.aio
import msgspec

from heliograph.ingest.v1 import ingest_service_pb2 as pb
from heliograph.ingest.v1 import ingest_service_pb2_grpc as pb_grpc
from heliograph.type.v1 import event_pb2, notification_pb2
from mesh.ids import to_text, uuid7

_TIMEOUT = 30.0


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
        audience: recipients of one event.
        batch: events of one call; 1 uses Publish.
        seconds: for how long.
        category: of every event.
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


class Result(msgspec.Struct, frozen=True):
    """What was sent.

    Attributes:
        published: events that were answered OK.
        due: notifications that these make.
        refused: events that were refused or failed.
        calls: µs from the intended time of a call to its answer.
        errors: the first few failures.
    """

    published: int
    due: int
    refused: int
    calls: list[int]
    errors: list[str]


class Publishers:
    """Sends on schedule, without waiting for answers."""

    def __init__(self, order: Order, stub: pb_grpc.IngestServiceStub) -> None:
        self._order = order
        self._stub = stub
        self._next = 0
        self._published = 0
        self._refused = 0
        self._calls: list[int] = []
        self._errors: list[str] = []

    async def run(self) -> Result:
        """Publishes for the time that was asked for, then waits for the last answers."""
        order = self._order
        interval = order.batch * order.audience / order.rate
        count = round(order.seconds / interval)
        began = time.monotonic_ns() // 1_000 + 50_000
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                intended = began + round(number * interval * 1_000_000)
                ahead = intended - time.monotonic_ns() // 1_000
                if ahead > 0:
                    await asyncio.sleep(ahead / 1_000_000)
                group.create_task(self._send(intended))
        return Result(self._published, self._published * order.audience, self._refused, self._calls, self._errors[:5])

    async def _send(self, intended: int) -> None:
        order = self._order
        requests = [self._request(intended) for _ in range(order.batch)]
        try:
            if order.batch == 1:
                await self._stub.Publish(requests[0], timeout=_TIMEOUT, metadata=order.metadata)
                self._published += 1
            else:
                response = await self._stub.BatchPublish(
                    pb.BatchPublishRequest(requests=requests), timeout=_TIMEOUT, metadata=order.metadata
                )
                for result in response.results:
                    if result.HasField("accepted"):
                        self._published += 1
                    else:
                        self._refused += 1
                        self._errors.append(result.refused.message)
        except grpc.aio.AioRpcError as error:
            self._refused += order.batch
            self._errors.append(f"{error.code().name}: {error.details()}")
        self._calls.append(time.monotonic_ns() // 1_000 - intended)

    def _request(self, intended: int) -> pb.PublishRequest:
        order = self._order
        audience = [order.recipients[(self._next + index) % len(order.recipients)] for index in range(order.audience)]
        self._next += order.audience
        return pb.PublishRequest(
            request_id=to_text(uuid7(time.time_ns() // 1_000_000, os.urandom(10))),
            event=event_pb2.Event(
                category=order.category,
                audience=event_pb2.Audience(recipient_ids=audience),
                content=notification_pb2.Content(
                    title="Build 4711 of the main branch has passed",
                    body=str(intended),
                    link="https://builds.example.com/4711",
                ),
            ),
        )


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
        result = await Publishers(order, pb_grpc.IngestServiceStub(channel)).run()
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
