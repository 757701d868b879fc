"""grpcurl and grpc-health-probe at services that run without a mesh: at their own sockets, without certificates."""

from __future__ import annotations

import json

import pytest

from mesh.envoy.topology import load_topology
from tests.support.command_line import (
    AS_FANOUT,
    AS_OPERATOR,
    AS_PRODUCER,
    DESCRIPTORS,
    buf_curl_plain,
    grpcurl_plain,
    probe_plain,
)
from tests.support.mesh import TOPOLOGY
from tests.support.site import Site
from tests.support.wait import until

# The first use builds the tools.
pytestmark = [
    pytest.mark.parametrize(
        "site", [pytest.param("processes", marks=pytest.mark.processes)], indirect=True, scope="session"
    ),
    pytest.mark.timeout(600),
]

SERVED = load_topology(TOPOLOGY).serving()
PUBLISH = "heliograph.ingest.v1.IngestService/Publish"
LIST_NODES = "heliograph.presence.v1.PresenceService/ListNodes"
PERMISSION_DENIED = 64 + 7


async def test_grpcurl_lists_and_probes_each_process(site: Site) -> None:
    """Reflection shows the contract's services, and each of them is healthy by its name and as a whole."""
    processes = [one for one in site.cluster.running.processes.values() if one.kind == "service"]
    assert {one.service for one in processes} == set(SERVED)
    for one in processes:
        done = await grpcurl_plain(site, one.name, "list", caller=AS_OPERATOR)
        assert done.code == 0, done.said
        assert set(SERVED[one.service]) <= set(done.output.split())
        for service in ("", *SERVED[one.service]):
            healthy = await probe_plain(site, one.name, service)
            assert healthy.code == 0, healthy.said


async def test_grpcurl_asks_as_an_operator_and_as_nobody_else(site: Site) -> None:
    """The method's access option counts here as well."""
    done = await grpcurl_plain(site, "presence", LIST_NODES, caller=AS_OPERATOR)
    assert done.code == 0, done.said
    nodes = [one.name for one in site.cluster.running.processes.values() if one.service == "gateway"]
    assert sorted(node["node_id"] for node in json.loads(done.output)["nodes"]) == sorted(nodes)
    described = ("-protoset", str(DESCRIPTORS))
    refused = await grpcurl_plain(site, "presence", LIST_NODES, caller=AS_FANOUT, before=described)
    assert refused.code == PERMISSION_DENIED, refused.said


async def test_buf_curl_lists_calls_and_publishes(site: Site) -> None:
    """By reflection as an operator, with the contract at hand as a producer; as anybody else it is refused."""
    listed = await buf_curl_plain(site, "presence", "", "--list-methods", caller=AS_OPERATOR)
    assert LIST_NODES in listed.output.split(), listed.said
    asked = ("--data", '{"pageSize": 1}')
    done = await buf_curl_plain(site, "presence", f"/{LIST_NODES}", *asked, caller=AS_OPERATOR)
    assert done.code == 0, done.said
    assert len(json.loads(done.output)["nodes"]) == 1
    described = ("--schema", str(DESCRIPTORS))
    refused = await buf_curl_plain(site, "presence", f"/{LIST_NODES}", *described, *asked, caller=AS_FANOUT)
    assert refused.code != 0
    assert "permission_denied" in refused.said
    event = {"event": {"category": "general", "audience": {"recipientIds": ["by-buf"]}, "content": {"title": "By buf"}}}
    data = ("--data", json.dumps(event))
    receipt = await buf_curl_plain(site, "ingest", f"/{PUBLISH}", *described, *data, caller=AS_PRODUCER)
    assert receipt.code == 0, receipt.said

    async def is_listed() -> bool:
        items = (await site.inbox("by-buf")).items
        return [item.notification.notification_id for item in items] == [json.loads(receipt.output)["eventId"]]

    await until(is_listed, 10.0, "what was published is there")
