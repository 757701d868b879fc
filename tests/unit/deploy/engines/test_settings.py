"""The settings of each engine: what promises rest on, one node and three."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from deploy.engines import cassandra, kafka, postgresql, redis
from deploy.engines.choices import Choices

_ONE, _THREE = Choices(Path("/e"), 9000), Choices(Path("/e"), 9000, nodes=3)


def test_kafka_acknowledges_what_two_of_three_brokers_have() -> None:
    """No topic is made by mistake, and no broker that lags behind may lead."""
    alone, third = kafka.settings(_ONE, 1, Path("/e/kafka")), kafka.settings(_THREE, 3, Path("/e/kafka-3"))
    for name in ("auto.create.topics.enable", "unclean.leader.election.enable"):
        assert alone[name] == third[name] == "false"
    names = ("default.replication.factor", "min.insync.replicas", "offsets.topic.replication.factor")
    assert [alone[name] for name in names] == ["1", "1", "1"]
    assert [third[name] for name in names] == ["3", "2", "3"]
    assert third["controller.quorum.voters"] == "1@127.0.0.1:9001,2@127.0.0.2:9001,3@127.0.0.3:9001"
    assert third["listeners"] == "PLAINTEXT://127.0.0.3:9000,CONTROLLER://127.0.0.3:9001"
    assert "log.dirs=/e/kafka\n".replace("kafka", "kafka-3/data") in kafka.as_properties(third)


def test_cassandra_syncs_before_it_acknowledges() -> None:
    """With `periodic`, the default, a killed node alone loses what it acknowledged last."""
    text = cassandra.as_yaml(cassandra.settings(_ONE, 1, Path("/e/cassandra")))
    assert 'commitlog_sync: "batch"\n' in text
    assert 'rpc_address: "127.0.0.1"\n' in text
    assert "auto_snapshot: false\n" in text
    # Each value is JSON, which YAML contains.
    assert all(json.loads(line.partition(": ")[2]) is not None for line in text.splitlines())


def test_cassandra_is_in_no_hurry() -> None:
    """The program has slack and policy from its start; where neither can be set, it runs all the same."""
    say = (
        "import os; print(open('/proc/self/timerslack_ns').read().strip(), os.sched_getscheduler(0) == os.SCHED_BATCH)"
    )
    found = subprocess.run([*cassandra.UNHURRIED, sys.executable, "-c", say], check=True, capture_output=True)
    assert found.stdout.split() == [str(cassandra.TIMER_SLACK_NS).encode(), b"True"]
    elsewhere = [word.replace("/proc/self", "/nowhere").replace("chrt", "no-such-tool") for word in cassandra.UNHURRIED]
    found = subprocess.run([*elsewhere, sys.executable, "-c", "print('a b')"], check=True, capture_output=True)
    assert (found.stdout, found.stderr) == (b"a b\n", b"")


def test_three_nodes_of_cassandra_share_the_ring() -> None:
    """Each has its own address and token; all are asked for the others."""
    found = [cassandra.settings(_THREE, number, Path("/e")) for number in (1, 2, 3)]
    assert [one["listen_address"] for one in found] == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    assert len({one["initial_token"] for one in found}) == 3
    assert "127.0.0.1:9041,127.0.0.2:9041,127.0.0.3:9041" in json.dumps(found[0]["seed_provider"])
    assert "initial_token" not in cassandra.settings(_ONE, 1, Path("/e"))


def test_redis_evicts_nothing() -> None:
    """What is evicted from the request log would be published twice."""
    alone, member = (redis.settings(9010, Path("/e/data"), cluster=cluster) for cluster in (False, True))
    assert alone["maxmemory-policy"] == member["maxmemory-policy"] == "noeviction"
    assert "cluster-enabled" not in alone
    assert (member["cluster-enabled"], member["cluster-port"]) == ("yes", "9020")


def test_every_slot_of_the_cluster_is_at_one_node() -> None:
    """None is left out and none is given twice."""
    found = [redis.slots(index, 3) for index in range(3)]
    assert [slot for first, last in found for slot in range(first, last + 1)] == list(range(16_384))


def test_postgresql_syncs_before_it_acknowledges() -> None:
    """It listens on loopback alone, and on no Unix socket, whose path may be too long."""
    found = postgresql.settings(_ONE)
    assert (found["fsync"], found["synchronous_commit"]) == ("on", "on")
    assert (found["listen_addresses"], found["port"], found["unix_socket_directories"]) == ("127.0.0.1", "9050", "")
