"""Apache Cassandra, every acknowledged write synced to disk: a plain SIGKILL of a single node loses nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from deploy.engines import jars, probes
from deploy.engines.choices import INNER_OFFSET, Choices
from deploy.engines.machine import Java
from deploy.engines.server import Server

VERSION: Final = "5.0.6"
JARS: Final = jars.Jars(
    name=f"cassandra-{VERSION}",
    wanted=(jars.Jar("org.apache.cassandra", "cassandra-all", VERSION),),
    witness=f"cassandra-all-{VERSION}.jar",
)
_MEMORY_MIB: Final = 900
_HEAP: Final = "768m"
# The first security manager that has to be allowed by name.
_ALLOWED_BY_NAME: Final = 18
# Three nodes share the ring evenly, whoever starts first.
_TOKENS: Final = ("-9223372036854775808", "-3074457345618258603", "3074457345618258602")
Yaml = bool | int | str | Sequence[object] | Mapping[str, object]

# By so much the kernel may delay timed waits, to put them together; 50,000 ns unless told. Idle threads of a node look
# for work after waits that are meant to last 10 µs: with longer ones a loaded node takes a third less CPU (ADR 0068).
TIMER_SLACK_NS: Final = 2_000_000
# What runs behind this has that slack, and the policy of batch work: a thread that wakes does not push another one off
# its core, and each sync of the log wakes dozens of them. A process hands both on to its threads and to what it
# becomes; where one cannot be set, the node runs all the same.
_SLACKEN: Final = f"{{ echo {TIMER_SLACK_NS} > /proc/self/timerslack_ns; }} 2>/dev/null"
_AS_BATCH_WORK: Final = 'chrt --batch 0 true 2>/dev/null && exec chrt --batch 0 "$@"'
UNHURRIED: Final = ("/bin/sh", "-c", f'{_SLACKEN}; {_AS_BATCH_WORK}; exec "$@"', "sh")

# What an acknowledged write rests on: `periodic`, the default, syncs up to 100 ms after the answer.
PROMISES: Final[Mapping[str, Yaml]] = {
    "commitlog_sync": "batch",
    "disk_failure_policy": "die",
    "commit_failure_policy": "die",
    "hinted_handoff_enabled": True,
}
COMMON: Final[Mapping[str, Yaml]] = {
    "cluster_name": "heliograph",
    "num_tokens": 1,
    "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
    "endpoint_snitch": "SimpleSnitch",
    "authenticator": "AllowAllAuthenticator",
    "authorizer": "AllowAllAuthorizer",
    "role_manager": "CassandraRoleManager",
    # Else each truncation keeps a copy.
    "auto_snapshot": False,
    "read_request_timeout": "5s",
    "write_request_timeout": "2s",
    "counter_write_request_timeout": "5s",
    "cas_contention_timeout": "1s",
    "request_timeout": "10s",
}
SMALL: Final[Mapping[str, Yaml]] = {
    "commitlog_segment_size": "8MiB",
    "commitlog_total_space": "256MiB",
    "memtable_heap_space": "128MiB",
    "memtable_offheap_space": "64MiB",
    "memtable_flush_writers": 1,
    "concurrent_reads": 8,
    # No fewer than the threads that take messages: a write waits for the log in one of those, not in a second one too.
    "concurrent_writes": 64,
    "concurrent_counter_writes": 8,
    "concurrent_compactors": 1,
    # Faster, it takes all that is left of two cores for as long as it lasts (ADR 0068).
    "compaction_throughput": "3MiB/s",
    "key_cache_size": "8MiB",
    "file_cache_size": "32MiB",
    "networking_cache_size": "16MiB",
    "native_transport_max_threads": 32,
}
# A node that refuses the writes to single partitions that are listed in system_distributed.partition_denylist: what an
# operator stops a runaway partition with, and what the demo has a row refused with.
DENYING: Final[Mapping[str, Yaml]] = {
    "partition_denylist_enabled": True,
    "denylist_writes_enabled": True,
    "denylist_reads_enabled": False,
    "denylist_range_reads_enabled": False,
    "denylist_refresh": "1s",
    # The list has three copies by default, wherever there are as many nodes.
    "denylist_consistency_level": "ONE",
}


def settings(choices: Choices, number: int, folder: Path) -> dict[str, Yaml]:
    """Returns a node's settings; nodes count from 1."""
    hosts, port = choices.hosts("cassandra"), choices.port("cassandra")
    inner = port + INNER_OFFSET
    host = hosts[number - 1]
    seeds = ",".join(f"{one}:{inner}" for one in hosts)
    found: dict[str, Yaml] = {
        **COMMON,
        **PROMISES,
        **SMALL,
        **DENYING,
        "listen_address": host,
        "rpc_address": host,
        "storage_port": inner,
        "native_transport_port": port,
        "auto_bootstrap": False,
        "seed_provider": seed_provider(seeds),
        **directories(str(folder)),
    }
    return found | ({"initial_token": _TOKENS[number - 1]} if len(hosts) > 1 else {})


def seed_provider(seeds: str) -> Yaml:
    """Returns the setting that names the nodes to begin with."""
    return [{"class_name": "org.apache.cassandra.locator.SimpleSeedProvider", "parameters": [{"seeds": seeds}]}]


def directories(folder: str) -> dict[str, Yaml]:
    """Returns the settings that say where data lies."""
    found: dict[str, Yaml] = {"data_file_directories": [f"{folder}/data"]}
    return found | {
        f"{name}_directory": f"{folder}/{name}" for name in ("commitlog", "saved_caches", "hints", "cdc_raw")
    }


def as_yaml(found: Mapping[str, Yaml]) -> str:
    """Returns settings as the node reads them: each value in the form of JSON, which is YAML too."""
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in found.items())


