"""A Redis that is set up wrongly stops the start with one line that names what is wrong, and lets no secret out."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mesh.envoy.pki import Authority, Names, create_authority, issue, pem
from mesh.errors import Unavailable
from mesh.redis_connections import Access
from mesh.stores import Credentials
from svc_ingest.limits import REQUEST_LEASE_S
from svc_ingest.ports import Fresh, Pending
from tests.support.redis_servers import RedisServer, redis_server, replicated, tls_before
from tests.support.redis_stores import claim, lease, opened, present, refused, url_of

pytestmark = pytest.mark.engines

NOW = 1_700_000_000.0


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RedisServer]:
    """A server of the test's own."""
    async with redis_server(tmp_path) as running:
        yield running


async def test_wrong_credentials_are_one_line(tmp_path: Path) -> None:
    """A wrong password, or none, and the right one."""
    (tmp_path / "right").write_text("default:secret\n")
    (tmp_path / "wrong").write_text("default:secret2\n")
    async with redis_server(tmp_path, "requirepass secret") as server:
        assert "invalid username-password" in await refused(url_of(server, credentials=str(tmp_path / "wrong")))
        assert "Authentication required" in await refused(url_of(server))
        async with opened(url_of(server, credentials=str(tmp_path / "right"))) as log:
            assert await log.begin([claim(1)], NOW) == [Fresh(1_000)]


async def test_a_login_without_rights_is_one_line(tmp_path: Path) -> None:
    """A login may read and not write; another one may do all but look at the server, and that suffices."""
    (tmp_path / "reader").write_text("reader:secret\n")
    (tmp_path / "plain").write_text("plain:secret\n")
    async with redis_server(tmp_path) as server:
        await server.ask(("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@read", "+info"))
        rights = ("~own:*", "~{own:*", "+@read", "+@write", "+@scripting", "+time", "+ping")
        await server.ask(("ACL", "SETUSER", "plain", "on", ">secret", *rights))
        assert "writes at 127.0.0.1" in await refused(url_of(server, credentials=str(tmp_path / "reader")))
        url = url_of(server, credentials=str(tmp_path / "plain"))
        async with opened(url) as log, present(url) as store:
            assert await log.begin([claim(1)], NOW) == [Fresh(1_000)]
            assert (await store.renew(lease(), 0.0)).lease is not None
        found = await server.ask(("PING",), access=Access(credentials=Credentials("plain", "secret")))
        assert found == [b"PONG"]


async def test_what_must_be_set_otherwise_is_named(server: RedisServer, tmp_path: Path) -> None:
    """A database that there is not, another kind of server, an eviction policy, no Redis at all."""
    assert "DB index is out of range" in await refused(url_of(server, "99"))
    assert "cluster support disabled" in await refused(f"redis+cluster://127.0.0.1:{server.port}?prefix=own")
    await server.ask(("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"))
    line = await refused(url_of(server))
    assert f"maxmemory-policy of 127.0.0.1:{server.port}: is allkeys-lru, must be noeviction" in line


async def test_a_replica_is_refused(tmp_path: Path) -> None:
    """At the start, and when a primary becomes one while it is used."""
    async with replicated(tmp_path) as (primary, replica):
        assert "is a read-only replica: name the primary" in await refused(url_of(replica))
        async with opened(url_of(primary)) as log:
            await log.begin([claim(1)], NOW)
            await primary.ask(("REPLICAOF", "127.0.0.1", replica.port))
            with pytest.raises(Unavailable, match="is a read-only replica: name the primary"):
                await log.begin([claim(2)], NOW)
            await primary.ask(("REPLICAOF", "NO", "ONE"))
            assert await log.begin([claim(2)], NOW) == [Fresh(1_000)]


async def test_tls_is_checked_and_an_expired_certificate_is_one_line(server: RedisServer, tmp_path: Path) -> None:
    """Trusted roots are those of the URL, and names and times are looked at."""
    authority = create_authority("ours", time.time(), 86_400)
    stranger = create_authority("theirs", time.time(), 86_400)
    ours, theirs = tmp_path / "ours.pem", tmp_path / "theirs.pem"
    ours.write_bytes(pem(authority.certificate))
    theirs.write_bytes(pem(stranger.certificate))

    def url(port: int, ca: Path) -> str:
        return f"redis://127.0.0.1:{port}/0?prefix=own&ca={ca}"

    async with tls_before(server, *leaf(tmp_path, authority, "127.0.0.1", 3_600.0)) as port:
        async with opened(url(port, ours)) as log, opened(url(port, ours).replace("redis:", "rediss:")) as other:
            assert await log.begin([claim(1)], NOW) == [Fresh(1_000)]
            assert await other.begin([claim(1, "twin")], NOW) == [Pending(REQUEST_LEASE_S)]
        assert "certificate: unable to get local issuer" in await refused(url(port, theirs))
    async with tls_before(server, *leaf(tmp_path, authority, "127.0.0.2", 3_600.0)) as port:
        assert "certificate: IP address mismatch" in await refused(url(port, ours))
    async with tls_before(server, *leaf(tmp_path, authority, "127.0.0.1", -60.0)) as port:
        assert "certificate has expired" in await refused(url(port, ours))


def leaf(folder: Path, authority: Authority, address: str, lifetime: float) -> tuple[Path, Path]:
    """Writes a server's certificate and its key."""
    issued = issue(authority, Names("redis", addresses=(address,)), time.time(), lifetime)
    files = folder / f"{address}{lifetime}.crt", folder / f"{address}{lifetime}.key"
    files[0].write_bytes(issued.certificate)
    files[1].write_bytes(issued.key)
    return files
