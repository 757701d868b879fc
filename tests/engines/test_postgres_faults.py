"""What prefs bears of its PostgreSQL: restarts, kills, silence, fail-over, and servers that are set up wrongly."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mesh.envoy.pki import Authority, Names, create_authority, issue, pem
from mesh.errors import Failure, StartError, Unavailable
from mesh.postgres import CALL_LIMIT_S
from svc_prefs.ports import LogLimits, Stored
from svc_prefs.store import WishStore, open_store, store_admins
from tests.support.postgres_server import PostgresServer, postgres_server
from tests.support.wait import until

pytestmark = [pytest.mark.engines, pytest.mark.timeout(90)]

NOW_US = 1_700_000_000_000_000
SCHEMA = "wishes"
# A segment of the write-ahead log is as large; what is beyond is refused as by a full disk.
_LARGEST_FILE = 17 * 1024 * 1024


@pytest.fixture
async def server() -> AsyncIterator[PostgresServer]:
    """A server of the test's own, running, without any schema of ours."""
    async with postgres_server() as made:
        await made.make()
        await made.start()
        yield made


async def create(url: str) -> None:
    """Makes the schema that a URL names."""
    for admin in store_admins(url):
        await admin.create(dry_run=False)


async def findings(url: str) -> list[tuple[str, str, str]]:
    """What the check says that is not right."""
    return [
        (one.what, one.state, one.detail)
        for admin in store_admins(url)
        for one in await admin.check()
        if one.state != "ok"
    ]


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[WishStore]:
    """The store of wishes that a URL names."""
    store = open_store(url, data_dir=Path(), limits=LogLimits())
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def refused(url: str) -> str:
    """Why a process would not start."""
    with pytest.raises(StartError) as caught:
        async with opened(url):
            pass
    assert "\n" not in str(caught.value)
    return str(caught.value)


class Changing:
    """Recipients who change their choices all the time, and what they were answered."""

    def __init__(self, store: WishStore, count: int) -> None:
        self._store = store
        self.acked = {f"r{number}": 0 for number in range(count)}
        self.failed = 0
        self._ended = False

    async def change(self, recipient_id: str) -> None:
        """Changes one recipient's choices until the end; after a failure reads first which version is there."""
        version: int | None = 0
        while not self._ended:
            try:
                if version is None:
                    version = await self.stored(recipient_id)
                    assert version >= self.acked[recipient_id], "what was answered is lost"
                assert await self._store.prefs.replace(Stored("acme", recipient_id, version + 1, b"x"), NOW_US)
                version += 1
                self.acked[recipient_id] = version
            except Unavailable:
                self.failed += 1
                version = None
                # Refused at once while the server is away: give way to the others.
                await asyncio.sleep(0)

    async def stored(self, recipient_id: str) -> int:
        """The version that the store has."""
        rows = (await self._store.prefs.get_many("acme", [recipient_id])).rows
        return rows[0].version if rows else 0

    async def advance(self, by: int) -> None:
        """Waits until everybody got so many more answers."""
        before = dict(self.acked)
        await until(lambda: all(self.acked[one] >= before[one] + by for one in before), 20, "everybody goes on")

    async def fail(self) -> None:
        """Waits until a call fails."""
        before = self.failed
        await until(lambda: self.failed > before, 10, "calls fail")

    def end(self) -> None:
        """No more changes."""
        self._ended = True


@pytest.mark.parametrize("ending", ["stop", "kill"])
async def test_a_restart_under_load_costs_nothing_that_was_answered(server: PostgresServer, ending: str) -> None:
    """Calls fail while the server is away, go on by themselves when it is back, and what was answered is there."""
    url = server.url(schema=SCHEMA)
    await create(url)
    async with opened(url) as store, asyncio.TaskGroup() as group:
        changing = Changing(store, 6)
        for recipient_id in changing.acked:
            group.create_task(changing.change(recipient_id))
        for _ in range(2):
            await changing.advance(by=20)
            await (server.stop() if ending == "stop" else server.kill())
            await changing.fail()
            await server.start()
        await changing.advance(by=20)
        changing.end()
    async with opened(url) as again:
        stored = (await again.prefs.get_many("acme", list(changing.acked))).rows
        assert {one.recipient_id: one.version for one in stored} == changing.acked


