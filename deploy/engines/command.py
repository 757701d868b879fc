"""The commands; the exit code is 1 when something is missing or fails."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from deploy.engines import compose, jars, kafka
from deploy.engines.choices import (
    DEFAULT_BASE_PORT,
    LAST_BASE_PORT,
    Choices,
    cache_folder,
    default_folder,
)
from deploy.engines.failures import EnginesFailed
from deploy.engines.machine import look
from deploy.engines.running import FILE, Engines, recall

# Where the files lie that other programs read.
DEPLOY = Path(__file__).resolve().parents[1]


def main(arguments: Sequence[str]) -> int:
    """Does what was asked for; returns the exit code."""
    given = _parser().parse_args(arguments)
    # Who is told to end stops what it has begun to start.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    folder = (given.folder or default_folder()).absolute()
    try:
        return _act(given, folder)
    except EnginesFailed as failed:
        for line in failed.lines:
            print(f"engines: {line}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _act(given: argparse.Namespace, folder: Path) -> int:
    if given.command == "tool":
        return _tool(given.words, folder)
    if given.command == "compose":
        for name, content in compose.files().items():
            (DEPLOY / name).write_text(content, encoding="utf-8")
        return 0
    earlier = recall(folder)
    if given.command == "start":
        return _start(given, folder)
    if earlier is None:
        print(f"nothing runs: no engines were started in {folder}")
        return 0 if given.command == "stop" else 1
    engines = Engines(earlier, os.environ, _say)
    if given.command == "stop":
        engines.stop(given.only)
    elif given.command == "kill":
        engines.kill(given.name)
    elif given.command == "restart":
        engines.restart(given.name)
    else:
        return _show(engines, folder)
    return 0


def _start(given: argparse.Namespace, folder: Path) -> int:
    began = time.monotonic()
    choices = Choices(folder, given.base_port, given.nodes, given.quick)
    found = Engines(choices, os.environ, _say).start(given.only)
    print(f"the engines serve after {time.monotonic() - began:.1f} s; logs and data are in {folder}")
    for name, value in found.items():
        print(f"  {name:<14} {value}")
    print(f"  addresses      {folder / FILE}")
    return 0


def _show(engines: Engines, folder: Path) -> int:
    states = engines.states()
    for one in states:
        more = f"  pid {one.pid}, {one.memory_mib} MiB" if one.pid else ""
        print(f"{one.name:<16} {one.state:<8} {one.address}{more}")
    print(f"addresses in {folder / FILE}")
    return 0 if all(one.state == "serving" for one in states) else 1


def _tool(words: Sequence[str], folder: Path) -> int:
    java, cache = look(os.environ, folder).java, cache_folder(os.environ)
    if java is None or not jars.is_fetched(cache, kafka.JARS):
        raise EnginesFailed("no Java, or Kafka was not fetched: run `start` first")
    command = [java.program, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{jars.library(cache, kafka.JARS)}/*", *words]
    os.execv(java.program, command)


def _say(line: str) -> None:
    print(line, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m deploy.engines", description="The engines on this machine.")
    parser.add_argument("--folder", type=Path, help=f"data, logs and {FILE}; default: {default_folder()}")
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("start", help="start what does not run, and say where it is")
    start.add_argument("--nodes", type=int, choices=(1, 3), default=1, help="Kafka brokers and Cassandra nodes")
    start.add_argument("--base-port", type=_base_port, default=DEFAULT_BASE_PORT, help="the first of 60 ports")
    start.add_argument("--quick", action="store_true", help="quicker to start, slower under load: for tests")
    stop = commands.add_parser("stop", help="stop what runs, in order")
    for one in (start, stop):
        one.add_argument("--only", action="append", default=[], metavar="NAME", help="this server or engine only")
    for name, text in (("kill", "end it with SIGKILL"), ("restart", "stop it in order, and start it")):
        commands.add_parser(name, help=text).add_argument("name", help="a server or an engine")
    commands.add_parser("state", help="ask every server; exit code 1 when one has no answer")
    commands.add_parser("compose", help=f"write {compose.COMPOSE_FILE} and {compose.ADDRESSES_FILE} anew")
    tool = commands.add_parser("tool", help="run a class of Kafka's command-line tools")
    tool.add_argument("words", nargs=argparse.REMAINDER, metavar="CLASS ARGUMENTS")
    return parser


def _base_port(text: str) -> int:
    port = int(text)
    if not 1 <= port <= LAST_BASE_PORT:
        raise argparse.ArgumentTypeError(f"must be from 1 to {LAST_BASE_PORT}")
    return port
