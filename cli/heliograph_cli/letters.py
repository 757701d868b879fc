"""What the commands about dead letters ask delivery, and how they show the answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple

import typer

from heliograph.delivery.v1 import (
    dead_letter_service_pb2,
    dead_letter_service_pb2_grpc,
    delivery_service_pb2,
    delivery_service_pb2_grpc,
)
from heliograph.type.v1 import notification_pb2, plan_pb2
from heliograph_cli import parked, put_aside, texts
from heliograph_cli.connection import Connection, Reach, connect

# Small, so that breaking off loses little and one answer comes well inside its deadline.
_REDRIVEN_AT_ONCE: Final = 100
# So many reasons are shown: behind them stand the same ones again.
_REASONS: Final = 20
_HEAD: Final = ("TIME", "REASON", "RECIPIENT", "CHANNEL", "EVENT", "ID")


class Filter(NamedTuple):
    """Which dead letters are meant: a tenant and a reason; empty and 0 for all."""

    tenant_id: str
    reason: int


async def show_list(reach: Reach, wanted: Filter, *, limit: int, as_json: bool) -> None:
    """Prints dead letters, newest first."""
    found: list[dead_letter_service_pb2.DeadLetter] = []
    async with connect(reach) as connection:
        async for letter in _listed(connection, wanted, limit=limit):
            if as_json:
                typer.echo(texts.json_line(letter))
            found.append(letter)
        # Records that never became deliveries are kept elsewhere, and an operator looks here first.
        elsewhere = "" if as_json or wanted != Filter("", 0) else await parked.hint(connection)
    if as_json:
        return
    if found:
        texts.table(_HEAD, [_row(letter) for letter in found])
    for letter in found:
        if letter.HasField("left_out"):
            typer.echo(f"{letter.dead_letter_id}: {_left_out(letter.left_out)}")
    typer.echo(f"{len(found)} listed")
    if elsewhere:
        typer.echo(elsewhere)


async def show_one(reach: Reach, dead_letter_id: str, *, as_json: bool) -> None:
    """Prints one dead letter with its history."""
    async with connect(reach) as connection:
        answer = await connection.call(
            "delivery",
            lambda channel: dead_letter_service_pb2_grpc.DeadLetterServiceStub(channel).GetDeadLetter,
            dead_letter_service_pb2.GetDeadLetterRequest(dead_letter_id=dead_letter_id),
            put_aside.CALLER,
        )
    letter = answer.dead_letter
    if as_json:
        typer.echo(texts.json_line(letter))
        return
    texts.table(_HEAD, [_row(letter)])
    if letter.lane_position:
        typer.echo(f"it lay at {texts.printable(letter.lane_position)}")
    whole = f"{len(letter.original)} bytes of it are kept"
    typer.echo(_left_out(letter.left_out) if letter.HasField("left_out") else whole)
    attempts = [
        (str(attempt.attempt_number), texts.clock_time(attempt.attempt_time), attempt.outcome)
        for attempt in letter.attempts
    ]
    if attempts:
        texts.table(("TRY", "TIME", "OUTCOME"), attempts)


async def redrive_these(reach: Reach, dead_letter_ids: Sequence[str], *, dry_run: bool) -> None:
    """Redrives the letters that were named.

    Raises:
        CommandFailed: some cannot be redriven; the others went.
    """
    async with connect(reach) as connection:
        refused = await _redrive(connection, dead_letter_ids, dry_run=dry_run)
    put_aside.require_all(refused, "delivered")


async def redrive_filtered(reach: Reach, wanted: Filter, *, dry_run: bool) -> None:
    """Redrives the letters that a filter names, as they are listed now."""
    async with connect(reach) as connection:
        ids = [letter.dead_letter_id async for letter in _listed(connection, wanted)]
        await _redrive(connection, ids, dry_run=dry_run)


async def explain(reach: Reach, event_id: str, tenant_id: str, recipient_id: str, *, as_json: bool) -> None:
    """Prints what is known of one event and recipient."""
    async with connect(reach) as connection:
        answer = await connection.call(
            "delivery",
            lambda channel: delivery_service_pb2_grpc.DeliveryServiceStub(channel).Explain,
            delivery_service_pb2.ExplainRequest(event_id=event_id, tenant_id=tenant_id, recipient_id=recipient_id),
            put_aside.CALLER,
        )
    if as_json:
        typer.echo(texts.json_line(answer))
        return
    if answer.state:
        typer.echo(f"in the inbox, {_short(notification_pb2.NotificationState.Name(answer.state))}")
    elif answer.suppress_reason:
        typer.echo(f"not delivered: {_short(plan_pb2.SuppressReason.Name(answer.suppress_reason))}")
    elif any(step.decision == "dead letter" for step in answer.steps):
        typer.echo("not in the inbox: given up")
    else:
        typer.echo("not in the inbox yet: it is being worked on")
    rows = [
        (texts.clock_time(step.step_time) if step.HasField("step_time") else "-", step.decision, step.detail)
        for step in answer.steps
    ]
    texts.table(("TIME", "DECISION", "DETAIL"), rows)


def _listed(
    connection: Connection, wanted: Filter, *, limit: int | None = None
) -> AsyncIterator[dead_letter_service_pb2.DeadLetter]:
    async def ask(size: int, token: str) -> tuple[Sequence[dead_letter_service_pb2.DeadLetter], str]:
        request = dead_letter_service_pb2.ListDeadLettersRequest(
            tenant_id=wanted.tenant_id,
            reason=dead_letter_service_pb2.DeadLetterReason.ValueType(wanted.reason),
            page_size=size,
            page_token=token,
        )
        answer = await connection.call(
            "delivery",
            lambda channel: dead_letter_service_pb2_grpc.DeadLetterServiceStub(channel).ListDeadLetters,
            request,
            put_aside.CALLER,
        )
        return answer.dead_letters, answer.next_page_token

    return put_aside.listed(ask, limit)


async def _redrive(connection: Connection, ids: Sequence[str], *, dry_run: bool) -> list[str]:
    reasons: list[dead_letter_service_pb2.RedriveRefusal] = []

    async def ask(part: Sequence[str]) -> tuple[int, Sequence[str]]:
        answer = await connection.call(
            "delivery",
            lambda channel: dead_letter_service_pb2_grpc.DeadLetterServiceStub(channel).RedriveDeadLetters,
            dead_letter_service_pb2.RedriveDeadLettersRequest(dead_letter_ids=part, validate_only=dry_run),
            put_aside.CALLER,
        )
        reasons.extend(answer.refusals)
        return answer.redriven_count, answer.refused_dead_letter_ids

    refused = await put_aside.redrive(ask, ids, at_once=_REDRIVEN_AT_ONCE, dry_run=dry_run)
    for one in reasons[:_REASONS]:
        typer.echo(f"{texts.printable(one.dead_letter_id)}: {texts.printable(one.message)}", err=True)
    if len(reasons) > _REASONS:
        typer.echo(f"and {len(reasons) - _REASONS} more", err=True)
    return refused


def _left_out(known: dead_letter_service_pb2.LeftOut) -> str:
    return (
        f"its {known.size_bytes} bytes were too large to be kept (SHA-256 {known.sha256.hex()}): it cannot be redriven"
    )


def _row(letter: dead_letter_service_pb2.DeadLetter) -> tuple[str, ...]:
    return (
        texts.clock_time(letter.bury_time),
        _reason(letter.reason),
        letter.recipient_key or "-",
        _channel(letter.channel),
        letter.envelope.event_id or "-",
        letter.dead_letter_id,
    )


def _reason(number: int) -> str:
    known = dead_letter_service_pb2.DeadLetterReason.DESCRIPTOR.values_by_number.get(number)
    return str(number) if known is None else _short(known.name).replace(" ", "-")


def _channel(number: int) -> str:
    if not number:
        return "-"
    known = notification_pb2.Channel.DESCRIPTOR.values_by_number.get(number)
    return str(number) if known is None else _short(known.name)


def _short(name: str) -> str:
    for prefix in ("DEAD_LETTER_REASON_", "CHANNEL_", "NOTIFICATION_STATE_", "SUPPRESS_REASON_"):
        name = name.removeprefix(prefix)
    return name.lower().replace("_", " ")
