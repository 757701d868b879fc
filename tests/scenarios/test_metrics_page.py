"""The page of metrics names what the processes export, as they export it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from tests.meta.tree import ROOT
from tests.support.site import Site

_ROW = re.compile(r"^\| `([a-z_<>]+)` \| (\w+) \| \w+ \| ([^|]*) \|", re.MULTILINE)
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
