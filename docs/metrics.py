"""Every metric of every service as a table, read from the registries that the services fill.

A metric is declared where it is counted (`svc_*/metrics.py`, `mesh/telemetry.py`, `mesh/guard.py`) with its name, its
labels and what it means; nothing of it stands here.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from mesh.clock import SystemClock
from mesh.guard import Guard
from mesh.identity import Identifier
from mesh.telemetry import Telemetry

_UNITS: Final[Mapping[str, str]] = {"seconds": "seconds", "bytes": "bytes"}
_ENDINGS: Final[Mapping[str, str]] = {"counter": "_total", "gauge": "", "histogram": ""}
_HEAD: Final = ("| Name | Kind | Unit | Labels | Meaning |", "|---|---|---|---|---|")


class Row(NamedTuple):
    """One metric."""

    name: str
    kind: str
    unit: str
    labels: tuple[str, ...]
    meaning: str


def rows_of(service: str) -> list[Row]:
    """Returns every metric that a process of this service exports, in the order of their declaration."""
    telemetry = Telemetry(service)
    Guard(
        access={},
        direct=True,
        identifier=Identifier(direct=True, trust_domain="", tokens=None),
        telemetry=telemetry,
        clock=SystemClock(),
        default_deadline=0.0,
    )
    importlib.import_module(f"svc_{service}.metrics").Metrics(telemetry)
    return [_row(collector, metric) for collector, metric in _metrics(telemetry.registry)]


def page(services: Sequence[str]) -> str:
    """Renders the page."""
    tables = {service: rows_of(service) for service in services}
    shared = _shared(tables)
    lines = [
        "# Metrics",
        "",
        "Built by `make docs` from the services' own registries. Each process answers `/metrics` in Prometheus' text",
        "form on a loopback port of its own ([operate.md](operate.md)); Envoys answer beside it with their own.",
        "",
        "Counters only rise, and begin again at 0 with the process. A histogram `x` is exported as `x_bucket`, `x_sum`",
        "and `x_count`. Labels have few values: never an id of a recipient, a device, an event or a session.",
        "",
        "## Every service",
        "",
        "`<service>` stands for the service's name. What begins with `process_` is measured by the operating system.",
        "",
        *_table(shared),
    ]
    for service, rows in tables.items():
        own = [row for row in rows if _general(row, service) not in shared]
        lines += ["", f"## {service}", "", *_table(own)]
    return "\n".join([*lines, ""])


def _shared(tables: Mapping[str, Sequence[Row]]) -> list[Row]:
    """Returns what all services have, with the service's name left open."""
    (first, rows), *others = tables.items()
    general = [_general(row, first) for row in rows]
    return [row for row in general if all(row in {_general(o, name) for o in theirs} for name, theirs in others)]


def _general(row: Row, service: str) -> Row:
    return row._replace(name=row.name.replace(f"heliograph_{service}_", "heliograph_<service>_", 1))


def _table(rows: Sequence[Row]) -> list[str]:
    return [*_HEAD, *(_line(row) for row in rows)]


def _line(row: Row) -> str:
    labels = ", ".join(f"`{one}`" for one in row.labels)
    return f"| `{row.name}` | {row.kind} | {row.unit} | {labels} | {row.meaning} |"


def _metrics(registry: CollectorRegistry) -> Iterator[tuple[Collector, Metric]]:
    # A registry tells its metrics but not who declared them; labels are known to the declaration alone.
    for collector in registry._collector_to_names:
        for metric in collector.collect():
            yield collector, metric


def _row(collector: Collector, metric: Metric) -> Row:
    labels: Sequence[str] = getattr(collector, "_labelnames", ())
    if not labels and metric.type != "histogram":
        labels = sorted({name for sample in metric.samples for name in sample.labels})
    name = metric.name + _ENDINGS[metric.type]
    unit = next((unit for ending, unit in _UNITS.items() if metric.name.endswith(ending)), "count")
    return Row(name, metric.type, unit, tuple(labels), metric.documentation.replace("|", "\\|").rstrip(".") + ".")
