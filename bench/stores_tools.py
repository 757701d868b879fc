"""The engines' own tools on the same work: what our adapters add is the difference.

`kafka-producer-perf-test` and `pgbench` are programs; Redis comes without its benchmark in the wheel, so a bare loop
stands for it; Cassandra's is the Python driver alone. Must not use an adapter.
"""

from __future__ import annotations

import asyncio
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.measures import cpu_seconds
from bench.stores_cost import Cost, cost, ended_seconds
from bench.stores_loads import CONTENT
from mesh.stores import EngineUrl, Host

_RECORDS: Final = 60_000
_CALLERS: Final = 64
_PERF: Final = re.compile(
    r"(\d+) records sent, ([\d.]+) records/sec.* ms max latency, (\d+) ms 50th, \d+ ms 95th, (\d+) ms 99th"
)


def _ran(command: Sequence[str]) -> tuple[str, float]:
    """Returns what a program said and its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {(done.stderr or done.stdout).strip().splitlines()[-1:]}")
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def kafka(host: Host, topic: str, engine: Mapping[str, int]) -> Cost:
    """`kafka-producer-perf-test`, as fast as it goes; its CPU has the start of its JVM in it."""
    command = [sys.executable, "-m", "deploy.engines", "tool", "org.apache.kafka.tools.ProducerPerformance"]
    command += ["--topic", topic, "--num-records", str(_RECORDS), "--record-size", str(len(CONTENT))]
    command += ["--throughput", "-1", "--producer-props", f"bootstrap.servers={host}", "acks=all"]
    theirs = sum(cpu_seconds(engine).values())
    said, used = _ran([*command, "enable.idempotence=true", "linger.ms=0"])
    theirs = sum(cpu_seconds(engine).values()) - theirs
    found = _PERF.findall(said)
    if not found:
        raise RuntimeError(f"kafka-producer-perf-test said: {said[-200:]}")
    count, rate, p50, p99 = found[-1]
    return Cost(
        "lane append, 64 callers",
        "kafka-producer-perf-test",
        rate=round(float(rate)),
        client_us=round(used / int(count) * 1e6, 1),
        engine_us=round(theirs / int(count) * 1e6, 1),
        p50=float(p50),
        p99=float(p99),
    )


def pgbench(program: Path, host: Host, database: str, schema: str, engine: Mapping[str, int], seconds: int) -> Cost:
    """`pgbench` with the query of a page, prepared, four clients."""
    ids = ",".join(f"r{one:05d}" for one in range(500))
    query = (
        f"select tenant_id, recipient_id, version, preferences from {schema}.preferences "
        f"where tenant_id = 'bench' and recipient_id = any('{{{ids}}}'::text[]);\n"
    )
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(query)
        script.flush()
        command = [str(program), "-h", host.name, "-p", str(host.port), "-U", "postgres", "-n", "-M", "prepared"]
        # Each of its connections is a process of the server, which has ended when it has.
        theirs = ended_seconds(engine)
        said, used = _ran([*command, "-c", "4", "-j", "1", "-T", str(seconds), "-f", script.name, database])
        theirs = ended_seconds(engine) - theirs
    calls = int(re.findall(r"actually processed: (\d+)", said)[0])
    average = float(re.findall(r"latency average = ([\d.]+)", said)[0])
    items = calls * 500
    return Cost(
        "preferences, page of 500",
        "pgbench, p50 is the mean",
        rate=round(items / seconds),
        client_us=round(used / items * 1e6, 2),
        engine_us=round(theirs / items * 1e6, 2),
        p50=average,
        p99=0.0,
    )


async def redis(host: Host, engine: Mapping[str, int], seconds: float) -> Cost:
    """A bare loop over one connection: MGETs of 500 keys, four at once."""
    reader, writer = await asyncio.open_connection(host.name, host.port)
    keys = [b"bench:%05d" % one for one in range(500)]
    writer.write(b"".join(_command(b"SET", key, CONTENT[:40], b"EX", b"60") for key in keys))
    for _ in keys:
        await reader.readline()
    ask = _command(b"MGET", *keys)
    size = len(b"*500\r\n") + len(keys) * (len(b"$40\r\n") + 42)
    theirs, used, began = sum(cpu_seconds(engine).values()), time.process_time(), time.perf_counter()
    micros: list[int] = []
    asked = [time.perf_counter()] * 4
    writer.write(ask * 4)
    while time.perf_counter() - began < seconds:
        await reader.readexactly(size)
        now = time.perf_counter()
        micros.append(round((now - asked.pop(0)) * 1e6))
        asked.append(now)
        writer.write(ask)
    lasted, used = time.perf_counter() - began, time.process_time() - used
    theirs = sum(cpu_seconds(engine).values()) - theirs
    writer.close()
    return cost("presence, look-up of 500", "bare MGET loop", len(micros) * 500, lasted, used, theirs, micros)


def _command(*words: bytes) -> bytes:
    return b"*%d\r\n%s" % (len(words), b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))


def cassandra(url: EngineUrl, engine: Mapping[str, int], seconds: float) -> Cost:
    """The Python driver alone: one insert a row, 64 in flight, from its own callbacks."""
    from cassandra import ConsistencyLevel
    from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile

    profile = ExecutionProfile(consistency_level=ConsistencyLevel.LOCAL_QUORUM)
    hosts = [(host.name, host.port) for host in url.hosts]
    cluster: Any = Cluster(hosts, compression=False, execution_profiles={EXEC_PROFILE_DEFAULT: profile})
    session = cluster.connect(url.name)
    insert = session.prepare(
        "insert into inbox (tenant, recipient, high, id, category, revision, content, stamp, head) "
        "values ('bench', ?, false, ?, 'general', 1, ?, ?, ?) using ttl 7776000"
    )
    micros: list[int] = []
    try:
        theirs, used, began = sum(cpu_seconds(engine).values()), time.process_time(), time.perf_counter()
        _insert(session.execute_async, insert, micros, began + seconds)
        lasted, used = time.perf_counter() - began, time.process_time() - used
        theirs = sum(cpu_seconds(engine).values()) - theirs
    finally:
        cluster.shutdown()
    return cost("inbox, rows of 50 recipients", "python driver alone", len(micros), lasted, used, theirs, micros)


def _insert(execute: Callable[..., Any], insert: object, micros: list[int], end: float) -> None:
    turns, failed = threading.Semaphore(_CALLERS), threading.Event()

    def done(_: object, began: float) -> None:
        micros.append(round((time.perf_counter() - began) * 1e6))
        turns.release()

    def fail(_: object) -> None:
        failed.set()
        turns.release()

    number = 0
    while (now := time.perf_counter()) < end and not failed.is_set():
        turns.acquire()
        number += 1
        values = (f"alone-{number % 20_000}", number.to_bytes(16, "big"), CONTENT, number, number)
        execute(insert, values).add_callbacks(done, fail, callback_args=(now,))
    for _ in range(_CALLERS):
        turns.acquire()
    if failed.is_set():
        raise RuntimeError("a row was not inserted")