def servers(choices: Choices, cache: Path, java: Java | None) -> list[Server]:
    """Returns the nodes."""
    names = choices.names("cassandra")
    return [_server(choices, cache, java, number, name) for number, name in enumerate(names, start=1)]


def _server(choices: Choices, cache: Path, java: Java | None, number: int, name: str) -> Server:
    folder, port = choices.folder / name, choices.port("cassandra")
    host, marker = choices.hosts("cassandra")[number - 1], f"-Dheliograph.dir={choices.folder / name}"
    libraries = jars.library(cache, JARS)
    flags = _flags(choices, java)
    archive = jars.archive(cache, JARS, java, flags, folder) if java else None

    def prepare() -> None:
        for one in ("tmp", "triggers"):
            (folder / one).mkdir(exist_ok=True)
        (folder / "cassandra.yaml").write_text(as_yaml(settings(choices, number, folder)), encoding="utf-8")
        (folder / "logback.xml").write_text(_LOGGING, encoding="utf-8")

    def command() -> list[str]:
        agents = [f"-javaagent:{one}" for one in sorted(libraries.glob("jamm-*.jar"))]
        more = archive.flags() if archive else []
        program = java.program if java else "java"
        main = ["-cp", f"{libraries}/*", "org.apache.cassandra.service.CassandraDaemon"]
        return [*UNHURRIED, program, *flags, *more, *agents, *_places(folder), marker, *main]

    return Server(
        name=name,
        engine="cassandra",
        host=host,
        port=port,
        inner_port=port + INNER_OFFSET,
        folder=folder,
        marker=marker,
        memory_mib=_MEMORY_MIB,
        prepare=prepare,
        command=command,
        answers=lambda: probes.cassandra_peers(host, port) is not None,
        ended=archive.keep if archive else lambda: None,
    )


def _flags(choices: Choices, java: Java | None) -> list[str]:
    return [
        *("-Xms256m", f"-Xmx{_HEAP}", "-Xss384k", "-XX:MaxDirectMemorySize=256m"),
        # With the serial collector a full collection of this heap stops the node for half a second.
        *("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=50", "-XX:ParallelGCThreads=2", "-XX:ConcGCThreads=1"),
        # Making an array of half a region begins to mark the heap once so many percent of it are in use: memtables
        # consist of arrays of 1 MiB, a flush makes one of 2. Left to itself, G1 soon takes 2 % for enough (ADR 0068).
        *("-XX:G1HeapRegionSize=8m", "-XX:InitiatingHeapOccupancyPercent=70", "-XX:-G1UseAdaptiveIHOP"),
        *("-XX:+ExitOnOutOfMemoryError", "-XX:-UsePerfData", "-Djava.awt.headless=true"),
        *jars.compiling(quick=choices.quick),
        "-Djava.net.preferIPv4Stack=true",
        *(["-Djava.security.manager=allow"] if java and java.version >= _ALLOWED_BY_NAME else []),
        *(word for one in _EXPORTS for word in ("--add-exports", f"{one}=ALL-UNNAMED")),
        *(word for one in _OPENS for word in ("--add-opens", f"{one}=ALL-UNNAMED")),
        *("-Djdk.attach.allowAttachSelf=true", "-Dio.netty.tryReflectionSetAccessible=true"),
        "-Dcassandra-foreground=yes",
        *pace(choices.nodes),
        # Else it measures this itself, for a second.
        "-Dcassandra.memtable.row_overhead_size=180",
    ]


def pace(nodes: int) -> list[str]:
    """Returns the flags that keep a node from waiting for others at its start and end."""
    return [
        # A node alone waits for nobody; of three, each gives the others this long.
        f"-Dcassandra.ring_delay_ms={10_000 if nodes > 1 else 0}",
        "-Dcassandra.skip_wait_for_gossip_to_settle=0",
        "-Dcassandra.superuser_setup_delay_ms=0",
        "-Dcassandra.shutdown_announce_in_ms=0",
    ]


def _places(folder: Path) -> list[str]:
    return [
        f"-Djava.io.tmpdir={folder}/tmp",
        f"-Djna.tmpdir={folder}/tmp",
        f"-Dcassandra.config=file://{folder}/cassandra.yaml",
        f"-Dcassandra.storagedir={folder}",
        f"-Dcassandra.logdir={folder}",
        f"-Dcassandra.triggers_dir={folder}/triggers",
        f"-Dlogback.configurationFile=file://{folder}/logback.xml",
    ]


_LOGGING: Final = """<configuration><appender name="OUT" class="ch.qos.logback.core.ConsoleAppender"><encoder>
<pattern>%d{HH:mm:ss.SSS} %-5level [%thread] %logger{20} %msg%n</pattern></encoder></appender>
<root level="WARN"><appender-ref ref="OUT"/></root></configuration>
"""
_EXPORTS: Final = (
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/java.lang.ref",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.sql/java.sql",
    "jdk.unsupported/sun.misc",
    "jdk.compiler/com.sun.tools.javac.file",
    "jdk.attach/sun.tools.attach",
)
_OPENS: Final = (
    *(f"java.base/java.lang{part}" for part in ("", ".module", ".reflect")),
    *(f"java.base/jdk.internal.{part}" for part in ("loader", "ref", "reflect", "math", "module", "util.jar")),
    *(f"java.base/{part}" for part in ("sun.nio.ch", "java.io", "java.nio")),
    *(f"java.base/java.util{part}" for part in ("", ".concurrent", ".concurrent.atomic")),
    "java.rmi/sun.rmi.transport.tcp",
    "jdk.management/com.sun.management.internal",
    "jdk.compiler/com.sun.tools.javac",
)
