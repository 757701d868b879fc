"""What every process writes down: each line of a service in one schema, and never what was said or who may say it."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from heliograph.delivery.v1 import inbox_service_pb2, inbox_service_pb2_grpc
from heliograph.type.v1.notification_pb2 import MarkKind
from heliograph_client import InvalidArgument
from tests.support.apps import Apps
from tests.support.cluster import Cluster
from tests.support.raw_socket import hello, opened
from tests.support.shapes import BOTH, name_of, running
from tests.support.wait import until

pytestmark = pytest.mark.timeout(90)

_SERVICES: Final = ("ingest", "fanout", "prefs", "presence", "delivery", "gateway")
_LEVELS: Final = {"debug", "info", "warning", "error", "critical"}
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
_EVENT: Final = re.compile(r"[a-z][a-z0-9_]*")
# In what people read, and in what proves who they are; a word of its own for each, to say which one was written.
_SECRETS: Final = {
    place: f"canary{place}7d41" for place in ("title", "body", "link", "data", "refused", "token", "frame", "header")
}


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=BOTH)
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    """An installation that writes down as much as it can."""
    levels = {f"{service.upper()}_LOG_LEVEL": "debug" for service in _SERVICES}
    async with running(request.param, trace=True, settings=levels) as cluster:
        yield cluster


async def deliver(cluster: Cluster) -> list[str]:
    """Publishes to somebody who is there, reads, marks, and comes back; returns the tokens that were shown."""
    apps, token = Apps(cluster), cluster.token("reader")
    async with apps.device("reader", token=token) as phone, cluster.publisher() as publisher:
        await phone.ready()
        receipt = await publisher.publish(
            category="general",
            to=["reader", "absent"],
            title=_SECRETS["title"],
            body=_SECRETS["body"],
            link=f"https://example.com/{_SECRETS['link']}",
            data={"secret": _SECRETS["data"]},
        )
        await phone.has(receipt.event_id)
        await phone.has_confirmed(await phone.mark(MarkKind.MARK_KIND_READ, receipt.event_id))
        assert phone.titles == [_SECRETS["title"]]
    assert [item.notification.notification_id for item in (await apps.list_inbox("reader")).items] == [receipt.event_id]
    return [token]


async def be_refused(cluster: Cluster) -> None:
    """Says what is not accepted: an event, tokens, frames."""
    apps, bad = Apps(cluster), f"{_SECRETS['token']}.{_SECRETS['token']}.{_SECRETS['token']}"
    async with cluster.publisher() as publisher:
        with pytest.raises(InvalidArgument):
            await publisher.publish(category="general", to="reader", title=_SECRETS["refused"] * 50)
    async with apps.device("reader", token=bad) as stranger:
        assert await stranger.is_closed() == 4501
    async with opened(apps.url(), apps.context) as raw:
        await raw.say(hello(cluster.token("reader")))
        await raw.until("replayed")
        await raw.say('{"' + _SECRETS["frame"] + '": nothing}')
        await raw.until("refused")
    metadata = (("authorization", f"Bearer {bad}"), ("x-heliograph-unknown", _SECRETS["header"]))
    async with _door(cluster, "delivery") as channel:
        method = inbox_service_pb2_grpc.InboxServiceStub(channel).ListInbox
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await method(inbox_service_pb2.ListInboxRequest(), timeout=10.0, metadata=metadata)
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


def _door(cluster: Cluster, service: str) -> grpc.aio.Channel:
    running = cluster.running
    if not running.edge:
        return grpc.aio.insecure_channel(f"unix:{running.run_dir}/{service}.sock")
    roots = (cluster.place.certs / "ca" / "bundle.pem").read_bytes()
    return grpc.aio.secure_channel(running.edge, grpc.ssl_channel_credentials(roots))


async def disturb(cluster: Cluster) -> None:
    """Lets processes fail and stop, which is when most is written."""
    before = await cluster.kill("delivery")
    await cluster.wait_restarted(before)
    before = cluster.send(name_of(cluster, "gateway-1"), signal.SIGTERM)
    await until(lambda: cluster.process(before.name).pid != before.pid, 12.0, "the node has ended")
    await cluster.wait_restarted(before)
    await cluster.publish("reader", "absent", title=_SECRETS["title"])


async def test_every_line_is_in_one_schema_and_nothing_that_was_said_is_in_any(cluster: Cluster) -> None:
    """Time, level, service, process and event on each line of each service; no content and no token in any file."""
    tokens = await deliver(cluster)
    await be_refused(cluster)
    await disturb(cluster)
    await cluster.stop()
    faults = [fault for name in _names(cluster) for fault in _faults(cluster.place.log / f"{name}.log", name)]
    assert faults == []
    written = {path: path.read_text(errors="replace") for path in sorted(cluster.place.log.iterdir())}
    written[Path("up.out")] = cluster.output()
    assert len(written) > len(_SERVICES)
    # A token's signature is its proof; what stands before it may be known.
    signatures = {f"signature {number}": token.rpartition(".")[2] for number, token in enumerate(tokens)}
    found = [
        f"{path.name}: {what}"
        for path, text in written.items()
        for what, secret in {**_SECRETS, **signatures}.items()
        if secret in text
    ]
    assert found == []
    # Something was written about all of it.
    said = {line["event"] for name in _names(cluster) for line in _lines(cluster.place.log / f"{name}.log")}
    assert {"ready", "stopping", "stopped", "path", "session_opened", "session_closed", "link_opened"} <= said


def _names(cluster: Cluster) -> list[str]:
    return [name for name, one in cluster.running.processes.items() if one.kind == "service"]


def _lines(path: Path) -> Iterator[dict[str, object]]:
    for text in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            yield json.loads(text)


def _faults(path: Path, process: str) -> list[str]:
    """What is wrong with the lines of a service's log."""
    texts = path.read_text(encoding="utf-8").splitlines()
    faults = [] if texts else [f"{path.name}: empty"]
    for text in texts:
        try:
            line = json.loads(text)
        except ValueError:
            faults.append(f"{path.name}: no JSON: {text}")
            continue
        service = "gateway" if process.startswith("gw-") else process
        right = (
            list(line)[:5] == ["time", "level", "service", "process", "event"]
            and _TIME.fullmatch(line["time"]) is not None
            and line["level"] in _LEVELS
            and (line["service"], line["process"]) == (service, process)
            and _EVENT.fullmatch(line["event"]) is not None
        )
        faults += [] if right else [f"{path.name}: {text}"]
    return faults
