"""URLs of Kafka, what its failures become, and how much is heard of its client."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from aiokafka import errors
from structlog.testing import capture_logs

from mesh.errors import StartError
from mesh.kafka import KafkaUnavailable, parse_cluster, translated
from mesh.kafka_clients import GroupConsumer, _refuse_commits_of_nobody


def test_a_url_names_brokers_prefix_and_copies() -> None:
    """What it does not say is as production needs it."""
    cluster = parse_cluster("lanes_url", "kafka://one:9092,two/hg.main?partitions=12&sasl=PLAIN")
    assert cluster.connection()["bootstrap_servers"] == ["one:9092", "two:9092"]
    assert (cluster.prefix, cluster.partitions, cluster.replicas, cluster.mechanism) == ("hg.main", 12, 3, "PLAIN")
    assert cluster.connection()["security_protocol"] == "PLAINTEXT"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("kafka://one", "names no prefix"),
        ("kafka://one/a b", "names no prefix"),
        ("kafka:///hg", "names no host"),
        ("kafka://one/hg?partitions=0", "partitions=0"),
        ("kafka://one/hg?replicas=many", "replicas=many"),
        ("kafka://one/hg?retention=1", "unknown option 'retention'"),
        ("kafka://one/hg?sasl=GSSAPI", "sasl=GSSAPI"),
        ("kafka://me:secret@one/hg", "a name or password in a URL"),
        ("pulsar://one/hg", "is no known store"),
    ],
)
def test_a_wrong_url_is_told_in_one_line(url: str, said: str) -> None:
    """With the setting, what is wrong, and without what may be a secret."""
    with pytest.raises(StartError) as caught:
        parse_cluster("lanes_url", url)
    text = str(caught.value)
    assert said in text
    assert text.startswith("lanes_url: ")
    assert "\n" not in text
    assert "secret" not in text


def test_credentials_come_from_their_file(tmp_path: Path) -> None:
    """Name and password reach the client, and neither is in the URL's text."""
    path = tmp_path / "credentials"
    path.write_text("heliograph:open sesame\n", encoding="utf-8")
    cluster = parse_cluster("lanes_url", f"kafka://one/hg?credentials={path}")
    found = cluster.connection()
    assert (found["sasl_plain_username"], found["sasl_plain_password"]) == ("heliograph", "open sesame")
    assert (found["security_protocol"], found["sasl_mechanism"]) == ("SASL_PLAINTEXT", "SCRAM-SHA-512")
    assert "sesame" not in cluster.text
    assert "sesame" not in repr(cluster)


@pytest.mark.parametrize(
    ("error", "unknown"),
    [
        (errors.MessageSizeTooLargeError(), False),
        (errors.TopicAuthorizationFailedError("t"), False),
        (errors.RequestTimedOutError(), True),
        (errors.NotEnoughReplicasAfterAppendError(), True),
        (TimeoutError(), True),
        (ConnectionResetError("gone"), True),
    ],
)
def test_what_a_broker_refused_was_surely_not_done(error: Exception, *, unknown: bool) -> None:
    """Any other failure may have come after the deed."""
    with pytest.raises(KafkaUnavailable) as caught, translated("topic t", unknown=True):
        raise error
    assert caught.value.unknown is unknown
    assert caught.value.message.startswith("topic t: ")
    assert caught.value.retriable
    with pytest.raises(KafkaUnavailable) as caught, translated("topic t"):
        raise error
    assert not caught.value.unknown


def test_brokers_that_are_too_old_are_told() -> None:
    """Whichever way the client says that no version of a request fits."""
    for error in (NotImplementedError("v0"), errors.IncompatibleBrokerVersion("v0")):
        with pytest.raises(KafkaUnavailable, match=r"Kafka 3\.1 or newer"), translated("topics"):
            raise error


def test_a_failure_says_what_callers_branch_on() -> None:
    """Too large, denied, an old generation; another error of a program passes."""
    for error, name in (
        (errors.RecordListTooLargeError(), "too_large"),
        (errors.GroupAuthorizationFailedError("g"), "denied"),
        (errors.IllegalGenerationError(), "old_generation"),
    ):
        with pytest.raises(KafkaUnavailable) as caught, translated("it"):
            raise error
        assert [one for one in ("too_large", "denied", "old_generation") if getattr(caught.value, one)] == [name]
    with pytest.raises(KeyError), translated("it"):
        raise KeyError("x")


def test_an_outage_is_one_line() -> None:
    """However often the client says it."""
    parse_cluster("lanes_url", "kafka://one/hg").connection()
    client = logging.getLogger("aiokafka.client")
    with capture_logs() as lines:
        for _ in range(50):
            client.error("Unable connect to node with id %s", 1)
        client.info("all is well")
    assert len([line for line in lines if line["event"] == "kafka_client"]) <= 1
    assert len(lines) <= 1


class _Coordinator:
    """The client's part that speaks to the group."""

    group_id = "lane"

    def __init__(self) -> None:
        self.generation = 7
        self.sent: list[int] = []

    async def _do_commit_offsets(self, _assignment: object, _offsets: object) -> None:
        self.sent.append(self.generation)


class _Consumer:
    """A client that loses its place in the group while a commit is under way."""

    def __init__(self, coordinator: _Coordinator, *, forgotten: bool) -> None:
        self._coordinator = coordinator
        self._forgotten = forgotten

    async def commit(self, offsets: object) -> None:
        if self._forgotten:
            self._coordinator.generation = -1
        await self._coordinator._do_commit_offsets(None, offsets)


@pytest.mark.parametrize(
    ("generation", "forgotten", "sent"), [(7, False, [7]), (6, False, []), (8, False, []), (7, True, [])]
)
async def test_only_a_member_of_the_generation_that_has_the_partitions_commits(
    generation: int, forgotten: bool, sent: list[int]
) -> None:
    """Neither one that has another place by now, nor one that the group does not know: a group of nobody takes that."""
    coordinator = _Coordinator()
    group = GroupConsumer.__new__(GroupConsumer)
    group._topic = "lane"
    group._consumer = _Consumer(coordinator, forgotten=forgotten)
    _refuse_commits_of_nobody(coordinator)
    if sent:
        await group.commit({0: 5}, generation)
    else:
        with pytest.raises(KafkaUnavailable) as refused:
            await group.commit({0: 5}, generation)
        assert refused.value.old_generation
    assert coordinator.sent == sent
