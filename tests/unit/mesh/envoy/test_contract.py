"""What is read of the contract for the sidecars, and how it must fit the topology."""

from __future__ import annotations

import msgspec
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from mesh.envoy.contract import Contract, Method, callers_of, check_contract, peers_of, read_contract
from mesh.envoy.topology import Topology
from mesh.errors import StartError
from tests.support.contract import access_of, descriptors, services
from tests.support.envoys import topology


def _contract() -> Contract:
    return read_contract(descriptors(), topology().access_option)


def test_the_descriptors_say_the_same_as_the_generated_code() -> None:
    """The sidecars' table and the services' own are one."""
    contract = _contract()
    for name, service in services().items():
        table = {method.path: method.roles for method in contract.services[name]}
        assert table == access_of((name,))
        streams = {method.name for method in service.methods if method.client_streaming or method.server_streaming}
        assert {method.path.rpartition("/")[2] for method in contract.services[name] if method.streaming} == streams
    assert set(contract.services) == set(services())


def test_methods_with_a_rest_form_are_known() -> None:
    """The option of google.api.http is seen although no generated code is loaded for it."""
    rest = {method.path.rpartition("/")[2] for method in _contract().methods(services()) if method.rest}
    assert {"Publish", "BatchPublish", "ListInbox", "GetPreferences"} <= rest
    assert not {"Dispatch", "Deliver", "BatchResolve"} & rest


def test_peers_follow_from_who_may_call() -> None:
    """A sidecar knows the services that its service may call, and no other."""
    found = {name: peers_of(name, _contract(), topology()) for name in topology().service_names()}
    assert found == {
        "ingest": (),
        "fanout": ("prefs", "delivery"),
        "prefs": (),
        "presence": (),
        "delivery": ("prefs", "presence", "gateway"),
        "gateway": ("prefs", "presence", "delivery"),
        "edge": ("ingest", "prefs", "delivery", "gateway"),
    }


def test_producers_and_recipients_come_through_the_edge() -> None:
    """Where the contract names those outside, the edge is a caller."""
    assert callers_of(frozenset({"producer"}), topology()) == ("edge",)
    assert callers_of(frozenset({"operator"}), topology()) == ()
    assert callers_of(frozenset({"recipient", "gateway"}), topology()) == ("gateway", "edge")


@pytest.mark.parametrize("broken", [b"junk", b""])
def test_broken_descriptors_stop_the_start(broken: bytes) -> None:
    """Junk, or a set without the option, is told in one line."""
    with pytest.raises(StartError, match="descriptors"):
        read_contract(broken, topology().access_option)


def test_descriptors_without_their_imports_stop_the_start() -> None:
    """A set made without imports cannot be used for transcoding either."""
    known = FileDescriptorSet.FromString(descriptors())
    alone = FileDescriptorSet(file=[file for file in known.file if file.name.endswith("ingest_service.proto")])
    with pytest.raises(StartError, match="generate them again"):
        read_contract(alone.SerializeToString(), topology().access_option)


def test_a_method_without_the_option_stops_the_start() -> None:
    """Nobody would be allowed to call it, which nobody means."""
    known = FileDescriptorSet.FromString(descriptors())
    for file in known.file:
        for service in file.service:
            if service.name == "FanoutService":
                service.method[0].ClearField("options")
    with pytest.raises(StartError, match=r"FanoutService\.GetLag: the access option is missing"):
        read_contract(known.SerializeToString(), topology().access_option)


def _serving(**places: tuple[str, ...]) -> Topology:
    base = topology()
    moved = {
        name: msgspec.structs.replace(place, serves=places.get(name, place.serves))
        for name, place in base.services.items()
    }
    return msgspec.structs.replace(base, services=moved)


def test_topology_and_contract_must_speak_of_the_same_services() -> None:
    """A service that nobody serves, one that does not exist, a caller that is no service: each is named."""
    contract = _contract()
    check_contract(contract, topology())
    with pytest.raises(StartError, match=r"heliograph\.old\.v1\.OldService is not in the contract"):
        check_contract(
            contract, _serving(fanout=("heliograph.fanout.v1.FanoutService", "heliograph.old.v1.OldService"))
        )
    delivery = ("heliograph.delivery.v1.DeliveryService", "heliograph.delivery.v1.DeadLetterService")
    with pytest.raises(StartError, match=r"nobody serves heliograph\.delivery\.v1\.InboxService"):
        check_contract(contract, _serving(delivery=delivery))
    stranger = Method("/a.B/C", "heliograph.fanout.v1.FanoutService", frozenset({"billing"}), False, False)
    with pytest.raises(StartError, match="may be called by billing, which is no service"):
        check_contract(Contract({**contract.services, stranger.service: (stranger,)}), topology())
