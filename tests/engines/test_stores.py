"""`heliograph stores` on all four engines at once: everything is made, then right, then made no second time."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import msgspec
import pytest

from heliograph_cli import stores
from heliograph_cli.engines import read_engines, service_flags
from heliograph_cli.plan import SINGLE
from heliograph_cli.stores import Line, Target, all_well, collect
from tests.support.engines import urls
from tests.support.starts import run_to_end

pytestmark = [pytest.mark.engines, pytest.mark.timeout(90)]


def targets(file: Path, name: str) -> list[Target | Line]:
    """All stores of an installation, as the command finds them."""
    return collect([], service_flags(read_engines(file), name))


async def test_an_installation_is_made_once_and_is_right_afterwards(tmp_path: Path) -> None:
    """Nothing is there, and a dry run says what will be; it is made; a second time there is nothing to make."""
    file = tmp_path / "engines.json"
    file.write_bytes(msgspec.json.encode({**urls(), "replicas": 1}))
    found = targets(file, f"t{uuid.uuid4().hex[:16]}")

    before = await stores.check(found)
    assert not all_well(before)
    assert {line.state for line in before} == {"ok", "missing"}
    assert {line.service for line in before} == set(SINGLE)

    planned = await stores.create(found, dry_run=True)
    assert {line.state for line in planned} == {"planned"}
    assert await stores.check(found) == before

    lines = await stores.create(found, dry_run=False)
    done = [line for line in lines if line.state == "done"]
    assert [line.text for line in done] == [line.text for line in planned]
    assert {line.store for line in done} == {line.store for line in before if line.state == "missing"}
    assert {line.state for line in lines if line not in done} == {"ok"}

    again = await stores.create(found, dry_run=False)
    assert {line.state for line in again} == {"ok"}
    assert await stores.migrate(found, dry_run=False) == again


async def test_engines_that_are_away_are_a_line_each(tmp_path: Path) -> None:
    """Every store is asked, and each says that it cannot be reached; nothing is a traceback."""
    file = tmp_path / "engines.json"
    away = {
        "kafka": "kafka://127.0.0.1:1",
        "redis": "redis://127.0.0.1:1",
        "cassandra": "cassandra://127.0.0.1:1",
        "postgresql": "postgresql://127.0.0.1:1/postgres",
    }
    file.write_bytes(msgspec.json.encode(away))
    ended = await run_to_end("heliograph_cli", "stores", "check", "--json", "--engines", str(file))
    lines = [json.loads(line) for line in ended.out.splitlines()]
    assert (ended.code, {line["state"] for line in lines}) == (1, {"failed"}), ended
    assert {line["service"] for line in lines} >= {"presence", "prefs", "delivery", "ingest"}
    assert ended.complaints == ("heliograph: not every store is as it must be; see the lines above",)
