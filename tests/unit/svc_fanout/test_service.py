"""FanoutService against real lanes."""

from __future__ import annotations

from pathlib import Path

from heliograph.fanout.v1 import fanout_service_pb2 as pb
from heliograph.fanout.v1 import fanout_service_pb2_grpc as pb_grpc
from mesh.channel import call
from mesh.times import seconds_of
from svc_fanout.service import FanoutService
from tests.support.dispatching import make_envelope, make_record
from tests.support.far_ends import calling, serving
from tests.support.lanes import SqliteLaneCase, sqlite_lane


async def test_operators_see_how_far_behind_a_lane_is(tmp_path: Path, run_dir: Path) -> None:
    """Count and age of what is not committed; no age when there is nothing."""
    service = pb.DESCRIPTOR.services_by_name["FanoutService"]
    async with sqlite_lane(tmp_path, run_dir) as case, calling(run_dir, "operator") as channels:
        assert isinstance(case, SqliteLaneCase)
        writer, reader = await case.writer(), await case.reader()
        servicer = FanoutService({"normal": reader})
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
