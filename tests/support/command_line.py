"""Other people's programs, run as an operator runs them, and the flags by which each is told certificates and names.

Must not judge what a program said.
"""

from __future__ import annotations

import asyncio
import sysconfig
from pathlib import Path
from typing import NamedTuple

from heliograph_cli.connection import OPERATOR
from mesh.identity import CALLER_HEADER
from tests.support.cluster import PRODUCER, TENANT
from tests.support.site import Site
from tests.support.tools import GRPCURL, HEALTH_PROBE, installed

DESCRIPTORS = Path(__file__).resolve().parents[2] / "gen" / "heliograph" / "descriptors.binpb"
AS_OPERATOR = f"operator/{OPERATOR}"
AS_PRODUCER = f"producer/{TENANT}/{PRODUCER}"
AS_FANOUT = "svc/fanout"

_LIMIT_S = 20.0


class Done(NamedTuple):
    """How a program ended and what it said."""

    code: int
    output: str
    errors: str

    @property
    def said(self) -> str:
        """All of it, for failures' texts."""
        return f"exit code {self.code}\n{self.output}\n{self.errors}"


async def run(*words: str | Path) -> Done:
    """Runs a program to its end."""
    process = await asyncio.create_subprocess_exec(
        *map(str, words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_LIMIT_S):
            output, errors = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    assert process.returncode is not None
    return Done(process.returncode, output.decode(), errors.decode())


class Place(NamedTuple):
    """Somewhere to call: "host:port", and the name that its certificate is checked for."""

    address: str
    name: str


def sidecar(site: Site, process: str) -> Place:
    """Returns a service's inbound port; of the gateway's nodes by their ids."""
    running = site.cluster.running
    return Place(running.inbound[process], f"{running.processes[process].service}.{running.trust_domain}")


def edge(site: Site, *, as_producer: bool = False) -> Place:
    """Returns the edge, under the name that demands a producer's certificate or the one that demands none."""
    running = site.cluster.running
    return Place(running.edge, running.producer_host if as_producer else "localhost")


async def grpcurl(site: Site, place: Place, *words: str, identity: str = "", before: tuple[str, ...] = ()) -> Done:
    """Runs grpcurl.

    Args:
        site: whose authority is trusted.
        place: where to call.
        words: what comes behind the address.
        identity: whose certificate is shown; "" shows none.
        before: further flags.
    """
    flags = ["-cacert", str(_roots(site)), "-servername", place.name]
    flags += ["-connect-timeout", "3", "-max-time", "10", *before]
    if identity:
        certificate, key = _files(site, identity)
        flags += ["-cert", str(certificate), "-key", str(key)]
    return await run(installed(GRPCURL), *flags, place.address, *words)


async def grpcurl_plain(site: Site, process: str, *words: str, caller: str = "", before: tuple[str, ...] = ()) -> Done:
    """Runs grpcurl at a service's own socket, where a site without a mesh has no certificates.

    Args:
        site: without a mesh.
        process: whose socket.
        words: what comes behind the address.
        caller: who one says one is.
        before: further flags.
    """
    flags = ["-plaintext", "-unix", "-max-time", "10", *before]
    flags += ["-H", f"{CALLER_HEADER}: {caller}"] if caller else []
    return await run(installed(GRPCURL), *flags, _socket(site, process), *words)


async def probe_plain(site: Site, process: str, service: str) -> Done:
    """Asks for the health of one service name at a service's own socket, as an operator."""
    flags = ["-addr", f"unix:{_socket(site, process)}", "-service", service]
    return await run(installed(HEALTH_PROBE), *flags, "-rpc-header", f"{CALLER_HEADER}: {AS_OPERATOR}")


async def probe(site: Site, place: Place, service: str, *, identity: str = "", connect_limit_s: int = 10) -> Done:
    """Asks for the health of one service name; arguments as for `grpcurl`."""
    flags = ["-addr", place.address, "-service", service, "-tls", "-tls-ca-cert", str(_roots(site))]
    flags += ["-tls-server-name", place.name, "-connect-timeout", f"{connect_limit_s}s", "-rpc-timeout", "5s"]
    if identity:
        certificate, key = _files(site, identity)
        flags += ["-tls-client-cert", str(certificate), "-tls-client-key", str(key)]
    return await run(installed(HEALTH_PROBE), *flags)


async def buf_curl(site: Site, place: Place, path: str, *words: str, identity: str = "") -> Done:
    """Runs `buf curl` with the gRPC protocol; arguments as for `grpcurl`, `path` from the slash behind the address."""
    flags = ["--protocol", "grpc", "--cacert", str(_roots(site)), "--servername", place.name]
    flags += ["--connect-timeout", "5", "--timeout", "10s"]
    if identity:
        certificate, key = _files(site, identity)
        flags += ["--cert", str(certificate), "--key", str(key)]
    buf = Path(sysconfig.get_path("scripts")) / "buf"
    return await run(buf, "curl", *flags, *words, f"https://{place.address}{path}")


async def buf_curl_plain(site: Site, process: str, path: str, *words: str, caller: str = "") -> Done:
    """Runs `buf curl` at a service's own socket; arguments as for `grpcurl_plain` and `buf_curl`."""
    flags = ["--protocol", "grpc", "--http2-prior-knowledge", "--timeout", "10s"]
    flags += ["--unix-socket", _socket(site, process)]
    flags += ["--header", f"{CALLER_HEADER}: {caller}"] if caller else []
    # Without a schema it asks for one first.
    flags += ["--reflect-header", f"{CALLER_HEADER}: {caller}"] if caller and "--schema" not in words else []
    buf = Path(sysconfig.get_path("scripts")) / "buf"
    return await run(buf, "curl", *flags, *words, f"http://localhost{path}")


async def curl(
    site: Site, place: Place, method: str, path: str, *, body: str = "", token: str = "", identity: str = ""
) -> Done:
    """Runs curl; the last line of its output is the HTTP status.

    Args:
        site: whose authority is trusted.
        place: where to call.
        method: the HTTP method.
        path: with its query.
        body: JSON; "" sends none.
        token: sent as bearer token; "" sends none.
        identity: whose certificate is shown; "" shows none.
    """
    host, _, port = place.address.rpartition(":")
    flags = ["--silent", "--show-error", "--max-time", "10", "--cacert", str(_roots(site)), "--request", method]
    flags += ["--write-out", "\n%{http_code}", "--resolve", f"{place.name}:{port}:{host}"]
    flags += ["--header", f"authorization: Bearer {token}"] if token else []
    flags += ["--header", "content-type: application/json", "--data", body] if body else []
    if identity:
        certificate, key = _files(site, identity)
        flags += ["--cert", str(certificate), "--key", str(key)]
    return await run("curl", *flags, f"https://{place.name}:{port}{path}")


def _socket(site: Site, process: str) -> str:
    return f"{site.cluster.running.run_dir}/{process}.sock"


def _roots(site: Site) -> Path:
    return site.certs_dir / "ca" / "bundle.pem"


def _files(site: Site, identity: str) -> tuple[Path, Path]:
    current = site.certs_dir / identity / "current"
    return current / "cert.pem", current / "key.pem"
