"""Builds the pages that are made from something else: decisions, settings, limits, metrics, faults, OpenAPI ...

    python docs/build.py           write them
    python docs/build.py --check   change nothing; fail, naming each page that is stale

It must not hold text that belongs to one setting or decision: that stands where the thing itself stands.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import itertools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from docs import asyncapi, metrics, openapi
from mesh.envoy.topology import load_topology
from mesh.settings import ServiceSettings, document
from svc_delivery import core as delivery
from svc_delivery import letters, replay
from svc_gateway import hello
from svc_gateway.connect import StreamOptions
from svc_gateway.decisions import Limits as SessionLimits
from svc_gateway.handshake import Options
from svc_ingest.limits import LIMITS
from svc_prefs import core as prefs
from svc_prefs import mutes, topics
from svc_prefs.ports import LogLimits
from svc_presence import core as presence
from tests.faults import catalogue
from tests.scenarios import capabilities

_DAY_US = 24 * 3600 * 1_000_000
DOCS = Path(__file__).resolve().parent
SERVICES = ("ingest", "fanout", "presence", "gateway", "delivery", "prefs")
STATES = ("proposed", "accepted", "superseded", "rejected")
SECTIONS = ("Context", "Decision", "Consequences", "Revisions")


class PageError(Exception):
    """A page cannot be built; the text names the file and what it lacks."""


class Decision(NamedTuple):
    """What the index shows of one decision record."""

    number: str
    title: str
    state: str
    date: str
    file: str


def read_decision(name: str, text: str) -> Decision:
    """Reads the head of a decision record and checks that every section is there.

    Raises:
        PageError: the name, the head or a section is not as CONTRIBUTING.md says.
    """
    number = re.fullmatch(r"(\d{4})-[a-z0-9-]+\.md", name)
    if number is None:
        raise PageError(f"docs/adr/{name}: the name must be NNNN-words-with-dashes.md")
    title = re.match(rf"# {number[1]}: (.+)\n", text)
    state = re.search(r"^- State: (\w+)$", text, re.MULTILINE)
    date = re.search(r"^- Date: (\d{4}-\d\d-\d\d)$", text, re.MULTILINE)
    if title is None or state is None or date is None or state[1] not in STATES:
        head = f'"# {number[1]}: Title", "- State: {"|".join(STATES)}" and "- Date: YYYY-MM-DD"'
        raise PageError(f"docs/adr/{name}: it must begin with {head}")
    for section in SECTIONS:
        if f"\n## {section}\n" not in text:
            raise PageError(f'docs/adr/{name}: the section "## {section}" is missing')
    return Decision(number[1], title[1], state[1], date[1], name)


def decisions_page(folder: Path = DOCS / "adr") -> str:
    """Renders the index of the decision records."""
    files = sorted(path for path in folder.glob("*.md") if path.name != "README.md")
    records = [read_decision(path.name, path.read_text(encoding="utf-8")) for path in files]
    for earlier, later in itertools.pairwise(records):
        if earlier.number == later.number:
            raise PageError(f"docs/adr/{later.file}: number {later.number} is taken by {earlier.file}")
    rows = [
        f"| [{record.number}]({record.file}) | {record.title} | {record.state} | {record.date} |" for record in records
    ]
    head = ["# Decisions", "", "Built by `make docs`; what belongs into a record is in `CONTRIBUTING.md`.", ""]
    return "\n".join([*head, "| Number | Decision | State | Date |", "|---|---|---|---|", *rows, ""])


def settings_page(services: Sequence[str] = SERVICES) -> str:
    """Renders every setting of the services whose settings exist."""
    lines = [
        "# Settings",
        "",
        "Built by `make docs` from each service's `settings.py`. A later source wins: default, `--config FILE` (TOML),",
        "environment, flag.",
        "",
    ]
    for service in services:
        package = f"svc_{service}"
        if importlib.util.find_spec(package) and importlib.util.find_spec(f"{package}.settings"):
            lines += [f"## {service}", "", *_settings_table(f"{package}.settings"), ""]
    return "\n".join(lines)


def _settings_table(module: str) -> list[str]:
    models = [
        value
        for value in vars(importlib.import_module(module)).values()
        if isinstance(value, type) and issubclass(value, ServiceSettings) and value.__module__ == module
    ]
    if len(models) != 1:
        raise PageError(f"{module}: it must define exactly one model of settings, not {len(models)}")
    rows = ["| Setting | Variable | Flag | Kind | Default | Meaning |", "|---|---|---|---|---|---|"]
    for field in document(models[0]):
        names_of_field = (f"`{field.name}`", f"`{field.variable}`", f"`{field.flag}`", field.kind)
        rows.append(
            "| " + " | ".join(_cell(text) for text in (*names_of_field, field.default, field.description)) + " |"
        )
    return rows


def limits_page() -> str:
    """Renders the limits that callers meet, each from the place in the code where it is enforced."""
    lines = [
        "# Limits",
        "",
        "Built by `make docs` from the code that enforces them. What a service refuses it names with every violation;",
        "[errors.md](errors.md) explains the reasons. Numbers that can be set are in [config.md](config.md).",
    ]
    publish = [(one.applies_to, _range(one.least, one.most, one.unit), one.reason) for one in LIMITS]
    for title, source, rows in (
        ("Publish", "`svc_ingest/limits.py`", publish),
        (
            "Inbox and preferences",
            "`svc_delivery/core.py`, `svc_delivery/replay.py` and `svc_prefs/{core,mutes,topics}.py`",
            _list_limits(),
        ),
        (
            "Sessions",
            "`handshake.py`, `connect.py`, `decisions.py` and `hello.py` of `svc_gateway`",
            _session_limits(),
        ),
        ("Edge", "`deploy/topology.toml`", _edge_limits()),
        ("Between services", "`svc_presence/core.py` and `svc_delivery/core.py`", _inner_limits()),
    ):
        lines += ["", f"## {title}", "", f"From {source}.", "", "| What | Allowed | When exceeded |", "|---|---|---|"]
        lines += ["| " + " | ".join(_cell(text) for text in (f"`{what}`", *rest)) + " |" for what, *rest in rows]
    return "\n".join([*lines, ""])


def _list_limits() -> list[tuple[str, str, str]]:
    log = LogLimits()
    return [
        ("page_size", f"0 means {replay.LIST_PAGE}, at most {replay.LARGEST_PAGE}", "more is cut down"),
        ("marks of one BatchMark", _range(1, delivery.MARKS_A_CALL, "marks"), "FIELD_INVALID"),
        ("ids of one mark", _range(1, delivery.REFS_A_MARK, "ids"), "FIELD_INVALID"),
        ("ids of one BatchMark", _range(1, delivery.REFS_A_CALL, "ids"), "FIELD_INVALID"),
        ("mutes of one recipient", _range(0, mutes.LARGEST_MUTES, "mutes"), "FIELD_INVALID"),
        ("a topic's id", _range(1, mutes.TOPIC_CHARACTERS, "characters"), "FIELD_INVALID"),
        ("topics of one Subscribe or Unsubscribe", _range(1, topics.TOPICS_A_CALL, "topics"), "FIELD_INVALID"),
        ("subscriptions of one recipient", _range(0, topics.LARGEST_SUBSCRIPTIONS, "topics"), "FIELD_INVALID"),
        (
            "ListSubscriptions page_size",
            _page(topics.SUBSCRIPTION_PAGE, topics.LARGEST_SUBSCRIPTION_PAGE),
            "more is cut down",
        ),
        (
            "ListSubscribers page_size",
            _page(topics.SUBSCRIBER_PAGE, topics.LARGEST_SUBSCRIBER_PAGE),
            "more is cut down",
        ),
        ("ListWishChanges page_size", _page(prefs.LARGEST_CHANGE_PAGE, prefs.LARGEST_CHANGE_PAGE), "more is cut down"),
        (
            "log of changed wishes",
            f"{log.count:,} changes of {log.age_us // _DAY_US} days",
            "the asker forgets everything",
        ),
        ("BatchResolve", _range(1, prefs.LARGEST_BATCH_ITEMS, "items"), "FIELD_INVALID"),
        ("BatchResolve, recipients in all", _range(1, prefs.LARGEST_BATCH_RECIPIENTS, "recipients"), "FIELD_INVALID"),
    ]


def _session_limits() -> list[tuple[str, str, str]]:
    options, session = Options(), SessionLimits()
    return [
        ("opening request with headers", _range(1, options.head_limit, "bytes"), "HTTP 431"),
        ("opening handshake", _range(0, options.open_timeout, "seconds"), "the connection ends"),
        ("one WebSocket message", _range(1, options.max_message, "bytes"), "close code 1009"),
        ("one message over gRPC", _range(1, StreamOptions(stream_limit=1).max_message, "bytes"), "close code 4503"),
        ("fragments of one message", _range(1, options.max_fragments, "frames"), "close code 1008"),
        ("WebSocket pings and pongs", _range(0, options.control_rate, "per second"), "close code 1008"),
        ("wait for hello", _range(0, session.hello_timeout, "seconds"), "close code 4002"),
        ("hello.client_name", _range(0, hello.LONGEST_CLIENT_NAME, "characters"), "close code 4503"),
        ("hello.received_refs", _range(0, hello.LARGEST_REFS, "ids"), "close code 4503"),
        ("hello.unconfirmed_marks", _range(0, hello.LARGEST_MARKS, "marks"), "close code 4503"),
        ("mark.refs", _range(1, hello.LARGEST_REFS, "ids"), "FIELD_INVALID"),
        ("mark frames that are not durable yet", _range(0, session.pending_count, "frames"), "OVERLOADED"),
        ("topic_ids of a frame", _range(1, hello.LARGEST_TOPICS, "topics"), "FIELD_INVALID"),
        ("frames about topics that are not durable yet", _range(0, session.topics_count, "frames"), "OVERLOADED"),
        ("refused frames of one session", _range(0, session.refused_count, "frames"), "close code 4503"),
        ("unread bytes in the server's transport", _range(0, options.high_water, "bytes"), "the session is behind"),
        ("being behind", _range(0, session.behind_timeout, "seconds"), "close code 4002"),
        ("silence", _range(0, 2 * session.heartbeat_interval, "seconds"), "close code 4002"),
    ]


def _edge_limits() -> list[tuple[str, str, str]]:
    edge = load_topology(DOCS.parent / "deploy" / "topology.toml").edge
    limits, rates = edge.limits, edge.rates
    return [
        ("REST body", _range(0, limits.body_bytes, "bytes"), "HTTP 413"),
        ("headers", _range(0, limits.header_kib, "KiB"), "HTTP 431"),
        ("headers of one request", _range(0, limits.header_count, "headers"), "HTTP 431"),
        ("connections", _range(0, limits.connections, "connections"), "the connection ends"),
        ("streams of one connection", _range(0, limits.streams_per_connection, "streams"), "they wait"),
        *(
            (f"{name}, from one address and in all", f"{rate.address:,} and {rate.total:,} per second", "HTTP 429")
            for name, rate in (
                ("a method of producers", rates.producer),
                ("a method of recipients", rates.recipient),
                ("opening handshakes", rates.websocket),
            )
        ),
    ]


def _inner_limits() -> list[tuple[str, str, str]]:
    return [
        ("ReportSessions", _range(0, presence.LARGEST_REPORT, "entries"), "FIELD_INVALID"),
        ("BatchGetPresence", _range(1, presence.LARGEST_LOOK_UP, "recipients"), "FIELD_INVALID"),
        ("ListNodes page_size", f"0 means {presence.LARGEST_PAGE:,}, at most that", "more is cut down"),
        ("BatchReplayInbox", _range(1, delivery.REPLAYS_A_CALL, "requests"), "FIELD_INVALID"),
        ("ReplayInbox received_refs", _range(0, delivery.RECEIVED_REFS, "ids"), "FIELD_INVALID"),
        ("BatchGetHeads", _range(1, delivery.KEYS_A_CALL, "recipients"), "FIELD_INVALID"),
        ("ListDeadLetters page_size", _page(letters.LETTERS_A_PAGE, letters.LARGEST_PAGE), "more is cut down"),
        ("RedriveDeadLetters", _range(1, letters.LETTERS_A_CALL, "ids"), "FIELD_INVALID"),
        ("retries of a delivery", ", ".join(f"after {delay:g} s" for delay in delivery.RETRY_DELAYS), ""),
    ]


def _range(least: float, most: float, unit: str) -> str:
    return f"{least:,g} to {most:,.0f} {unit}" if most == int(most) else f"{least:,g} to {most:g} {unit}"


def _page(default: int, most: int) -> str:
    return f"0 means {default:,}, at most {most:,}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


PAGES: Mapping[str, Callable[[], str]] = {
    "adr/README.md": decisions_page,
    "capabilities.md": capabilities.page,
    "config.md": settings_page,
    "faults.md": catalogue.page,
    "limits.md": limits_page,
    "metrics.md": lambda: metrics.page(SERVICES),
    "openapi.json": openapi.page,
    "asyncapi.json": asyncapi.page,
}


def stale(folder: Path = DOCS) -> list[str]:
    """Names the pages that are not what their sources make."""
    return [name for name, render in PAGES.items() if _read(folder / name) != render()]


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(description="Build the generated pages.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail when a page is stale")
    check = parser.parse_args(argv).check
    try:
        pages = stale()
        if not check:
            for name in pages:
                (DOCS / name).write_text(PAGES[name](), encoding="utf-8")
    except (PageError, LookupError) as error:
        print(error, file=sys.stderr)
        return 1
    if check and pages:
        print("stale, run `make docs` and commit:", *(f"docs/{name}" for name in pages), sep="\n  ", file=sys.stderr)
        return 1
    print(f"docs: {len(PAGES)} pages fresh" if not pages else f"docs: wrote {', '.join(pages)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
