"""Apache Kafka in KRaft mode: brokers that are controllers too, with settings that keep what was acknowledged."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deploy.engines import jars, probes
from deploy.engines.choices import INNER_OFFSET, Choices
from deploy.engines.failures import EnginesFailed
from deploy.engines.machine import Java
from deploy.engines.server import Server

VERSION: Final = "4.1.1"
JARS: Final = jars.Jars(
    name=f"kafka-{VERSION}",
    wanted=(
        jars.Jar("org.apache.kafka", "kafka_2.13", VERSION),
        # The tools of the command line, without the web server that one of them brings.
        jars.Jar(
            "org.apache.kafka",
            "kafka-tools",
            VERSION,
            without=(
                "org.apache.kafka:connect-runtime",
                "com.fasterxml.jackson.jakarta.rs:jackson-jakarta-rs-json-provider",
            ),
        ),
        # Without one of these it is silent about its own faults.
        jars.Jar("org.slf4j", "slf4j-simple", "1.7.36"),
    ),
    witness=f"kafka_2.13-{VERSION}.jar",
)
# Any 16 bytes, the same for every broker of a cluster.
CLUSTER_ID: Final = "aGVsaW9ncmFwaC1kZXYtMQ"
_MEMORY_MIB: Final = 400
_HEAP: Final = "512m"

# How quickly a dead broker is noticed, and a killed one is let in again: 3 s instead of 9.
PACE: Final[Mapping[str, str]] = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
_CLUSTER_PACE: Final[Mapping[str, str]] = {
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1000",
    "replica.lag.time.max.ms": "5000",
}
_SMALL: Final[Mapping[str, str]] = {
    "num.network.threads": "2",
    "num.io.threads": "2",
    "background.threads": "2",
    "num.recovery.threads.per.data.dir": "1",
    "log.cleaner.threads": "1",
    # 128 MiB of the heap otherwise.
    "log.cleaner.dedupe.buffer.size": "8388608",
}


def promises(nodes: int) -> dict[str, str]:
    """Returns the settings that what is acknowledged rests on."""
    replicas, in_sync = (str(nodes), "2") if nodes > 1 else ("1", "1")
    found = {
        # Topics are made by `heliograph stores create`, never by a misspelled name.
        "auto.create.topics.enable": "false",
        "unclean.leader.election.enable": "false",
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "num.partitions": "1",
        # Three seconds otherwise, in which a new group reads nothing.
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": "4",
    }
    for topic in ("transaction.state.log", "share.coordinator.state.topic"):
        found |= {
            f"{topic}.replication.factor": replicas,
            f"{topic}.min.isr": in_sync,
            f"{topic}.num.partitions": "4",
        }
    return found


def settings(choices: Choices, number: int, folder: Path) -> dict[str, str]:
    """Returns a broker's settings; brokers count from 1."""
    hosts, port = choices.hosts("kafka"), choices.port("kafka")
    inner = port + INNER_OFFSET
    host = hosts[number - 1]
    return {
        "process.roles": "broker,controller",
        "node.id": str(number),
        "controller.quorum.voters": ",".join(f"{index}@{one}:{inner}" for index, one in enumerate(hosts, start=1)),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "listeners": f"PLAINTEXT://{host}:{port},CONTROLLER://{host}:{inner}",
        "advertised.listeners": f"PLAINTEXT://{host}:{port}",
        "log.dirs": str(folder / "data"),
        **promises(len(hosts)),
        **PACE,
        **(_CLUSTER_PACE if len(hosts) > 1 else {}),
        **_SMALL,
    }


def as_properties(found: Mapping[str, str]) -> str:
    """Returns settings as the broker reads them."""
    return "".join(f"{name}={value}\n" for name, value in found.items())


def servers(choices: Choices, cache: Path, java: Java | None) -> list[Server]:
    """Returns the brokers."""
    names = choices.names("kafka")
    return [_server(choices, cache, java, number, name) for number, name in enumerate(names, start=1)]


def _server(choices: Choices, cache: Path, java: Java | None, number: int, name: str) -> Server:
    folder, port = choices.folder / name, choices.port("kafka")
    host, marker = choices.hosts("kafka")[number - 1], f"-Dheliograph.dir={choices.folder / name}"
    program = java.program if java else "java"
    flags = _flags(choices)
    libraries = f"{jars.library(cache, JARS)}/*"
    archive = jars.archive(cache, JARS, java, flags, folder) if java else None
    properties = folder / "server.properties"

    def prepare() -> None:
        properties.write_text(as_properties(settings(choices, number, folder)), encoding="utf-8")
        if not (folder / "data" / "meta.properties").exists():
            _format(program, libraries, properties, name)

    def command() -> list[str]:
        more = archive.flags() if archive else []
        return [program, *flags, *more, marker, "-cp", libraries, "kafka.Kafka", str(properties)]

    return Server(
        name=name,
        engine="kafka",
        host=host,
        port=port,
        inner_port=port + INNER_OFFSET,
        folder=folder,
        marker=marker,
        memory_mib=_MEMORY_MIB,
        prepare=prepare,
        command=command,
        # It lists itself only when it serves: after a kill, when its earlier session has run out.
        answers=lambda: number in probes.kafka_brokers(host, port),
        ended=archive.keep if archive else lambda: None,
    )


def _flags(choices: Choices) -> list[str]:
    return [
        *("-Xms64m", f"-Xmx{_HEAP}", "-Xss512k", "-XX:+UseSerialGC", "-XX:MaxDirectMemorySize=128m"),
        *("-XX:+ExitOnOutOfMemoryError", "-XX:-UsePerfData", "-Djava.awt.headless=true"),
        *jars.compiling(quick=choices.quick),
        "-Djava.net.preferIPv4Stack=true",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
        "-Dlog4j2.loggerContextFactory=org.apache.logging.log4j.simple.SimpleLoggerContextFactory",
    ]


def _format(program: str, libraries: str, properties: Path, name: str) -> None:
    command = [program, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
    command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", libraries]
    command += ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise EnginesFailed(f"{name}: its storage cannot be formatted: {said[-1]}")
