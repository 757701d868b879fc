"""Which URL each service gets on real engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from heliograph_cli.engines import DEFAULT_NAME, Engines, read_engines, service_flags, service_urls
from heliograph_cli.failures import USAGE, CommandFailed

ALL = Engines(
    kafka="kafka://127.0.0.1:9092",
    redis="redis://127.0.0.1:6379",
    cassandra="cassandra://127.0.0.1:9042",
    postgresql="postgresql://127.0.0.1:5432/postgres",
)


def test_each_service_gets_its_stores() -> None:
    """The name is prefix, keyspace and schema."""
    assert service_urls(ALL, "blue") == {
        "ingest": {
            "lanes_url": "kafka://127.0.0.1:9092/blue",
            "request_log_url": "redis://127.0.0.1:6379/0?prefix=blue",
        },
        "fanout": {"lanes_url": "kafka://127.0.0.1:9092/blue"},
        "presence": {"store_url": "redis://127.0.0.1:6379/0?prefix=blue"},
        "prefs": {"store_url": "postgresql://127.0.0.1:5432/postgres?schema=blue"},
        "delivery": {
            "store_url": "cassandra://127.0.0.1:9042/blue",
            "follow_ups_url": "kafka://127.0.0.1:9092/blue",
        },
    }


def test_options_of_a_url_stay_and_beat_what_is_derived() -> None:
    """TLS and credentials come from the file; replicas are added where the URL does not say them."""
    engines = Engines(
        kafka="kafka://a:1,b:2/?ca=/etc/ca.pem", cassandra="cassandra://c:3/?replicas=2&credentials=/etc/x", replicas=1
    )
    assert service_urls(engines, "blue") == {
        "ingest": {"lanes_url": "kafka://a:1,b:2/blue?ca=/etc/ca.pem&replicas=1"},
        "fanout": {"lanes_url": "kafka://a:1,b:2/blue?ca=/etc/ca.pem&replicas=1"},
        "presence": {},
        "prefs": {},
        "delivery": {
            "store_url": "cassandra://c:3/blue?replicas=2&credentials=/etc/x",
            "follow_ups_url": "kafka://a:1,b:2/blue?ca=/etc/ca.pem&replicas=1",
        },
    }


def test_redis_is_named_as_each_kind_of_it_is() -> None:
    """A server has databases, a Cluster none, and behind sentinels there is a service."""
    for url, keys in (
        ("redis://a:1", "redis://a:1/0?prefix=blue"),
        ("redis+cluster://a:1,b:2/", "redis+cluster://a:1,b:2/?prefix=blue"),
        ("redis+sentinel://a:1/main?ca=x", "redis+sentinel://a:1/main?ca=x&prefix=blue"),
    ):
        assert service_urls(Engines(redis=url), "blue")["presence"] == {"store_url": keys}


def test_flags_are_those_of_the_services() -> None:
    """A setting's flag is spelled with dashes."""
    flags = service_flags(ALL, DEFAULT_NAME)
    assert flags["prefs"] == ("--store-url", "postgresql://127.0.0.1:5432/postgres?schema=heliograph")
    assert flags["ingest"][::2] == ("--lanes-url", "--request-log-url")
    assert service_flags(Engines(redis="redis://h"), "a")["fanout"] == ()


@pytest.mark.parametrize("name", ["", "Blue", "blue-green", "1a", "a" * 33, "a;drop"])
def test_a_name_must_be_one_everywhere(name: str) -> None:
    """What no keyspace can be called is refused before anything is made."""
    with pytest.raises(CommandFailed, match="must begin with a small letter") as caught:
        service_urls(ALL, name)
    assert caught.value.code == USAGE


def test_the_file_is_read(tmp_path: Path) -> None:
    """Other keys, as of a cluster that serves tests, are no matter."""
    file = tmp_path / "engines.json"
    file.write_text('{"kafka": "kafka://h:1", "redis_cluster": "redis+cluster://h:2", "replicas": 1}')
    assert read_engines(file) == Engines(kafka="kafka://h:1", replicas=1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file or directory"),
        ("{", "must be JSON"),
        ('{"kafka": 1}', "must be JSON"),
        ('{"redis_cluster": "x"}', "names none of kafka"),
    ],
)
def test_a_broken_file_is_one_line(tmp_path: Path, text: str | None, said: str) -> None:
    """It says which file, and what it must be."""
    file = tmp_path / "engines.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(CommandFailed, match=said) as caught:
        read_engines(file)
    assert str(caught.value).startswith(f"{file}: ")
