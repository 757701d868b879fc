"""The containers have the settings of the runner."""

from __future__ import annotations

import json
from pathlib import Path

import deploy.engines
from deploy.engines import cassandra, compose, kafka, postgresql, redis
from deploy.engines.choices import ENGINES, KEYS

_DEPLOY = Path(deploy.engines.__file__).resolve().parents[1]


def test_the_files_are_as_the_runner_would_have_them() -> None:
    """Whoever changes a setting of the runner changes the containers too."""
    for name, content in compose.files().items():
        assert (_DEPLOY / name).read_text(encoding="utf-8") == content, "run `python -m deploy.engines compose`"


def test_what_promises_rest_on_reaches_every_container() -> None:
    """Each engine takes its settings in another way, and all of them are there."""
    text = compose.files()[compose.COMPOSE_FILE]
    for name, value in {**kafka.promises(1), **kafka.PACE}.items():
        assert f"      {compose.kafka_variable(name)}: {json.dumps(value)}\n" in text
    for name, setting in cassandra.PROMISES.items():
        assert f"      {name}: {json.dumps(setting)}\n" in text
    for name, value in redis.PROMISES.items():
        assert text.count(json.dumps([f"--{name}", value])[1:-1]) == 4
    for name, value in postgresql.PROMISES.items():
        assert f'"-c", "{name}={value}"' in text


def test_cassandra_is_in_as_little_hurry_as_the_runners() -> None:
    """Its image's own entry point runs behind it; a dollar that Compose is not to read is doubled."""
    services = compose.compose()["services"]
    assert isinstance(services, dict)
    entry = [word.replace("$$", "$") for word in services["cassandra"]["entrypoint"]]
    assert entry == [*cassandra.UNHURRIED, "docker-entrypoint.sh"]
    assert services["cassandra"]["command"] == ["cassandra", "-f"]


def test_every_port_is_on_loopback_alone() -> None:
    """The containers ask nobody for a password."""
    services = compose.compose()["services"]
    assert isinstance(services, dict)
    published = [port for service in services.values() for port in service.get("ports", ())]
    assert len(published) == 7
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_the_addresses_name_every_engine() -> None:
    """The file can be given to `heliograph up` and to the tests."""
    found = json.loads(compose.files()[compose.ADDRESSES_FILE])
    assert set(found) == {*(KEYS[engine] for engine in ENGINES), "replicas"}


def test_a_setting_becomes_the_variable_that_the_image_reads() -> None:
    """Dots become underscores, and what were underscores and dashes are told apart from them."""
    assert compose.kafka_variable("log.dirs") == "KAFKA_LOG_DIRS"
    assert compose.kafka_variable("a_b.c") == "KAFKA_A__B_C"


def test_yaml_is_readable() -> None:
    """Mappings stand below each other, lists and texts are those of JSON, and long texts keep their lines."""
    text = compose.as_yaml({"a": {"b": ["x", "y"], "c": {}}, "d": "one\ntwo\n", "e": True})
    assert text == 'a:\n  b: ["x", "y"]\n  c: {}\nd: |\n  one\n  two\ne: true\n'
