"""The commands about parked records, against a fanout that serves."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest

from heliograph.fanout.v1 import fanout_service_pb2, fanout_service_pb2_grpc
from heliograph_cli import parked, record
from heliograph_cli.connection import Reach, connect
from heliograph_cli.failures import REFUSED, CommandFailed
from mesh.errors import DataLoss, NotFound
from mesh.lanes import Parked, Record, Stored
from mesh.lanes.kafka_ledger import encode
from svc_fanout.service import FanoutService
from tests.support.dispatching import everything, refusal
from tests.support.fanning import LANE, Fanout, fanning
from tests.support.far_ends import running, serving


class Site:
    """A fanout with parked records, and the folder by which commands find it."""

    def __init__(self, fanout: Fanout, reach: Reach) -> None:
        self.fanout = fanout
        self.reach = reach

    async def park(self, *, broken: int, refused: int) -> list[str]:
        """Lets it put records aside; the ids in their order."""
        never = DataLoss("plan is missing", reason="RECORD_UNDECODABLE")
        self.fanout.delivery.reply = lambda batch: [refusal(index, never) for index in range(len(batch.dispatches))]
        await self.fanout.append_records([Record(b"k", b"\xff\xfe\xfd")] * broken)
        await self.fanout.append(*range(refused))
        async with running(self.fanout.run):
            await self.fanout.committed(0)
        self.fanout.delivery.reply = everything
        records, _ = await self.fanout.parked.page(500, "")
        return [one.parked_id for one in records]


def results(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What the command said at its end; the fanout in this process logs to the same place."""
    return [line for line in capsys.readouterr().out.splitlines() if line.endswith(" stay")]


@pytest.fixture
async def site(tmp_path: Path, run_dir: Path) -> AsyncIterator[Site]:
    """What `heliograph up --direct` leaves for other commands, as far as they need it."""
    state_dir = tmp_path / ".heliograph"
    state_dir.mkdir()
    up = record.UpRecord(
        pid=os.getpid(),
        state="serving",
        direct=True,
        start_time=time.time(),
        run_dir=str(run_dir),
        trust_domain="heliograph.local",
        edge="",
        live_urls={},
        inbound={},
        producer_host="",
        processes={},
    )
    record.write(state_dir / "up.json", up)
    service = fanout_service_pb2.DESCRIPTOR.services_by_name["FanoutService"]
    add = fanout_service_pb2_grpc.add_FanoutServiceServicer_to_server
    async with (
        fanning(tmp_path, run_dir) as fanout,
        serving(run_dir, "fanout", service, add, FanoutService({}, fanout.parked)),
    ):
        yield Site(fanout, Reach(state_dir=state_dir))


async def test_a_list_shows_a_line_a_record(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """With lane, partition, position, size, id and reason; no more than asked for; JSON one object a line."""
    ids = await site.park(broken=2, refused=1)
    capsys.readouterr()
    await parked.show_list(site.reach, limit=50, as_json=False)
    head, *lines, last = capsys.readouterr().out.splitlines()
    assert head.split() == ["TIME", "LANE", "PARTITION", "POSITION", "BYTES", "ID", "REASON"]
    assert [line.split()[2:5] for line in lines] == [[LANE, "0", str(position)] for position in (1, 2, 3)]
    assert [line.split()[6] for line in lines] == ids
    assert lines[0].split()[5] == "3"
    assert lines[2].endswith("plan is missing")
    assert last == "3 listed"
    await parked.show_list(site.reach, limit=2, as_json=True)
    assert len(capsys.readouterr().out.splitlines()) == 2
    async with connect(site.reach) as connection:
        assert await parked.hint(connection) == "fanout has put 3 records aside: see heliograph parked list"


async def test_without_any_the_list_is_empty(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """And whoever looks at dead letters hears nothing of it."""
    await parked.show_list(site.reach, limit=50, as_json=False)
    assert capsys.readouterr().out == "0 listed\n"
    async with connect(site.reach) as connection:
        assert await parked.hint(connection) == ""


async def test_the_bytes_of_a_record_go_into_a_file(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As they lay in the lane; one that is not there is not found."""
    (parked_id,) = await site.park(broken=1, refused=0)
    file = tmp_path / "record.bin"
    await parked.show_one(site.reach, parked_id, output=file, as_json=False)
    assert file.read_bytes() == b"\xff\xfe\xfd"
    assert capsys.readouterr().out.splitlines()[-1] == f"3 bytes are in {file}"
    with pytest.raises(CommandFailed, match="Is a directory"):
        await parked.show_one(site.reach, parked_id, output=tmp_path, as_json=False)
    with pytest.raises(NotFound):
        await parked.show_one(site.reach, "normal/9/9", output=None, as_json=False)


async def test_a_record_without_its_bytes_says_so(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is listed with the size it had; there is nothing to write into a file, and nothing to redrive."""
    large = encode(Stored(7, b"k", b"x" * (8 << 20), 1.0), "not understood", 8.5)

    async def listed(limit: int) -> Sequence[Parked]:
        return [msgspec.msgpack.decode(large, type=Parked)][:limit]

    site.fanout.lane.parked = listed
    said = f"its {8 << 20} bytes were too large to be kept"
    await parked.show_list(site.reach, limit=50, as_json=False)
    _, line, _ = capsys.readouterr().out.splitlines()
    assert line.split()[5] == str(8 << 20)
    assert said in line
    file = tmp_path / "record.bin"
    parked_id = line.split()[6]
    with pytest.raises(CommandFailed, match=said):
        await parked.show_one(site.reach, parked_id, output=file, as_json=False)
    assert not file.exists()
    for dry_run in (True, False):
        with pytest.raises(CommandFailed) as caught:
            await parked.redrive(site.reach, [parked_id], dry_run=dry_run)
        assert (caught.value.code, parked_id in str(caught.value)) == (REFUSED, True)


async def test_redriving_all_leaves_what_cannot_be_read(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Over several calls; a dry run moves nothing."""
    ids = await site.park(broken=2, refused=21)
    for dry_run in (True, False, False):
        await parked.redrive(site.reach, None, dry_run=dry_run)
    assert results(capsys) == [
        "21 would be redriven, 2 would stay",
        "21 redriven, 2 stay",
        "0 redriven, 2 stay",
    ]
    with pytest.raises(CommandFailed) as caught:
        await parked.redrive(site.reach, ids[:1], dry_run=False)
    assert (caught.value.code, ids[0] in str(caught.value)) == (REFUSED, True)
