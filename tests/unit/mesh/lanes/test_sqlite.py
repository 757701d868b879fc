"""What only embedded lanes do: the doorbell, the poll behind it, one reading process, files in one folder."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import mesh.lanes.sqlite
from mesh.clock import ManualClock
from mesh.lanes import LaneReader, LaneWriter, Record, open_reader, open_writer, position_migrations
from mesh.sqlite import StoreError, Writer

LONG = 20.0


@pytest.fixture
async def positions(tmp_path: Path) -> AsyncIterator[Writer]:
    """The file of a reading process's positions."""
    writer = Writer(tmp_path / "positions.db", migrations=position_migrations())
    await writer.open()
    yield writer
    await writer.close()


def a_writer(data_dir: Path, run_dir: Path, name: str = "high") -> LaneWriter:
    """The writing end of a lane, not opened."""
    return open_writer("sqlite:///lanes", name, data_dir=data_dir, run_dir=run_dir, clock=ManualClock(), lock_wait=0.0)


def a_reader(data_dir: Path, run_dir: Path, positions: Writer, name: str = "high", wait: float = 0.0) -> LaneReader:
    """The reading end of a lane, not opened."""
    return open_reader(
        "sqlite:///lanes",
        name,
        data_dir=data_dir,
        run_dir=run_dir,
        clock=ManualClock(),
        positions=positions,
        lock_wait=wait,
    )


@pytest.mark.parametrize("broken", ["the poll", "the bell"])
async def test_the_bell_and_the_poll_each_wake_alone(
    tmp_path: Path, run_dir: Path, positions: Writer, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the poll out of reach the bell wakes the reader; with the bell gone the poll finds the record."""
    if broken == "the poll":
        monkeypatch.setattr(mesh.lanes.sqlite, "_POLL_S", 1000.0)
    writer, reader = a_writer(tmp_path, run_dir), a_reader(tmp_path, run_dir, positions)
    await writer.open()
    await reader.open()
    assert list(await reader.read(1, 0.0)) == []
    if broken == "the bell":
        (run_dir / "lane-high.bell").unlink()
    for number in range(3):
        waiting = asyncio.ensure_future(reader.read(10, 1000.0))
        await asyncio.sleep(0)
        await writer.append([Record(b"", b"%d" % number)])
        async with asyncio.timeout(LONG):
            assert [record.value for record in await waiting] == [b"%d" % number]
    await reader.close()
    await writer.close()
    assert not (run_dir / "lane-high.bell").exists()


async def test_a_second_reader_is_refused_in_one_sentence(tmp_path: Path, run_dir: Path, positions: Writer) -> None:
    """An embedded lane has one reading process; the refusal names the lane and the process, and changes nothing."""
    reader = a_reader(tmp_path, run_dir, positions)
    await reader.open()
    with pytest.raises(StoreError, match=f"lane high .* is read by process {os.getpid()}; an embedded lane has one"):
        await a_reader(tmp_path, run_dir, positions).open()
    assert (run_dir / "lane-high.bell").exists()
    successor = a_reader(tmp_path, run_dir, positions, wait=LONG)
    opening = asyncio.ensure_future(successor.open())
    await asyncio.sleep(0)
    await reader.close()
    await opening
    await successor.close()


async def test_lanes_of_one_process_share_its_positions(tmp_path: Path, run_dir: Path, positions: Writer) -> None:
    """Each lane has its own position and its own parked records in the one file."""
    for name, count in (("high", 3), ("bulk", 5)):
        writer, reader = a_writer(tmp_path, run_dir, name), a_reader(tmp_path, run_dir, positions, name)
        await writer.open()
        await reader.open()
        await writer.append([Record(b"", b"x")] * count)
        found = await reader.read(10, LONG)
        await reader.park(found[0], name)
        await reader.commit(found[-1].position)
        await reader.close()
        await writer.close()
    rows = await positions.read(lambda c: c.execute("select lane, position from positions order by lane").fetchall())
    assert rows == [("bulk", 5), ("high", 3)]
    for name in ("high", "bulk"):
        reader = a_reader(tmp_path, run_dir, positions, name)
        await reader.open()
        assert [one.reason for one in await reader.parked(10)] == [name]
        await reader.close()


async def test_a_stale_bell_of_a_killed_reader_is_replaced(tmp_path: Path, run_dir: Path, positions: Writer) -> None:
    """The socket file that a killed reader left behind does not stop the next one."""
    stale = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    stale.bind(str(run_dir / "lane-high.bell"))
    stale.close()
    reader = a_reader(tmp_path, run_dir, positions)
    await reader.open()
    await reader.close()


async def test_a_run_folder_too_long_for_a_socket_stops_the_start(tmp_path: Path, positions: Writer) -> None:
    """A socket path has a limit; the refusal names the path, and the lane is free for another try."""
    deep = tmp_path / ("x" * 120)
    with pytest.raises(StoreError, match=r"lane-high\.bell.*shorter"):
        await a_reader(tmp_path, deep, positions).open()
    reader = a_reader(tmp_path, tmp_path / ("x" * 120), positions)
    with pytest.raises(StoreError, match="shorter"):
        await reader.open()


async def test_a_second_writer_is_refused(tmp_path: Path, run_dir: Path) -> None:
    """A lane has one writing process."""
    writer = a_writer(tmp_path, run_dir)
    await writer.open()
    with pytest.raises(StoreError, match="in use by process"):
        await a_writer(tmp_path, run_dir).open()
    await writer.append([Record(b"", b"")])
    await writer.close()


async def test_a_reader_makes_no_lane(tmp_path: Path, run_dir: Path, positions: Writer) -> None:
    """Only the writing process makes the lane's file."""
    reader = a_reader(tmp_path, run_dir, positions)
    await reader.open()
    assert list(await reader.read(1, 0.0)) == []
    assert not (tmp_path / "lanes" / "high.db").exists()
    await reader.close()
