"""What is broken before the start stops it: one line that says what and where, exit code 2, and nothing left running.

Settings, registries, token keys and store files, once for every service that reads them and once through
`heliograph up`; topology and certificates, which only the mesh has, through `heliograph up` alone.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mesh.envoy import certs
from mesh.envoy.topology import load_topology
from tests.support.ports import free_base_port
from tests.support.starts import DEPLOY, Ended, run_to_end, service_words

TOPOLOGY = DEPLOY / "topology.toml"
Breaking = Callable[[Path], None]


def _judge(ended: Ended, *says: str) -> str:
    """Returns the one line that a failed start left; it names everything that was asked for."""
    assert ended.code == 2, ended
    assert len(ended.complaints) == 1, ended
    (line,) = ended.complaints
    missing = [what for what in says if what not in line]
    assert missing == [], line
    return line


async def _start(service: str, folder: Path, *more: str, **environ: str) -> Ended:
    return await run_to_end(f"svc_{service}", *service_words(service, folder, *more), environ=environ)


async def _up(folder: Path, *words: str, state: str = "state") -> Ended:
    place = ("--state-dir", str(folder / state), "--gateways", "1", "--base-port", str(free_base_port()))
    # The sockets lie in the test's folder and go with it.
    return await run_to_end("heliograph_cli", "up", *place, *words, environ={"XDG_RUNTIME_DIR": str(folder)})


def _not_a_database(path: Path) -> None:
    path.write_bytes(b"not a database, and longer than the header of one would be. " * 4)


def _of_a_newer_program(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("create table later(what)")
        connection.execute("pragma user_version = 999")
    connection.close()


def _a_folder(path: Path) -> None:
    path.mkdir()


# ---------------------------------------------------------------- services


@pytest.mark.processes
async def test_a_broken_setting_stops_a_service(run_dir: Path) -> None:
    """The flag, the variable or the file and key is named, with what it may be."""
    own, none, long = run_dir / "own.toml", run_dir / "none.toml", run_dir / ("long" * 30)
    own.write_text('log_levle = "info"\n', encoding="utf-8")
    none.write_text("log_level = \n", encoding="utf-8")
    ended = await asyncio.gather(
        _start("ingest", run_dir, "--log-level", "loud"),
        _start("fanout", run_dir, HELIOGRAPH_FANOUT_DRAIN_LIMIT="soon"),
        _start("prefs", run_dir, "--config", str(own)),
        _start("presence", run_dir, "--config", str(none)),
        _start("delivery", run_dir, "--run-dir", str(long)),
        _start("gateway", run_dir),
    )
    _judge(ended[0], "heliograph ingest", "--log-level", "loud")
    _judge(ended[1], "heliograph fanout", "HELIOGRAPH_FANOUT_DRAIN_LIMIT", "soon")
    _judge(ended[2], "heliograph prefs", str(own), "log_levle", "log_level")
    _judge(ended[3], "heliograph presence", str(none), "TOML")
    _judge(ended[4], "heliograph delivery", "--run-dir", "107")
    _judge(ended[5], "heliograph gateway", "TOKENS_FILE")


@pytest.mark.processes
async def test_a_broken_setting_of_the_gateway_stops_it(run_dir: Path) -> None:
    """Where it listens, whose pages may connect, and what its node is called."""
    keys = certs.ensure_token_key(run_dir / "certs")[1]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        faults = {
            "--websocket-listen 0.0.0.0:80": ("--websocket-listen", "loopback"),
            f"--websocket-listen {address}": (address.partition(":")[2], "in use"),
            "--allowed-origins app.example": ("--allowed-origins", "app.example"),
            "--node-id a/b": ("--node-id", "a-z"),
        }
        ended = await asyncio.gather(
            *(_start("gateway", run_dir, "--tokens-file", str(keys), *words.split()) for words in faults)
        )
    for says, one in zip(faults.values(), ended, strict=True):
        _judge(one, "heliograph gateway", *says)


@pytest.mark.processes
async def test_broken_token_keys_stop_every_service_that_checks_tokens(run_dir: Path) -> None:
    """No key, a private key in the public file, and no JSON are told apart; a missing file is named."""
    contents = {"prefs": '{"keys": []}', "delivery": '{"keys": [{"kty": "OKP", "d": "x"}]}'}
    for service, content in contents.items():
        (run_dir / service).write_text(content, encoding="utf-8")
    services = (*contents, "gateway")
    ended = await asyncio.gather(
        *(_start(service, run_dir, "--tokens-file", str(run_dir / service)) for service in services)
    )
    for service, one in zip(services, ended, strict=True):
        _judge(one, service, str(run_dir / service))


@pytest.mark.processes
async def test_a_broken_store_file_stops_the_service_that_owns_it(run_dir: Path) -> None:
    """Whatever is wrong with it: the file is named, and left as it is."""
    cases: list[tuple[str, str, Breaking, str]] = [
        ("ingest", "requests.db", _not_a_database, "not a database"),
        ("ingest", "lanes/high.db", _a_folder, "unable to open"),
        ("fanout", "positions.db", _not_a_database, "not a database"),
        ("prefs", "prefs.db", _not_a_database, "not a database"),
        ("delivery", "inbox.db", _of_a_newer_program, "999"),
    ]
    starts, paths = [], []
    for number, (service, name, broken, _) in enumerate(cases):
        folder = run_dir / f"{number}"
        paths.append(folder / name)
        paths[-1].parent.mkdir(parents=True)
        broken(paths[-1])
        starts.append(_start(service, folder))
    for path, (service, _, _, says), ended in zip(paths, cases, await asyncio.gather(*starts), strict=True):
        _judge(ended, f"heliograph {service}", str(path), says)
        assert path.exists()


@pytest.mark.processes
async def test_a_store_without_a_known_scheme_stops_the_service(run_dir: Path) -> None:
    """The line repeats the URL and says which ones are known."""
    flags = {"fanout": "--lanes-url", "presence": "--store-url", "delivery": "--store-url"}
    ended = await asyncio.gather(
        *(_start(service, run_dir / service, flag, "mongodb://x") for service, flag in flags.items())
    )
    for service, one in zip(flags, ended, strict=True):
        _judge(one, service, "mongodb://x", "memory://" if service == "presence" else "sqlite:///")


@pytest.mark.processes
async def test_a_broken_registry_of_categories_stops_prefs(run_dir: Path) -> None:
    """File and key are named; the same file stops ingest, which has a test of its own."""
    live_only = b"[categories.a]\ntitle = 'A'\npriority = 'normal'\nchannels = ['live']\nenabled = true\n"
    contents = {b"[categories.general": "table", live_only: "categories.a.channels", b"\xff\xfe": "utf-8"}
    starts = []
    for number, content in enumerate(contents):
        path = run_dir / f"{number}.toml"
        path.write_bytes(content)
        starts.append(_start("prefs", run_dir, "--categories-file", str(path)))
    for number, (says, ended) in enumerate(zip(contents.values(), await asyncio.gather(*starts), strict=True)):
        _judge(ended, str(run_dir / f"{number}.toml"), says)


# ---------------------------------------------------------------- up, without a mesh


@pytest.mark.processes
async def test_up_names_what_it_cannot_use_before_it_starts_anything(run_dir: Path) -> None:
    """A state folder that is a file, and a folder of keys without the right ones."""
    (run_dir / "file").write_text("", encoding="utf-8")
    keys = run_dir / "state" / "certs" / "tokens"
    keys.mkdir(parents=True)
    (keys / "jwks.json").write_text("[]", encoding="utf-8")
    ended = await asyncio.gather(_up(run_dir, "--direct", state="file"), _up(run_dir, "--direct"))
    _judge(ended[0], str(run_dir / "file"))
    _judge(ended[1], str(keys / "jwks.json"))
    assert [one.out for one in ended if "started" in one.out] == []


@pytest.mark.processes
async def test_up_stops_at_a_store_that_a_service_cannot_use(run_dir: Path) -> None:
    """The service's own line is `up`'s, and everything that was started is stopped again."""
    path = run_dir / "state" / "data" / "inbox.db"
    path.parent.mkdir(parents=True)
    _not_a_database(path)
    ended = await _up(run_dir, "--direct")
    _judge(ended, "delivery", str(path), "not a database")
    assert "started (pid" in ended.out
    for word in ended.out.split("(pid ")[1:]:
        with pytest.raises(ProcessLookupError):
            os.kill(int(word.partition(")")[0]), 0)


# ---------------------------------------------------------------- up, with a mesh


def _topology(*changes: tuple[str, str]) -> str:
    text = TOPOLOGY.read_text(encoding="utf-8")
    for old, new in changes:
        assert text.count(old) >= 1, old
        text = text.replace(old, new, 1)
    return text


@pytest.mark.mesh
@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("base_port = \n", ("TOML",)),
        (_topology(("base_port = 7400\n", "")), ("base_port",)),
        (_topology(("base_port = 7400", "base_port = 'high'")), ("base_port",)),
        (_topology(("[windows]\n", "[windows]\nstream_byte = 1\n")), ("windows", "stream_byte")),
        (_topology(("port = 12", "port = 11")), ("services.fanout.port", "services.ingest.port")),
        (_topology(("stream_bytes = 1048576", "stream_bytes = 10")), ("windows.stream_bytes",)),
        (_topology(("PrefsService", "PreferenceService")), ("PreferenceService",)),
    ],
    ids=["no-toml", "missing", "wrong-type", "unknown-key", "port-twice", "out-of-range", "unknown-service"],
)
async def test_a_broken_topology_stops_up(run_dir: Path, content: str, says: Sequence[str]) -> None:
    """File and key are named before a certificate or a process is made."""
    path = run_dir / "topology.toml"
    path.write_text(content, encoding="utf-8")
    ended = await _up(run_dir, "--topology", str(path))
    _judge(ended, str(path), *says)
    assert "started" not in ended.out


def _write(folder: Path, name: str, content: bytes) -> None:
    (folder / "current" / name).write_bytes(content)


def _broken_certificate(folder: Path) -> None:
    _write(folder, "cert.pem", b"-----BEGIN CERTIFICATE-----\n")


def _broken_key(folder: Path) -> None:
    _write(folder, "key.pem", b"")


def _key_of_another(folder: Path) -> None:
    _write(folder, "key.pem", (folder.parent / "edge" / "current" / "key.pem").read_bytes())


def _authority_of_another(folder: Path) -> None:
    _write(folder, "ca.pem", (folder / "current" / "cert.pem").read_bytes())


def _missing_key(folder: Path) -> None:
    (folder / "current" / "key.pem").unlink()


def _open_key(folder: Path) -> None:
    (folder / "current" / "key.pem").chmod(0o644)


@pytest.mark.mesh
@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (_broken_certificate, "cert.pem"),
        (_broken_key, "key.pem"),
        (_key_of_another, "do not belong together"),
        (_authority_of_another, "not signed"),
        (_missing_key, "key.pem"),
        (_open_key, "chmod 600"),
    ],
)
async def test_a_broken_certificate_stops_up(run_dir: Path, broken: Breaking, says: str) -> None:
    """The identity's folder is named, with what to do; nothing is silently made anew."""
    folder = run_dir / "state" / "certs"
    certs.ensure(folder, certs.identities(load_topology(TOPOLOGY)), time.time())
    broken(folder / "svc" / "ingest")
    ended = await _up(run_dir)
    _judge(ended, str(folder / "svc" / "ingest"), says)
    assert "started" not in ended.out


@pytest.mark.mesh
async def test_a_broken_authority_stops_up(run_dir: Path) -> None:
    """A root whose key is another's signs nothing any more."""
    folder = run_dir / "state" / "certs"
    certs.ensure(folder, certs.identities(load_topology(TOPOLOGY)), time.time())
    (folder / "ca" / "key.pem").write_bytes((folder / "svc" / "edge" / "current" / "key.pem").read_bytes())
    _judge(await _up(run_dir), str(folder / "ca"), "do not belong together")
