"""What the demo says: lines with the time, the tables at the end, and commands to paste.

Must not measure or decide anything.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.demo_ledger import Counts, Evidence, Phase
from bench.measures import Spread
from heliograph_cli.record import UpRecord

_WIDTH = 100


class Places(msgspec.Struct, frozen=True):
    """How many sessions each node had at one moment."""

    moment: str
    sessions: Mapping[str, int]


class Teller:
    """Tells what happens, each line with the seconds since the start."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        # Without a terminal nobody says how wide lines may be.
        self._console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def say(self, text: str) -> None:
        """Tells one thing."""
        self._console.print(f"[dim]{self.seconds:6.1f} s[/]  {escape(text)}", soft_wrap=True)

    def head(self, text: str) -> None:
        """Tells what this is all about."""
        self._console.print(f"[bold]{escape(text)}[/]", soft_wrap=True)

    def plain(self, text: str = "") -> None:
        """Writes text as it is, so that it can be pasted."""
        self._console.file.write(text + "\n")
        self._console.file.flush()

    def table(self, table: Table) -> None:
        """Shows a table."""
        self._console.print()
        self._console.print(table)

    def verdict(self, faults: Sequence[str]) -> None:
        """Tells the outcome."""
        self._console.print()
        if faults:
            self._console.print(f"[bold red]FAILED: {escape('; '.join(faults))}[/]", soft_wrap=True)
        else:
            text = "OK: nothing was lost, nothing was shown twice, wishes were respected, the dead letter came back"
            self._console.print(f"[bold green]{text}[/]", soft_wrap=True)


def counts_table(
    counts: Counts, evidence: Evidence, *, duplicates: int, replayed: int, rows: int, missing_rows: int
) -> Table:
    """Returns the table of numbers, each with what it means."""
    ways = ", ".join(f"{count} {way}" for way, count in counts.by_way.items())
    table = Table(title="What became of it", title_justify="left")
    for column, justify in (("", "left"), ("count", "right"), ("meaning", "left")):
        table.add_column(column, justify="right" if justify == "right" else "left")
    lines = (
        ("published", counts.published, f"events answered OK ({ways})"),
        ("due", counts.due, f"notifications, {counts.due_by_topic:,} of them through topics alone"),
        ("excluded", counts.excluded, "kept back: the event left the listener out"),
        (
            "suppressed by wish",
            counts.suppressed,
            f"kept back by a mute; Explain says of one: {evidence.explained or 'nothing'}",
        ),
        ("delivered", counts.delivered, f"of them, those shown to their listener ({replayed} of them by replay)"),
        ("acked", counts.acked, "of them, those whose ack is stored"),
        ("duplicates on the wire", duplicates, "frames that a listener's SDK had already and dropped"),
        ("duplicates shown", counts.shown_twice, "handed to an application a second time: must be 0"),
        ("lost", counts.lost, "due, and shown to nobody: must be 0"),
        ("redriven", int(evidence.redriven), f"dead letter ({evidence.buried}), then shown and acked: must be 1"),
        ("inbox rows checked", rows, f"listed over REST; {missing_rows} are missing: must be 0"),
    )
    for name, count, meaning in lines:
        wrong = (name in ("duplicates shown", "lost") and count) or (name.startswith("inbox") and missing_rows)
        style = "bold red" if wrong else "bold" if name in ("duplicates shown", "lost") else ""
        table.add_row(name, f"{count:,}", meaning, style=style)
    return table


def latency_table(spreads: Mapping[Phase, Spread]) -> Table:
    """Returns the table of times from the intended publish to the stored ack."""
    table = Table(title="From publish to stored ack, in milliseconds", title_justify="left")
    table.add_column("published")
    for column in ("notifications", "p50", "p99", "longest"):
        table.add_column(column, justify="right")
    for phase, one in spreads.items():
        table.add_row(phase.value, f"{one.count:,}", f"{one.p50:.1f}", f"{one.p99:.1f}", f"{one.largest:.1f}")
    table.caption = '"during": on the way at any moment between the kill and the return of the last listener'
    table.caption_justify = "left"
    return table


def places_table(moments: Sequence[Places], killed: str) -> Table:
    """Returns the table of where the listeners were."""
    table = Table(title="Where the listeners were", title_justify="left")
    table.add_column("gateway node")
    for one in moments:
        table.add_column(one.moment, justify="right")
    for node in sorted({node for one in moments for node in one.sessions} | {killed}):
        name = f"{node} (killed)" if node == killed else node
        table.add_row(name, *(str(Counter(one.sessions)[node]) for one in moments))
    table.caption = "a session stays where it is until it is recycled or its node drains"
    table.caption_justify = "left"
    return table


def keep_text(folder: Path, up: UpRecord) -> str:
    """Returns commands to paste while the mesh goes on running."""
    edge, producer_host, trust_domain, ingest = up.edge, up.producer_host, up.trust_domain, up.inbound["ingest"]
    command = _shown(Path(sys.executable).parent / "heliograph")
    state = _shown(folder)
    where = "" if state == ".heliograph" else f" --state-dir {state}"
    ca = f"{state}/certs/ca/bundle.pem"
    producer = f"{state}/certs/producer/acme/demo/current"
    operator = f"{state}/certs/operator/dev/current"
    port = edge.rpartition(":")[2]
    event = '{"event":{"category":"general","audience":{"recipientIds":["alice"]},"content":{"title":"Hello"}}}'
    return f"""
The mesh goes on running; its state is in {state}. Paste these here:

# listen, in another terminal
{command} listen alice{where}

# publish with the command
{command} publish --to alice "Hello"{where}

# topics: subscribe, and publish to all who did; a mute, and why somebody got nothing
{command} topics subscribe alice builds{where}
{command} publish --topic builds "Build 4713 has passed"{where}
{command} prefs mute alice --category deploy --for 2h{where}
{command} explain "$({command} publish --to alice "Version 12 is out" --category deploy{where})" alice{where}

# publish with curl: REST through the edge, with a producer's token
curl --cacert {ca} -H "authorization: Bearer $({command} token demo --role producer{where})" \\
  -H 'content-type: application/json' https://localhost:{port}/v1/events \\
  -d '{event}'

# publish with grpcurl: gRPC through the edge, with a producer's certificate
grpcurl -cacert {ca} -cert {producer}/cert.pem -key {producer}/key.pem \\
  -servername {producer_host} -import-path proto -import-path proto/vendor \\
  -proto heliograph/ingest/v1/ingest_service.proto \\
  -d '{event}' \\
  {edge} heliograph.ingest.v1.IngestService/Publish

# the inbox, with the command and with curl
{command} inbox alice{where}
curl --cacert {ca} -H "authorization: Bearer $({command} token alice{where})" https://localhost:{port}/v1/inbox

# look around as an operator, through the sidecar of a service: what it serves, and whether it is well
grpcurl -cacert {ca} -cert {operator}/cert.pem -key {operator}/key.pem \\
  -servername ingest.{trust_domain} {ingest} list
grpcurl -cacert {ca} -cert {operator}/cert.pem -key {operator}/key.pem \\
  -servername ingest.{trust_domain} {ingest} grpc.health.v1.Health/Check

# what runs, and the end of it
{command} nodes{where}
{command} logs{where} --level error
{command} down{where}
"""


def _shown(path: Path) -> str:
    """Returns a path as it is best pasted: relative where it lies below the folder one is in."""
    absolute, here = os.path.abspath(path), os.getcwd()
    return os.path.relpath(absolute, here) if absolute.startswith(here + os.sep) else absolute
