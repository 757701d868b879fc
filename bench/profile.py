"""Where the time goes: py-spy on every service while a load runs: `python -m bench.profile [--load NAME]`.

Prints for each process the functions that were on top of the stack, as shares of the samples that used CPU, grouped by
what they belong to. Needs py-spy (a development dependency) and the right to read other processes.
"""

from __future__ import annotations

import argparse
import collections
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

from bench.e2e import LOADS, Load, measure
from bench.installation import Installation
from bench.measures import table

_SAMPLES_A_SECOND = 200
_PACKAGES = (
    (re.compile(r"\(grpc/|grpc/aio|cygrpc"), "gRPC"),
    (re.compile(r"sqlite"), "SQLite"),
    (re.compile(r"google/protobuf|_pb2"), "protobuf"),
    (re.compile(r"\((svc_\w+)/"), "own rules and shell"),
    (re.compile(r"\(mesh/"), "mesh"),
    # With uvloop all of the loop, and the kernel below it, is one frame.
    (re.compile(r"asyncio|selectors|uvloop|threading|queue"), "event loop, kernel, gRPC's poller"),
)


def profile(installation: Installation, load: Load, seconds: float) -> Mapping[str, collections.Counter[str]]:
    """Runs a load and returns the samples of each Python process by leaf frame."""
    folder = Path(tempfile.mkdtemp(prefix="hg-profile-"))
    processes = {name: one.pid for name, one in installation.up.processes.items() if one.kind == "service" and one.pid}
    recorders = []

    def record() -> None:
        for name, pid in processes.items():
            command = ["py-spy", "record", "--pid", str(pid), "--duration", str(round(seconds - 3)), "--format", "raw"]
            command += ["--rate", str(_SAMPLES_A_SECOND), "--output", str(folder / name), "--nonblocking"]
            recorders.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    timer = threading.Timer(3.0, record)
    timer.start()
    measure(installation, load, seconds=seconds, sessions=500)
    timer.join()
    for recorder in recorders:
        recorder.wait()
    return {name: _leaves(folder / name) for name in processes if (folder / name).exists()}


def _leaves(file: Path) -> collections.Counter[str]:
    found: collections.Counter[str] = collections.Counter()
    for line in file.read_text(encoding="utf-8").splitlines():
        stack, _, count = line.rpartition(" ")
        found[stack.rpartition(";")[2]] += int(count)
    return found


def _part(frame: str) -> str:
    return next((name for pattern, name in _PACKAGES if pattern.search(frame)), "other")


def main() -> None:
    """Profiles one load."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", choices=LOADS, default="ten recipients 4,000/s")
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--top", type=int, default=8, help="functions to list a process")
    chosen = parser.parse_args()
    with Installation(direct=True) as installation:
        measure(installation, Load("warm-up", 200.0, batch=10), seconds=2.0, sessions=100)
        found = profile(installation, LOADS[chosen.load], chosen.seconds)
    for name, leaves in found.items():
        total = sum(leaves.values()) or 1
        groups: collections.Counter[str] = collections.Counter()
        for frame, count in leaves.items():
            groups[_part(frame)] += count
        print(f"\n{name}: {total} samples, by what was on top")
        print(table(("part", "share"), [(part, f"{count / total:.0%}") for part, count in groups.most_common()]))
        print(table(("function", "share"), [(f, f"{c / total:.1%}") for f, c in leaves.most_common(chosen.top)]))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
