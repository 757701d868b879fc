"""Layer rules that import-linter cannot say; the others stand in pyproject.toml."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from tests.meta.tree import SERVICES, Import, imports, sources

# Beside those who call or serve: main, which hands the servicers to the server.
_SERVICERS = {"service", "service_inbox", "service_dead_letters", "service_topics"}
_STUB_IMPORTERS = _SERVICERS | {"peers", "links", "connect", "link", "main"}
_RULES = {"core", "session"}
_PURE_OF_MESH = {"errors", "ids", "backoff"}
_ENVIRONMENT_READERS = {"mesh.settings"}


def breaches(module: str, imported: Iterable[Import]) -> list[str]:
    """Judges the imports of one module of a service or of the mesh; returns one line for each that is not allowed."""
    package, _, rest = module.partition(".")
    found = []
    for one in imported:
        names = {one.module.rpartition(".")[2], one.name}
        whole = f"{one.module}.{one.name}" if one.name else one.module
        if package in SERVICES and rest not in _STUB_IMPORTERS and any(name.endswith("_pb2_grpc") for name in names):
            found.append(f"imports stubs: {whole}")
        origin, part = (*whole.split("."), "")[:2]
        if package in SERVICES and rest in _RULES and origin == "mesh" and part not in _PURE_OF_MESH:
            found.append(f"rules import an impure module of the mesh: {whole}")
        # A store may keep its records in lanes: it is reached through main alone.
        opens = rest == "main" or rest.startswith("store.")
        if package in SERVICES and not opens and whole in ("mesh.lanes.open_writer", "mesh.lanes.open_reader"):
            found.append(f"opens a lane: {whole}")
        if whole.startswith("google.rpc") and module != "mesh.status":
            found.append(f"imports google.rpc: {whole}")
    return found


def reads_environment(tree: ast.Module) -> list[int]:
    """Lists the lines that read the process's environment."""
    names = {"environ", "getenv", "environb"}
    lines = [
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr in names and getattr(node.value, "id", "") == "os")
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and names & {alias.name for alias in node.names})
    ]
    return sorted(lines)


def test_modules_import_only_what_their_layer_allows() -> None:
    """No service and no module of the mesh reaches past its layer."""
    found = [
        f"{source.label}: {breach}"
        for source in sources()
        if source.module.partition(".")[0] in (*SERVICES, "mesh")
        for breach in breaches(source.module, imports(source.tree, source.module))
    ]
    assert found == []


def test_settings_alone_read_the_environment() -> None:
    """A setting has one place of entry, so what a process does can be read from its settings."""
    found = [
        f"{source.label}:{line}"
        for source in sources()
        if source.module.partition(".")[0] in (*SERVICES, "mesh") and source.module not in _ENVIRONMENT_READERS
        for line in reads_environment(source.tree)
    ]
    assert found == []


def test_the_rules_catch_what_they_are_for() -> None:
    """Each rule refuses an example of its breach and lets the legal neighbour pass."""

    def judge(module: str, text: str) -> int:
        return len(breaches(module, imports(ast.parse(text), module)))

    stub = "from heliograph.ingest.v1 import ingest_service_pb2_grpc"
    assert judge("svc_ingest.core", stub) == 1
    assert judge("svc_ingest.service", stub) == 0
    assert judge("svc_ingest.core", "import heliograph.ingest.v1.ingest_service_pb2_grpc as stubs") == 1
    assert judge("svc_ingest.core", "from mesh import clock, errors") == 1
    assert judge("svc_ingest.core", "from mesh.errors import NotFound") == 0
    assert judge("svc_gateway.session", "import mesh.app") == 1
    assert judge("svc_fanout.worker", "from mesh.lanes import open_reader") == 1
    assert judge("svc_fanout.worker", "from mesh.lanes import LaneReader") == 0
    assert judge("svc_fanout.main", "from mesh.lanes import open_reader") == 0
    assert judge("svc_delivery.store.lane_store", "from mesh.lanes import open_reader") == 0
    assert judge("svc_fanout.service", "from google.rpc import status_pb2") == 1
    assert judge("mesh.status", "from google.rpc import status_pb2") == 0
    assert reads_environment(ast.parse("import os\nos.environ.get('A')\nos.getenv('B')")) == [2, 3]
    assert reads_environment(ast.parse("from os import environ")) == [1]


def test_relative_imports_are_seen_whole() -> None:
    """A relative import names the same module as an absolute one."""
    found = imports(ast.parse("from . import store\nfrom .store.sqlite import Log"), "svc_ingest.core")
    assert [(one.module, one.name) for one in found] == [("svc_ingest", "store"), ("svc_ingest.store.sqlite", "Log")]
