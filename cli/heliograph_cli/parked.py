"""What the commands about parked records ask fanout, and how they show the answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import typer

from heliograph.fanout.v1 import fanout_service_pb2, fanout_service_pb2_grpc
from heliograph_cli import put_aside, texts
from heliograph_cli.connection import Connection, Reach, connect
from heliograph_cli.failures import FAILED, REFUSED, CommandFailed
from mesh.errors import Failure

# A large audience is decided within one call.
_REDRIVEN_AT_ONCE: Final = 10
_HEAD: Final = ("TIME", "LANE", "PARTITION", "POSITION", "BYTES", "ID", "REASON")


async def show_list(reach: Reach, *, limit: int, as_json: bool) -> None:
    """Prints parked records."""
    async with connect(reach) as connection:
        found = await _listed(connection, limit)
    if as_json:
        for record in found:
            typer.echo(texts.json_line(record))
        return
    if found:
        texts.table(_HEAD, [_row(record) for record in found])
    typer.echo(f"{len(found)} listed")


async def show_one(reach: Reach, parked_id: str, *, output: Path | None, as_json: bool) -> None:
    """Prints one record, and writes its bytes to a file if wanted.

    Raises:
        CommandFailed: the file cannot be written, or the bytes were not kept.
    """
    async with connect(reach) as connection:
        answer = await connection.call(
            "fanout",
            lambda channel: fanout_service_pb2_grpc.FanoutServiceStub(channel).GetParked,
            fanout_service_pb2.GetParkedRequest(parked_id=parked_id),
            put_aside.CALLER,
        )
    if output is not None:
        if len(answer.record.value) < answer.record.size:
            raise CommandFailed(f"{parked_id}: {texts.printable(answer.record.reason)}", REFUSED)
        _write(output, answer.record.value)
    if as_json:
        typer.echo(texts.json_line(answer.record))
        return
    texts.table(_HEAD, [_row(answer.record)])
    if output is not None:
        typer.echo(f"{len(answer.record.value)} bytes are in {output}")


def _write(output: Path, value: bytes) -> None:
    try:
        output.write_bytes(value)
    except OSError as error:
        raise CommandFailed(f"{output}: {error.strerror}; name a file that can be written", FAILED) from error


async def redrive(reach: Reach, parked_ids: Sequence[str] | None, *, dry_run: bool) -> None:
    """Tries records again; without ids all that are listed now.

    Raises:
        CommandFailed: some of those that were named cannot be tried; the others went.
    """
    async with connect(reach) as connection:

        async def ask(part: Sequence[str]) -> tuple[int, Sequence[str]]:
            answer = await connection.call(
                "fanout",
                lambda channel: fanout_service_pb2_grpc.FanoutServiceStub(channel).RedriveParked,
                fanout_service_pb2.RedriveParkedRequest(parked_ids=part, validate_only=dry_run),
                put_aside.CALLER,
            )
            return answer.redriven_count, answer.refused_parked_ids

        ids = [one.parked_id for one in await _listed(connection)] if parked_ids is None else parked_ids
        refused = await put_aside.redrive(ask, ids, at_once=_REDRIVEN_AT_ONCE, dry_run=dry_run)
    if parked_ids is not None:
        put_aside.require_all(refused, "read")


async def hint(connection: Connection) -> str:
    """Returns a line about what fanout has put aside, for those who look at dead letters; empty if nothing."""
    try:
        count = len(await _listed(connection, put_aside.PAGE_SIZE))
    except Failure:
        return "fanout does not answer: what it has put aside is not known"
    more = " or more" if count == put_aside.PAGE_SIZE else ""
    return f"fanout has put {count}{more} records aside: see heliograph parked list" if count else ""


async def _listed(connection: Connection, limit: int | None = None) -> list[fanout_service_pb2.ParkedRecord]:
    async def ask(size: int, token: str) -> tuple[Sequence[fanout_service_pb2.ParkedRecord], str]:
        answer = await connection.call(
            "fanout",
            lambda channel: fanout_service_pb2_grpc.FanoutServiceStub(channel).ListParked,
            fanout_service_pb2.ListParkedRequest(page_size=size, page_token=token),
            put_aside.CALLER,
        )
        return answer.records, answer.next_page_token

    return [record async for record in put_aside.listed(ask, limit)]


def _row(record: fanout_service_pb2.ParkedRecord) -> tuple[str, ...]:
    return (
        texts.clock_time(record.park_time),
        record.lane,
        str(record.partition),
        str(record.offset),
        str(record.size),
        record.parked_id,
        record.reason,
    )
