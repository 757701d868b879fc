"""Housekeeping: what is old goes, in slices; what is young stays."""

from __future__ import annotations

from pathlib import Path

from mesh.clock import ManualClock, SteadyClock
from mesh.lanes import Record
from mesh.telemetry import Telemetry
from svc_ingest import limits
from svc_ingest.metrics import Metrics
from svc_ingest.ports import Claim, Fresh, Pending
from svc_ingest.store import open_store
from svc_ingest.worker import Sweep
from tests.support.publishing import NOW, open_lanes, read_lane


def claim(number: int, holder: bytes = b"first") -> Claim:
    """A claim on one of many requests."""
    return Claim("acme", "demo", number.to_bytes(16, "big"), b"d" * 32, number, holder)


async def test_old_requests_and_records_go(run_dir: Path) -> None:
    """Requests after a day, more than a slice of them; records after a week."""
    clock = ManualClock(NOW)
    log = open_store("sqlite:///requests.db", run_dir)
    await log.open()
    telemetry = Telemetry("ingest")
    async with open_lanes(run_dir, clock) as lanes:
        await log.begin([claim(number) for number in range(2_500)], clock.wall())
        await lanes["bulk"].append([Record(b"k", b"old")])
        clock.advance(limits.LANE_S)
        await log.begin([claim(9_999)], clock.wall())
        await lanes["bulk"].append([Record(b"k", b"young")])
        clock.advance(1)
        await Sweep(log=log, lanes=lanes, clock=clock, metrics=Metrics(telemetry), pause_s=0).sweep()
        known = await log.begin([claim(number, b"second") for number in (0, 2_499, 9_999)], clock.wall())
        assert known == [Fresh(0), Fresh(2_499), Pending(limits.REQUEST_LEASE_S - 1)]
    assert [stored.value for stored in await read_lane(run_dir, "bulk")] == [b"young"]
    await log.close()
    swept = {
        store: telemetry.registry.get_sample_value("heliograph_ingest_swept_records_total", {"store": store})
        for store in ("requests", "lane_bulk", "lane_high")
    }
    assert swept == {"requests": 2_500, "lane_bulk": 1, "lane_high": 0}


async def test_a_doubtful_clock_forgets_nothing(run_dir: Path) -> None:
    """A machine's clock that was set a year ahead makes no request and no record old."""
    machine = ManualClock(NOW)
    clock = SteadyClock(machine)
    log = open_store("sqlite:///requests.db", run_dir)
    await log.open()
    async with open_lanes(run_dir, machine) as lanes:
        await log.begin([claim(1)], NOW)
        machine.step_wall(365 * 86_400.0)
        await Sweep(log=log, lanes=lanes, clock=clock, metrics=Metrics(Telemetry("ingest")), pause_s=0).sweep()
        assert await log.begin([claim(1, b"second")], NOW + 1) == [Pending(limits.REQUEST_LEASE_S - 1)]
    await log.close()
