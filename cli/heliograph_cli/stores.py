"""The upkeep of the stores outside our processes: looks at, makes and migrates what the services' settings name.

Each service's `main.stores(settings)` says which there are; embedded stores need none. What one store says, or that it
cannot be reached, is a line; the others follow. It must not know an engine, and must change nothing that was not asked
for.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from heliograph_cli.failures import USAGE, CommandFailed
from heliograph_cli.plan import SINGLE
from mesh.errors import Failure, StartError
from mesh.settings import ServiceSettings, load
from mesh.stores import Finding, StoreAdmin

_REMEDIES: Final = {
    "missing": "make it with `heliograph stores create`",
    "behind": "run `heliograph stores migrate`",
    "wrong": "correct it, then look with `heliograph stores check`",
}
_EMBEDDED: Final = "embedded stores make and migrate themselves; nothing to do"


class Target(msgspec.Struct, frozen=True):
    """One store of a service."""

    service: str
    admin: StoreAdmin


class Line(msgspec.Struct, frozen=True):
    """What is said about one thing of a store.

    Attributes:
        state: of a finding: ok, missing, behind, wrong; done or planned, of a step; failed, when the store could not
            be asked; embedded, of a service without stores outside.
        service: whose store it is.
        store: what is kept there.
        url: where it is.
        text: what it is about.
        remedy: what to do; empty when there is nothing.
    """

    state: Literal["ok", "missing", "behind", "wrong", "done", "planned", "failed", "embedded"]
    service: str
    store: str
    url: str
    text: str
    remedy: str = ""


def collect(services: Sequence[str], flags: Mapping[str, Sequence[str]]) -> list[Target | Line]:
    """Reads each service's settings, as the service itself does, and returns its stores.

    Args:
        services: whose stores; none: those of all.
        flags: flags of services, which beat their environment and files.

    Returns:
        The stores in the order of their services; a line for a service that has none outside.

    Raises:
        CommandFailed: a service is unknown, or its settings are wrong.
    """
    for name in services:
        if name not in SINGLE:
            raise CommandFailed(f"--service {name}: keeps no store; known: {', '.join(SINGLE)}", USAGE)
    found: list[Target | Line] = []
    for service in services or SINGLE:
        try:
            admins = _admins(service, flags.get(service, ()))
        except (StartError, Failure) as error:
            text = error.message if isinstance(error, Failure) else str(error)
            raise CommandFailed(f"{service}: {text}", USAGE) from None
        found += [Target(service, admin) for admin in admins]
        if not admins:
            found.append(Line("embedded", service, "", "", _EMBEDDED))
    return found


async def check(targets: Sequence[Target | Line]) -> list[Line]:
    """Looks at every store, all at the same time, and changes nothing."""
    answers = await asyncio.gather(*(_ask(target, _findings) for target in targets if isinstance(target, Target)))
    following = iter(answers)
    lines = [line for target in targets for line in ([target] if isinstance(target, Line) else next(following))]
    return _each_once(lines)


async def create(targets: Sequence[Target | Line], *, dry_run: bool) -> list[Line]:
    """Makes what is missing, store after store, and then looks at everything."""
    return await _change(targets, lambda admin: admin.create(dry_run=dry_run), dry_run=dry_run)


async def migrate(targets: Sequence[Target | Line], *, dry_run: bool) -> list[Line]:
    """Brings schemas up to this version, store after store, and then looks at everything."""
    return await _change(targets, lambda admin: admin.migrate(dry_run=dry_run), dry_run=dry_run)


def all_well(lines: Sequence[Line]) -> bool:
    """True when nothing is left to do; what is only planned does not count."""
    return all(line.state in ("ok", "done", "planned", "embedded") for line in lines)


def _admins(service: str, flags: Sequence[str]) -> Sequence[StoreAdmin]:
    main = importlib.import_module(f"svc_{service}.main")
    settings = load(_model(importlib.import_module(f"svc_{service}.settings").__dict__), flags)
    stores: Callable[[ServiceSettings], Sequence[StoreAdmin]] | None = getattr(main, "stores", None)
    return stores(settings) if stores is not None else ()


def _model(names: Mapping[str, object]) -> type[ServiceSettings]:
    for value in names.values():
        if isinstance(value, type) and issubclass(value, ServiceSettings) and value is not ServiceSettings:
            return value
    raise RuntimeError(f"{names['__name__']} defines no settings")


async def _change(
    targets: Sequence[Target | Line], act: Callable[[StoreAdmin], Awaitable[Sequence[str]]], *, dry_run: bool
) -> list[Line]:
    lines: list[Line] = []
    reached: list[Target | Line] = []

    async def steps(target: Target) -> list[Line]:
        said = await act(target.admin)
        return [_line(target, "planned" if dry_run else "done", text) for text in said]

    for target in targets:
        if isinstance(target, Line):
            lines.append(target)
            continue
        answers = await _ask(target, steps)
        lines += answers
        if not any(line.state == "failed" for line in answers):
            reached.append(target)
    return _each_once([*lines, *([] if dry_run else await check(reached))])


async def _findings(target: Target) -> list[Line]:
    return [_line(target, finding.state, _text(finding)) for finding in await target.admin.check()]


async def _ask(target: Target, question: Callable[[Target], Awaitable[list[Line]]]) -> list[Line]:
    try:
        return await question(target)
    except StartError as error:
        return [_line(target, "failed", str(error))]
    except Failure as error:
        return [_line(target, "failed", error.message)]
    except Exception as error:  # whatever a driver raises, the other stores are looked at too
        return [_line(target, "failed", f"{type(error).__name__}: {error}")]


def _line(
    target: Target, state: Literal["ok", "missing", "behind", "wrong", "done", "planned", "failed"], text: str
) -> Line:
    what, url = target.admin.what, target.admin.url
    text = " ".join(text.split())
    # Which store and where has a place of its own in each line.
    for known in (f"{what} at {url}: ", f"{what}: ", f"{url}: "):
        text = text.removeprefix(known)
    return Line(state, target.service, what, url, text, _REMEDIES.get(state, ""))


def _text(finding: Finding) -> str:
    return f"{finding.what}: {finding.detail}" if finding.detail else finding.what


def _each_once(lines: Sequence[Line]) -> list[Line]:
    """Leaves out what another service's store at the same place has said."""
    seen: set[tuple[str, ...]] = set()
    kept = []
    for line in lines:
        key = (line.state, line.store, line.url, line.text, line.service if line.state == "embedded" else "")
        if key not in seen:
            seen.add(key)
            kept.append(line)
    return kept
