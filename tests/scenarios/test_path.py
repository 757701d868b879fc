"""`docs/path.md` against a recorded trace: every step, in its process, in the promised order, in a file that exists."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from heliograph.type.v1.notification_pb2 import MarkKind
from heliograph_cli import logs
from tests.support.apps import Apps
from tests.support.shapes import BOTH, running
from tests.support.wait import until

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).resolve().parents[2]
_ROW = re.compile(
    r"^\| (?P<number>\d+) \| `(?P<step>\w+)` \| (?P<process>\w+) \|.*\| `(?P<file>[\w/.]+)` \|$", re.MULTILINE
)
_ORDER = re.compile(r"(\d+) before (\d+(?: and \d+)?)\b")


class Row(msgspec.Struct, frozen=True):
    """One row of the table."""

    step: str
    process: str
    file: str


def table() -> dict[int, Row]:
    """Reads the table; rows by their number."""
    text = (ROOT / "docs" / "path.md").read_text(encoding="utf-8")
    return {int(row["number"]): Row(row["step"], row["process"], row["file"]) for row in _ROW.finditer(text)}


def promised_order() -> list[tuple[int, int]]:
    """Reads which step comes before which other one, whatever happens."""
    text = (ROOT / "docs" / "path.md").read_text(encoding="utf-8")
    _, _, promised = text.partition("What never changes:")
    sentence, _, _ = " ".join(promised.split()).partition(".")
    return [
        (int(match[1]), int(later)) for match in _ORDER.finditer(sentence) for later in re.findall(r"\d+", match[2])
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=BOTH)
async def apps(request: pytest.FixtureRequest) -> AsyncIterator[Apps]:
    """An installation that logs every step."""
    async with running(request.param, trace=True) as cluster:
        yield Apps(cluster)


async def test_one_event_takes_the_way_that_is_written_down(apps: Apps) -> None:
    """One publish to one connected recipient passes each step of the table once, in its process and in order."""
    rows = table()
    async with apps.device("ada") as phone, apps.cluster.publisher() as publisher:
        await phone.ready()
        receipt = await publisher.publish(category="general", to="ada", title="on its way")
        await phone.has(receipt.event_id)
        await phone.has_confirmed(await phone.mark(MarkKind.MARK_KIND_RECEIVED, receipt.event_id))
        node_id = phone.node_id

    def recorded() -> list[logs.Step]:
        return logs.path_of(logs.files(apps.cluster.place.log, ""), receipt.event_id)

    wanted = {row.step for row in rows.values()}
    await until(lambda: wanted <= {step.name for step in recorded()}, 10.0, "every step of the table is logged")
    steps = recorded()
    assert sorted(step.name for step in steps) == sorted(wanted)
    processes = {step.name: "gateway" if step.process == node_id else step.process for step in steps}
    assert processes == {row.step: row.process for row in rows.values()}
    # Logs have milliseconds: what happened within one of them may stand in either order.
    times = {step.name: step.time for step in steps}
    late = [
        f"{rows[earlier].step} after {rows[later].step}"
        for earlier, later in promised_order()
        if times[rows[earlier].step] > times[rows[later].step]
    ]
    assert late == []


def test_the_table_names_files_that_exist_and_order_is_promised_for_each_step() -> None:
    """A reader finds every step where the table says; no step is left out of the order, and it has no circle."""
    rows = table()
    assert list(rows) == list(range(1, len(rows) + 1))
    assert len(rows) > 10
    assert [row.file for row in rows.values() if not (ROOT / row.file).is_file()] == []
    assert [f"{row.step}: {row.file}" for row in rows.values() if not _has_part(row)] == []
    order = promised_order()
    assert {number for pair in order for number in pair} == set(rows)
    assert all(earlier < later for earlier, later in order)


def _has_part(row: Row) -> bool:
    """Tells whether a file belongs to the process of its row, or is one that all processes share."""
    package = row.file.partition("/")[0]
    return package in ("mesh", f"svc_{row.process}")
