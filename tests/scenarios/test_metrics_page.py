"""The page of metrics names what the processes export, as they export it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from svc_gateway.freezer import STEP
from tests.meta.tree import ROOT
from tests.support.raw_socket import hello, opened
from tests.support.site import IN_EVERY_SHAPE, Site
from tests.support.wait import until

_ROW = re.compile(r"^\| `([a-z_<>]+)` \| (\w+) \| \w+ \| ([^|]*) \|", re.MULTILINE)
_AT_ONCE = 25
_ROUNDING_S = 1e-9
_PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
# Labels that name somebody or something single: endless values, and nobody's business.
_IDS = re.compile(r"recipient|device|event_id|session|notification|subject|token")


def _documented(service: str) -> dict[str, tuple[str, set[str]]]:
    """Returns kind and labels of each metric that the page gives this service."""
    sections = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", _PAGE, re.MULTILINE | re.DOTALL))
    rows = _ROW.findall(sections["Every service"] + sections[service])
    return {
        name.replace("<service>", service): (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows
    }


def _exported(text: str) -> Iterator[tuple[str, str, set[str]]]:
    for family in text_string_to_metric_families(text):
        # Beside each counter and histogram the library exports when it was made.
        if not family.name.endswith("_created"):
            labels = {name for sample in family.samples for name in sample.labels} - {"le"}
            yield family.name + ("_total" if family.type == "counter" else ""), family.type, labels


Samples = dict[tuple[str, str], float]


async def _samples(site: Site, process: str) -> Samples:
    """Returns the numbers that a process exports without labels, or by the value of their only one."""
    argv = site.cluster.process(process).argv
    async with httpx2.AsyncClient(trust_env=False) as client:
        text = (await client.get(f"http://127.0.0.1:{argv[argv.index('--metrics-port') + 1]}/metrics")).text
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(one.name, "".join(one.labels.values())): one.value for one in found if len(one.labels) < 2}


@IN_EVERY_SHAPE
async def test_every_process_says_how_its_loop_and_its_collector_do(site: Site) -> None:
    """The loop is measured on and on; collections are counted by generation, and their times agree with the counts."""
    services = {name: one.service for name, one in site.cluster.running.processes.items() if one.kind == "service"}
    for process, service in services.items():
        prefix = f"heliograph_{service}"
        first = await _samples(site, process)
        lag = (f"{prefix}_loop_lag_seconds_count", "")

        async def grows(process: str = process, lag: tuple[str, str] = lag, before: float = first[lag]) -> bool:
            return (await _samples(site, process))[lag] > before

        await until(grows, 5.0, f"the loop of {process} is measured again")
        pauses = [first[f"{prefix}_collection_pauses_total", generation] for generation in "012"]
        seconds = first[f"{prefix}_collection_pause_seconds_total", ""]
        longest = first[f"{prefix}_collection_pause_max_seconds", ""]
        assert (seconds > 0.0) == (longest > 0.0) == (sum(pauses) > 0), process
        assert longest <= seconds <= longest * sum(pauses) + _ROUNDING_S, process


async def test_a_gateway_keeps_its_collector_away_from_the_sessions_that_it_has(site: Site) -> None:
    """Once enough have come to a node it collects and freezes what is there, and both numbers say so."""
    nodes = site.cluster.nodes
    counted, frozen = "heliograph_gateway_collection_pauses_total", "heliograph_gateway_frozen_sessions_count"
    before = {node: await _samples(site, node) for node in nodes}

    async def come(number: int) -> None:
        async with opened(site.live_url, site.tls()) as session:
            await session.say(hello(site.cluster.token("crowd"), f"device-{number}"))
            await session.until("welcome")

    async with site.undisturbed():
        # The edge shares them out among the nodes: enough for one of them at least.
        for first in range(0, len(nodes) * STEP, _AT_ONCE):
            await asyncio.gather(*(come(number) for number in range(first, first + _AT_ONCE)))
        after: dict[str, Samples] = {}

        async def is_frozen() -> bool:
            after.update({node: await _samples(site, node) for node in nodes})
            return any(after[node][frozen, ""] >= before[node][frozen, ""] + STEP for node in nodes)

        await until(is_frozen, 10.0, "the sessions of a node to be frozen")
    froze = [node for node in nodes if after[node][frozen, ""] > before[node][frozen, ""]]
    for node in froze:
        assert after[node][counted, "2"] > before[node][counted, "2"]
        assert after[node]["heliograph_gateway_collection_pause_seconds_total", ""] > 0.0


@IN_EVERY_SHAPE
async def test_every_process_exports_what_the_page_says(site: Site) -> None:
    """Name, kind and labels agree, nothing is missing on either side, and no label is an id."""
    services = {one.service: one for one in site.cluster.running.processes.values() if one.kind == "service"}
    assert len(services) == 6
    async with httpx2.AsyncClient(trust_env=False) as client:
        for service, process in services.items():
            port = process.argv[process.argv.index("--metrics-port") + 1]
            text = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
            documented = _documented(service)
            exported = {name: (kind, labels) for name, kind, labels in _exported(text)}
            assert set(exported) == set(documented), service
            for name, (kind, labels) in exported.items():
                assert kind == documented[name][0], name
                assert labels <= documented[name][1], name
                assert not any(_IDS.search(label) for label in labels), name
