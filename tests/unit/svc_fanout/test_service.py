"""FanoutService against real lanes."""

from __future__ import annotations

from pathlib import Path

from heliograph.fanout.v1 import fanout_service_pb2 as pb
from heliograph.fanout.v1 import fanout_service_pb2_grpc as pb_grpc
from mesh.channel import call
from mesh.lanes import Record
from mesh.times import seconds_of
from svc_fanout.core import Event
from svc_fanout.parked import Lane, ParkedRecords
from svc_fanout.service import FanoutService
from tests.support.dispatching import id_of, make_envelope, make_record
from tests.support.far_ends import calling, serving
from tests.support.lanes import SqliteLaneCase, sqlite_lane


async def test_operators_see_how_far_behind_a_lane_is(tmp_path: Path, run_dir: Path) -> None:
    """Count and age of what is not committed; no age when there is nothing."""
    service = pb.DESCRIPTOR.services_by_name["FanoutService"]
    async with sqlite_lane(tmp_path, run_dir) as case, calling(run_dir, "operator") as channels:
        assert isinstance(case, SqliteLaneCase)
        writer, reader = await case.writer(), await case.reader()
        servicer = FanoutService({"normal": reader}, ParkedRecords({}, case.clock))
        add = pb_grpc.add_FanoutServiceServicer_to_server
        async with serving(run_dir, "fanout", service, add, servicer):
            stub = pb_grpc.FanoutServiceStub(channels.unary("fanout"))
            operator = (("x-heliograph-caller", "operator/olga"),)
            response = await call(stub.GetLag, pb.GetLagRequest(), timeout=5.0, metadata=operator)
            assert [(lane.lane, lane.record_count, lane.HasField("oldest_age")) for lane in response.lanes] == [
                ("normal", 0, False)
            ]
            await writer.append([make_record(make_envelope(number), ["a"]) for number in range(3)])
            case.clock.advance(12.5)
            response = await call(stub.GetLag, pb.GetLagRequest(), timeout=5.0, metadata=operator)
            (lane,) = response.lanes
            assert (lane.record_count, seconds_of(lane.oldest_age)) == (3, 12.5)


async def test_operators_see_and_redrive_what_was_put_aside(tmp_path: Path, run_dir: Path) -> None:
    """Listed without bytes, fetched with them, tried again, and gone."""
    service = pb.DESCRIPTOR.services_by_name["FanoutService"]
    async with sqlite_lane(tmp_path, run_dir) as case, calling(run_dir, "operator") as channels:
        writer, reader = await case.writer(), await case.reader()
        planned: list[str] = []

        async def plan_again(event: Event, redrive_us: int) -> None:
            planned.append(event.envelope.event_id)

        record = make_record(make_envelope(7), ["alice"])
        await writer.append([record, Record(b"k", b"\xff")])
        for stored in await reader.read(2, 1.0):
            await reader.park(stored, "not understood")
        servicer = FanoutService({}, ParkedRecords({"normal": Lane(reader, writer, plan_again)}, case.clock))
        async with serving(run_dir, "fanout", service, pb_grpc.add_FanoutServiceServicer_to_server, servicer):
            stub = pb_grpc.FanoutServiceStub(channels.unary("fanout"))
            operator = (("x-heliograph-caller", "operator/olga"),)
            first = await call(stub.ListParked, pb.ListParkedRequest(page_size=1), timeout=5.0, metadata=operator)
            rest = pb.ListParkedRequest(page_token=first.next_page_token)
            second = await call(stub.ListParked, rest, timeout=5.0, metadata=operator)
            ids = [one.parked_id for one in (*first.records, *second.records)]
            assert (len(ids), second.next_page_token) == (2, "")
            found = await call(stub.GetParked, pb.GetParkedRequest(parked_id=ids[0]), timeout=5.0, metadata=operator)
            assert found.record.value == record.value
            judged = pb.RedriveParkedRequest(parked_ids=ids, validate_only=True)
            answer = await call(stub.RedriveParked, judged, timeout=5.0, metadata=operator)
            assert (answer.redriven_count, list(answer.refused_parked_ids), planned) == (1, ids[1:], [])
            tried = pb.RedriveParkedRequest(parked_ids=ids)
            answer = await call(stub.RedriveParked, tried, timeout=5.0, metadata=operator)
            assert (answer.redriven_count, list(answer.refused_parked_ids), planned) == (1, ids[1:], [id_of(7)])
            assert [one.position for one in await reader.parked(10)] == [2]
