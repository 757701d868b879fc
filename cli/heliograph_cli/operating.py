"""What the operators' commands ask services: gateway nodes, and how far fanout is behind."""

from __future__ import annotations

import typer

from heliograph.fanout.v1 import fanout_service_pb2, fanout_service_pb2_grpc
from heliograph.presence.v1 import presence_service_pb2, presence_service_pb2_grpc
from heliograph_cli import texts
from heliograph_cli.connection import OPERATOR, Actor, Reach, connect
from mesh import times

_OPERATOR = Actor("operator", OPERATOR)


async def show_nodes(reach: Reach, as_json: bool) -> None:
    """Prints the gateway nodes whose lease is alive."""
    nodes: list[presence_service_pb2.Node] = []
    page = ""
    async with connect(reach) as connection:
        while True:
            answer = await connection.call(
                "presence",
                lambda channel: presence_service_pb2_grpc.PresenceServiceStub(channel).ListNodes,
                presence_service_pb2.ListNodesRequest(page_token=page),
                _OPERATOR,
            )
            nodes += answer.nodes
            page = answer.next_page_token
            if not page:
                break
    if as_json:
        for node in nodes:
            typer.echo(texts.json_line(node))
        return
    rows = [
        (
            node.node_id,
            presence_service_pb2.NodeState.Name(node.state).removeprefix("NODE_STATE_").lower(),
            str(node.session_count),
            node.address or "-",
            texts.clock_time(node.lease_expire_time),
        )
        for node in nodes
    ]
    texts.table(("NODE", "STATE", "SESSIONS", "ADDRESS", "LEASE UNTIL"), rows)


async def show_lag(reach: Reach, as_json: bool) -> None:
    """Prints how many records of each lane fanout has still before it."""
    async with connect(reach) as connection:
        answer = await connection.call(
            "fanout",
            lambda channel: fanout_service_pb2_grpc.FanoutServiceStub(channel).GetLag,
            fanout_service_pb2.GetLagRequest(),
            _OPERATOR,
        )
    if as_json:
        for lane in answer.lanes:
            typer.echo(texts.json_line(lane))
        return
    rows = [
        (
            lane.lane,
            str(lane.partition),
            str(lane.record_count),
            f"{times.seconds_of(lane.oldest_age):.1f} s" if lane.HasField("oldest_age") else "-",
        )
        for lane in answer.lanes
    ]
    texts.table(("LANE", "PARTITION", "RECORDS", "OLDEST"), rows)
