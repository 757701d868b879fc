"""A running site as its own parts see it: calls under a service's identity, and what its processes listen on.

Must not judge: what an insider may do is read from the contract by the tests.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import grpc
import grpc.aio

from mesh.channel import NODE_HEADER
from mesh.identity import CALLER_HEADER
from tests.support.site import Metadata, Site

_LISTENS = "0A"
_INODE = re.compile(r"socket:\[(\d+)\]")


class Listener(NamedTuple):
    """One open port."""

    process: str
    address: ipaddress.IPv4Address | ipaddress.IPv6Address
    port: int


@asynccontextmanager
async def inside(site: Site, path: str, process: str) -> AsyncIterator[tuple[grpc.aio.Channel, Metadata]]:
    """Opens a channel to a process of the site, and returns it with what its caller must say.

    Args:
        site: the site.
        path: who calls: "svc/fanout".
        process: whom it calls: a service, or the id of a gateway node.
    """
    running = site.cluster.running
    if not site.mesh:
        async with grpc.aio.insecure_channel(f"unix:{running.run_dir}/{process}.sock") as channel:
            yield channel, ((CALLER_HEADER, path),)
        return
    name = f"{running.processes[process].service}.{running.trust_domain}"
    async with site.dial(running.inbound[process], site.leaf(path), name) as channel:
        yield channel, ((NODE_HEADER, process),)


def services_of(site: Site) -> dict[str, str]:
    """Returns the service of every process that runs one, by the process's name."""
    processes = site.cluster.running.processes.values()
    return {one.name: one.service for one in processes if one.kind == "service"}


def listeners_of(site: Site) -> list[Listener]:
    """Returns every port that `heliograph up` and its children hold open, for TCP and UDP."""
    running = site.cluster.running
    names = {one.pid: one.name for one in running.processes.values()}
    inodes = {
        inode: names.get(pid, f"process {pid}") for pid in _descendants(running.pid) for inode in _sockets_of(pid)
    }
    return [
        Listener(inodes[inode], address, port)
        for table in ("tcp", "tcp6", "udp", "udp6")
        for inode, address, port in _open_ports(Path("/proc/net", table))
        if inode in inodes
    ]


def _descendants(pid: int) -> Iterator[int]:
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                # The name of a program may have spaces and brackets in it.
                parent = int(Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(entry))
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += parents.get(one, [])


def _sockets_of(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    for entry in os.listdir(folder):
        try:
            match = _INODE.fullmatch(os.readlink(f"{folder}/{entry}"))
        except OSError:
            continue
        if match is not None:
            yield match[1]


def _open_ports(table: Path) -> Iterator[tuple[str, ipaddress.IPv4Address | ipaddress.IPv6Address, int]]:
    for line in table.read_text().splitlines()[1:]:
        (
            _,
            local,
            _,
            state,
            *_,
        ) = fields = line.split()
        if table.name.startswith("tcp") and state != _LISTENS:
            continue
        words, _, port = local.partition(":")
        # Each word of four bytes is in the order of this machine.
        raw = b"".join(bytes.fromhex(words[at : at + 8])[::-1] for at in range(0, len(words), 8))
        yield fields[9], ipaddress.ip_address(raw), int(port, 16)
