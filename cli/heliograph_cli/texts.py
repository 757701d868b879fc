"""How answers of services are shown: tables and lines for people, JSON for programs. Must not call anything."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence

import typer
from google.protobuf import json_format
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp


def json_line(message: Message) -> str:
    """Returns a message as one line of the contract's JSON."""
    return json_format.MessageToJson(message, indent=None, ensure_ascii=False)


def clock_time(stamp: Timestamp) -> str:
    """Returns a time on this machine's clock, to the second."""
    moment = datetime.datetime.fromtimestamp(stamp.seconds, datetime.UTC).astimezone()
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def printable(text: str) -> str:
    """Takes out of a text what a terminal would obey."""
    return "".join(character if character.isprintable() else " " for character in text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints rows in columns."""
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in (list(head), *shown)) for column in range(len(head))]
    for row in (list(head), *shown):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo(line.rstrip())