async def test_a_server_that_says_nothing_holds_nobody(server: PostgresServer) -> None:
    """Every call fails within its limit, also more of them than there are connections; then all goes on."""
    url = server.url(schema=SCHEMA, connections="2")
    await create(url)
    async with opened(url) as store:
        await store.prefs.replace(Stored("acme", "alice", 1, b"x"), NOW_US)
        server.still()
        begin = time.monotonic()
        calls = [store.prefs.get_many("acme", ["alice"]) for _ in range(5)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert time.monotonic() - begin < CALL_LIMIT_S + 5
        assert [type(one).__name__ for one in results] == ["PostgresError"] * 5
        assert "no answer in time" in str(results[0])
        server.wake()
        assert (await store.prefs.get_many("acme", ["alice"])).rows[0].version == 1


async def test_a_call_that_is_given_up_harms_no_later_one(server: PostgresServer) -> None:
    """Its connection is not used again: the next answer is that of the next question."""
    url = server.url(schema=SCHEMA, connections="1")
    await create(url)
    async with opened(url) as store:
        for number in range(20):
            await store.prefs.replace(Stored("acme", f"r{number}", 1, b"%d" % number), NOW_US)
        for number in range(20):
            given_up = asyncio.ensure_future(store.prefs.get_many("acme", ["r0"]))
            # Somewhere on its way: not begun, waiting for a connection, or for the answer.
            for _ in range(number % 5):
                await asyncio.sleep(0)
            given_up.cancel()
            await asyncio.wait([given_up])
            rows = (await store.prefs.get_many("acme", [f"r{number}"])).rows
            assert [row.preferences for row in rows] == [b"%d" % number]


async def test_a_full_server_is_said(server: PostgresServer) -> None:
    """When there are no connections left, calls fail with what to do about it, and go on later."""
    url = server.url(schema=SCHEMA)
    await create(url)
    await server.stop()
    await server.start(max_connections="5", superuser_reserved_connections="0")
    async with opened(url) as store:
        calls = [store.prefs.replace(Stored("acme", f"r{number}", 1, b""), NOW_US) for number in range(8)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        refusals = [str(one) for one in results if isinstance(one, Failure)]
        assert all("raise the server's max_connections" in one for one in refusals)
        assert await store.prefs.replace(Stored("acme", "alice", 1, b""), NOW_US)


# ---------------------------------------------------------------- set up wrongly


async def test_a_start_without_a_schema_says_how_to_make_it(server: PostgresServer) -> None:
    """Neither database nor schema is made by a start."""
    assert await refused(server.url("wishes", schema=SCHEMA)) == (
        f"preferences and subscriptions at {server.url('wishes', schema=SCHEMA)}: database wishes: is not there; "
        "make it with `heliograph stores create`"
    )
    assert "schema wishes: is not there; make it with `heliograph stores create`" in await refused(
        server.url(schema=SCHEMA)
    )
    await create(server.url("wishes", schema=SCHEMA))
    async with opened(server.url("wishes", schema=SCHEMA)):
        pass
    assert (
        await server.query("select pg_encoding_to_char(encoding) from pg_database where datname = 'wishes'") == "UTF8"
    )


async def test_passwords_come_from_a_file_and_a_wrong_one_is_one_line(server: PostgresServer, tmp_path: Path) -> None:
    """The file's content is in no text."""
    await create(server.url(schema=SCHEMA))
    await server.query("create role prefs login password 'open sesame'")
    await server.query(f"grant usage on schema {SCHEMA} to prefs")
    await server.query(f"grant select, insert, update, delete on all tables in schema {SCHEMA} to prefs")
    server.write("data/pg_hba.conf", "host all prefs all scram-sha-256\nhost all all all trust\n")
    await server.query("select pg_reload_conf()")
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("prefs:open sesame\n")
    wrong.write_text("prefs:open sim sim\n")
    async with opened(server.url(schema=SCHEMA, credentials=str(right))) as store:
        assert await store.prefs.replace(Stored("acme", "alice", 1, b""), NOW_US)
    said = await refused(server.url(schema=SCHEMA, credentials=str(wrong)))
    assert 'password authentication failed for user "prefs"; correct name and password in the file' in said
    assert "sim sim" not in said
    assert 'password authentication failed for user "prefs"' in await refused(server.url(schema=SCHEMA, role="prefs"))
    await server.query(f"revoke update on {SCHEMA}.wish_log from prefs")
    assert "grant update on wishes.wish_log to this role" in await refused(
        server.url(schema=SCHEMA, credentials=str(right))
    )


async def test_settings_that_break_promises_are_named() -> None:
    """Each is one finding, and the start is refused."""
    async with postgres_server() as server:
        await server.make(encoding="SQL_ASCII")
        await server.start(fsync="off", full_page_writes="off", synchronous_commit="off")
        url = server.url(schema=SCHEMA)
        await create(url)
        lost = "is off, must be on: what was answered would be lost when the server is killed"
        assert await findings(url) == [
            ("encoding of the database", "wrong", "is SQL_ASCII, must be UTF8"),
            ("fsync", "wrong", lost),
            ("full_page_writes", "wrong", lost),
            ("synchronous_commit", "wrong", lost),
        ]
        assert "encoding of the database: is SQL_ASCII, must be UTF8; correct it" in await refused(url)


async def test_a_server_that_takes_no_writes_is_said(server: PostgresServer) -> None:
    """At the start, and while the process runs; it goes on by itself when writes are taken again."""
    url = server.url(schema=SCHEMA)
    await create(url)
    async with opened(url) as store:
        assert await store.prefs.replace(Stored("acme", "alice", 1, b""), NOW_US)
        await server.reload(default_transaction_read_only="on")
        seen: list[str] = []

        async def is_refused() -> bool:
            try:
                await store.prefs.replace(Stored("acme", f"r{len(seen)}", 1, b""), NOW_US)
            except Unavailable as error:
                seen.append(error.message)
            return bool(seen)

        await until(is_refused, 10, "writes are refused")
        assert "switch its default_transaction_read_only off" in seen[0]
        assert ("default_transaction_read_only", "wrong", "is on, must be off") in await findings(url)
        await server.reload(default_transaction_read_only="off")

        async def is_taken() -> bool:
            try:
                return await store.prefs.replace(Stored("acme", "bob", 1, b""), NOW_US)
            except Unavailable:
                return False

        await until(is_taken, 10, "writes are taken")


# ---------------------------------------------------------------- fail-over


async def test_a_process_follows_a_fail_over_and_its_numbers_do_not_return(server: PostgresServer) -> None:
    """The standby becomes the primary: nobody restarts anything, and every number of before resets whoever has it."""
    url = server.url(schema=SCHEMA)
    await create(url)
    async with postgres_server() as standby:
        await standby.copy(server)
        await standby.start()
        assert ("server", "wrong", "is a standby that takes no writes; name the primary") in await findings(
            standby.url(schema=SCHEMA)
        )
        both = url.replace("127.0.0.1", f"127.0.0.1:{standby.port},127.0.0.1", 1)
        async with opened(both) as store:
            for number in range(3):
                assert await store.prefs.replace(Stored("acme", f"r{number}", 1, b""), NOW_US)
            before = (await store.prefs.get_many("acme", [])).change_number

            async def is_copied() -> bool:
                return await standby.query(f"select count(*) from {SCHEMA}.preferences") == "3"

            await until(is_copied, 10, "the standby has everything")
            await server.kill()
            await standby.promote()
            found = await store.prefs.get_many("acme", ["r0", "r1", "r2"])
            assert len(found.rows) == 3
            assert found.change_number > before + 3
            for number in (before - 3, before, before + 1):
                assert (await store.prefs.list_changes(number, 10)).reset
            assert await store.prefs.replace(Stored("acme", "alice", 1, b""), NOW_US)
            changes = await store.prefs.list_changes(found.change_number, 10)
            assert (changes.owners, changes.reset) == ([("acme", "alice")], False)


async def test_a_primary_that_falls_silent_is_left_for_the_next_one(server: PostgresServer) -> None:
    """As when its machine is gone: connections hang, new ones too, and the standby that was promoted is found."""
    url = server.url(schema=SCHEMA)
    await create(url)
    async with postgres_server() as standby:
        await standby.copy(server)
        await standby.start()
        async with opened(url.replace(f":{server.port}", f":{server.port},127.0.0.1:{standby.port}")) as store:
            assert await store.prefs.replace(Stored("acme", "alice", 1, b""), NOW_US)
            # Several connections, so that not only one of them hangs.
            await asyncio.gather(*(store.prefs.get_many("acme", ["alice"]) for _ in range(8)))

            async def is_copied() -> bool:
                return await standby.query(f"select count(*) from {SCHEMA}.preferences") == "1"

            await until(is_copied, 10, "the standby has everything")
            server.still()
            await standby.promote()
            with pytest.raises(Unavailable, match="no answer in time"):
                await store.prefs.get_many("acme", ["alice"])
            # From the next call on: what hung once is not asked again.
            assert len((await store.prefs.get_many("acme", ["alice"])).rows) == 1
            begin = time.monotonic()
            assert await store.prefs.replace(Stored("acme", "bob", 1, b""), NOW_US)
            assert time.monotonic() - begin < CALL_LIMIT_S / 2


async def test_a_password_may_be_changed_while_the_process_runs(server: PostgresServer, tmp_path: Path) -> None:
    """The file is read at each connect: the new password counts without a restart."""
    await create(server.url(schema=SCHEMA))
    await server.query("create role prefs superuser login password 'one'")
    server.write("data/pg_hba.conf", "host all prefs all scram-sha-256\nhost all all all trust\n")
    await server.query("select pg_reload_conf()")
    file = tmp_path / "credentials"
    file.write_text("prefs:one\n")
    async with opened(server.url(schema=SCHEMA, credentials=str(file))) as store:
        await server.query("alter role prefs password 'two'")
        await server.stop()
        await server.start()
        with pytest.raises(Unavailable, match="password authentication failed"):
            await store.prefs.get_many("acme", ["alice"])
        file.write_text("no password in it\n")
        with pytest.raises(Unavailable, match="must hold one line, name:password"):
            await store.prefs.get_many("acme", ["alice"])
        file.write_text("prefs:two\n")
        assert (await store.prefs.get_many("acme", ["alice"])).rows == []


async def test_a_disk_that_takes_no_more_costs_nothing_that_was_answered(server: PostgresServer) -> None:
    """Changes are refused, what was answered is read, and changes are taken again when there is room."""
    url = server.url(schema=SCHEMA)
    await create(url)
    chance = random.Random(3)
    await server.limit_files(_LARGEST_FILE)
    async with opened(url) as store:
        kept: list[str] = []
        refusals: list[str] = []
        while not refusals:
            recipient_id = f"r{len(kept)}"
            assert len(kept) < 100
            try:
                stored = Stored("acme", recipient_id, 1, chance.randbytes(1_000_000))
                assert await store.prefs.replace(stored, NOW_US)
                kept.append(recipient_id)
            except Unavailable as error:
                refusals.append(error.message)
        assert "could not extend file" in refusals[0]
        assert "\n" not in refusals[0]
        for recipient_id in kept:
            rows = (await store.prefs.get_many("acme", [recipient_id])).rows
            assert [(row.version, len(row.preferences)) for row in rows] == [(1, 1_000_000)]
        await server.limit_files(None)
        assert await store.prefs.replace(Stored("acme", f"r{len(kept)}", 1, chance.randbytes(1_000_000)), NOW_US)


# ---------------------------------------------------------------- TLS


async def serve_tls(server: PostgresServer, authority: Authority, *, lifetime: float, clients: str = "") -> None:
    """Gives the server a certificate and lets nobody in without TLS."""
    leaf = issue(authority, Names("postgres", addresses=("127.0.0.1",)), time.time(), lifetime)
    server.write("server.crt", leaf.certificate.decode())
    server.write("server.key", leaf.key.decode())
    server.write("ca.crt", pem(authority.certificate).decode())
    server.write("data/pg_hba.conf", f"hostssl all all all {clients or 'trust'}\n")
    folder = server.folder
    await server.start(
        ssl="on",
        ssl_cert_file=f"{folder}/server.crt",
        ssl_key_file=f"{folder}/server.key",
        ssl_ca_file=f"{folder}/ca.crt",
    )


async def test_tls_is_checked_and_an_expired_certificate_is_one_line(server: PostgresServer, tmp_path: Path) -> None:
    """Who is asked must prove it by a certificate of the roots that the URL names, and one that is still good."""
    await create(server.url(schema=SCHEMA))
    authority, stranger = (create_authority(name, time.time(), 3600) for name in ("ours", "stranger"))
    ours, theirs = tmp_path / "ours.pem", tmp_path / "theirs.pem"
    ours.write_bytes(pem(authority.certificate))
    theirs.write_bytes(pem(stranger.certificate))
    await server.stop()
    await serve_tls(server, authority, lifetime=3600)
    async with opened(server.url(schema=SCHEMA, ca=str(ours))) as store:
        assert await store.prefs.replace(Stored("acme", "alice", 1, b""), NOW_US)
    assert "certificate verify failed" in await refused(server.url(schema=SCHEMA, ca=str(theirs)))
    assert "no encryption" in await refused(server.url(schema=SCHEMA))
    await server.stop()
    await serve_tls(server, authority, lifetime=-60)
    assert "certificate has expired" in await refused(server.url(schema=SCHEMA, ca=str(ours)))


async def test_a_client_may_be_known_by_its_certificate(server: PostgresServer, tmp_path: Path) -> None:
    """With cert= and key= no password is needed; without them the server lets nobody in."""
    await create(server.url(schema=SCHEMA))
    authority = create_authority("ours", time.time(), 3600)
    leaf = issue(authority, Names("postgres"), time.time(), 3600)
    files = {"ca": pem(authority.certificate), "cert": leaf.certificate, "key": leaf.key}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    await server.stop()
    await serve_tls(server, authority, lifetime=3600, clients="cert")
    options = {name: str(tmp_path / name) for name in files}
    async with opened(server.url(schema=SCHEMA, **options)) as store:
        assert await store.prefs.replace(Stored("acme", "alice", 1, b""), NOW_US)
    assert "certificate" in await refused(server.url(schema=SCHEMA, ca=options["ca"]))
