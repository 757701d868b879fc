"""`heliograph up`: everything on one machine, and `heliograph down`.

One `up` a state folder, held by a lock that is gone with its process. It makes what is missing (folders, keys,
certificates, Envoy's files), starts everything at once, waits until all of it serves, and stops it in order.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from heliograph_cli import health, leftovers, record
from heliograph_cli.console import Console
from heliograph_cli.engines import DEFAULT_NAME, read_engines, service_flags
from heliograph_cli.failures import FAILED, USAGE, CommandFailed
from heliograph_cli.folders import DEFAULT_STATE_DIR, Folders, deploy_file, folders
from heliograph_cli.plan import EDGE, SINGLE, Choices, Plan, Process, plan_direct
from heliograph_cli.record import ProcessRecord, State, UpRecord, installed_version
from heliograph_cli.supervisor import Supervisor
from mesh.clock import SteadyClock, SystemClock
from mesh.errors import StartError
from mesh.filelock import FileLock

READY_LIMIT_S = 60.0
DEFAULT_PORT = 7400

_TRUST_DOMAIN = "heliograph.local"
_DOWN_LIMIT_S = 90.0


class UpOptions(msgspec.Struct, frozen=True):
    """What `heliograph up` was asked for; None stands for what comes with the package.

    Attributes:
        engines: file that says where the engines are; None: stores are embedded.
        name: of this installation at the engines.
        create: make what is missing there before the start.
    """

    state_dir: Path = DEFAULT_STATE_DIR
    direct: bool = False
    gateways: int = 2
    base_port: int | None = None
    topology: Path | None = None
    categories: Path | None = None
    producers: Path | None = None
    trace: bool = False
    quiet: bool = False
    ready_limit: float = READY_LIMIT_S
    engines: Path | None = None
    name: str = DEFAULT_NAME
    create: bool = False


async def up(options: UpOptions) -> None:
    """Runs everything until a signal.

    Raises:
        CommandFailed: it cannot start; everything that was started is stopped again.
    """
    place = folders(options.state_dir)
    console = Console(quiet=options.quiet)
    place.make()
    lock = FileLock(place.lock)
    owner = await lock.acquire(0.0)
    if owner is not None:
        raise CommandFailed(
            f"the state folder {place.state} is in use by `heliograph up` (pid {owner}); "
            "stop that one with `heliograph down`, or give another --state-dir",
            USAGE,
        )
    try:
        await _end_leftovers(place, console)
        try:
            choices, plan = await _prepare(options, place)
        except StartError as error:
            raise CommandFailed(str(error), USAGE) from None
        _refuse_taken_ports(plan.processes)
        if options.create:
            await _create(choices, console)
        await _Run(options, place, choices, plan, console).run()
    finally:
        lock.release()


async def down(state_dir: Path) -> bool:
    """Stops the `up` of a state folder and waits for its end; False when none runs.

    Raises:
        CommandFailed: it does not end in time.
    """
    place = folders(state_dir)
    if not place.lock.exists():
        return False
    lock = FileLock(place.lock)
    owner = await lock.acquire(0.0)
    if owner is None:
        lock.release()
        return False
    # The lock is held, so the id in it is that of a living `up`.
    os.kill(int(owner), signal.SIGTERM)
    if await lock.acquire(_DOWN_LIMIT_S) is not None:
        raise CommandFailed(f"`heliograph up` (pid {owner}) does not stop within {_DOWN_LIMIT_S:g} s", FAILED)
    lock.release()
    return True


class _Run:
    """One run: the supervisor, and what is said and written down about it."""

    def __init__(self, options: UpOptions, place: Folders, choices: Choices, plan: Plan, console: Console) -> None:
        self._options = options
        self._place = place
        self._trust_domain = choices.trust_domain
        self._plan = plan
        self._console = console
        self._start_time = time.time()
        self._state: State = "starting"
        self._supervisor = Supervisor(
            plan.processes,
            # Nothing that gRPC itself says to a terminal is about us.
            environ={**os.environ, "GRPC_VERBOSITY": "ERROR"},
            is_ready=self._is_ready,
            before_stop=self._before_stop,
            say=console.say,
            changed=self._write_down,
            clock_agrees=SteadyClock(SystemClock()).agrees,
        )

    async def run(self) -> None:
        """Runs until a signal, or until something cannot start."""
        mode = "direct, without sidecars" if self._options.direct else "with sidecars and edge"
        mode += f", on the engines of {self._options.engines}" if self._options.engines is not None else ""
        self._console.head(
            f"heliograph: {len(SINGLE) + 1} services, {self._options.gateways} gateway nodes, {mode}; "
            f"state in {self._place.state}"
        )
        try:
            await self._supervisor.run(ready_limit=self._options.ready_limit, when_ready=self._announce)
        finally:
            self._state = "stopped"
            self._write_down()
        self._console.head("everything is stopped")

    async def _is_ready(self, process: Process) -> bool:
        if process.socket is not None:
            return await health.serves(process.socket, direct=self._options.direct)
        from heliograph_cli import envoys

        return await envoys.is_ready(str(process.admin))

    async def _before_stop(self, process: Process) -> None:
        first, self._state = self._state != "stopping", "stopping"
        if first:
            self._write_down()
        if self._options.direct:
            return
        from heliograph_cli import envoys

        if first:
            # Whoever comes now would only be sent away again.
            await envoys.stop_listening(str(self._place.run / f"{EDGE}.admin"))
        if process.kind == "service":
            await envoys.leave_service(str(self._place.run / f"{process.name}.admin"))

    def _announce(self) -> None:
        self._state = "serving"
        self._write_down()
        for line in welcome(self._written(), self._options.state_dir, time.time() - self._start_time):
            self._console.write(line)

    def _write_down(self) -> None:
        record.write(self._place.record, self._written())

    def _written(self) -> UpRecord:
        plan = self._plan
        return UpRecord(
            pid=os.getpid(),
            state=self._state,
            direct=self._options.direct,
            start_time=self._start_time,
            run_dir=str(self._place.run),
            trust_domain=self._trust_domain,
            edge=plan.edge,
            live_urls=plan.live_urls,
            inbound=plan.inbound,
            producer_host=plan.producer_host,
            processes={
                name: ProcessRecord(
                    name=name,
                    kind=child.process.kind,
                    service=child.process.service,
                    pid=child.pid,
                    state=child.state,
                    restart_count=child.restart_count,
                    argv=child.process.argv,
                    log=str(child.process.log),
                )
                for name, child in self._supervisor.children.items()
            },
            version=installed_version(),
        )


def welcome(found: UpRecord, state_dir: Path, seconds: float) -> list[str]:
    """Returns what is shown when everything serves: the addresses and commands to paste."""
    where = "" if state_dir == DEFAULT_STATE_DIR else f" --state-dir {shlex.quote(str(state_dir))}"
    lines = [f"everything serves after {seconds:.1f} s", ""]
    if found.edge:
        lines.append(f"  REST, gRPC   https://{found.edge}")
    else:
        lines.append(f"  gRPC         unix:{found.run_dir}/<service>.sock")
    lines += [f"  live         {url}  ({name})" for name, url in found.live_urls.items()]
    lines += ["", "try, in another terminal:", ""]
    lines += [
        f"  heliograph listen alice{where}",
        f'  heliograph publish --to alice "Hello"{where}',
        f"  heliograph inbox alice{where}",
        *([_curl(found, state_dir, where)] if found.edge else []),
        "",
        "Ctrl-C stops everything",
    ]
    return lines


def _curl(found: UpRecord, state_dir: Path, where: str) -> str:
    roots = shlex.quote(str(state_dir / "certs" / "ca" / "bundle.pem"))
    token = f'-H "authorization: Bearer $(heliograph token alice{where})"'
    return f"  curl --cacert {roots} {token} https://{found.edge}/v1/inbox"


# ---------------------------------------------------------------- preparation


async def _prepare(options: UpOptions, place: Folders) -> tuple[Choices, Plan]:
    from mesh.envoy.certs import ensure_token_key

    ensure_token_key(place.certs)
    choices = Choices(
        direct=options.direct,
        gateways=options.gateways,
        host=socket.gethostname(),
        base_port=DEFAULT_PORT if options.base_port is None else options.base_port,
        trust_domain=_TRUST_DOMAIN,
        trace=options.trace,
        categories=_file(options.categories, "categories.toml"),
        producers=_file(options.producers, "producers.example.toml"),
        stores=_stores(options),
    )
    if options.direct:
        return choices, plan_direct(choices, place)
    from heliograph_cli import envoys

    topology = envoys.load(_file(options.topology, "topology.toml"), options.base_port)
    choices = msgspec.structs.replace(choices, base_port=topology.base_port, trust_domain=topology.trust_domain)
    return choices, await envoys.prepare(topology, choices, place)


def _stores(options: UpOptions) -> Mapping[str, tuple[str, ...]]:
    if options.engines is not None:
        return service_flags(read_engines(options.engines), options.name)
    if options.create:
        raise CommandFailed("--create: there is nothing to make without --engines", USAGE)
    return {}


async def _create(choices: Choices, console: Console) -> None:
    from heliograph_cli import stores

    lines = await stores.create(stores.collect([], choices.stores), dry_run=False)
    for line in lines:
        if line.state == "done":
            console.say(line.service, f"made {line.store}: {line.text}", False)
    for line in lines:
        if not stores.all_well([line]):
            remedy = f"; {line.remedy}" if line.remedy else ""
            raise CommandFailed(f"{line.service}: {line.store} at {line.url}: {line.text}{remedy}", FAILED)


def _file(given: Path | None, name: str) -> Path:
    if given is None:
        return deploy_file(name)
    if not given.is_file():
        raise CommandFailed(f"{given}: no such file; name another one, or leave it out", USAGE)
    return given.absolute()


async def _end_leftovers(place: Folders, console: Console) -> None:
    try:
        earlier = record.read(place.record)
    except CommandFailed:
        # Written by another version, or cut off: it helps nobody any more.
        earlier = None
    if earlier is not None:
        await leftovers.end(earlier.processes.values(), (str(place.run), str(place.mesh)), console.say)
    place.record.unlink(missing_ok=True)


def _refuse_taken_ports(processes: Iterable[Process]) -> None:
    for process in processes:
        for port in process.ports:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", port))
                except (OSError, OverflowError) as error:
                    text = error.strerror if isinstance(error, OSError) else "no such port"
                    raise CommandFailed(
                        f"port {port} ({process.name}): {text}; stop what uses it, or give another --base-port", USAGE
                    ) from None
