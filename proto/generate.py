"""Generates `gen/` from the contract; the only generator.

Messages and stubs come from protoc with mypy-protobuf's plugins, all run from this interpreter's own environment.
`gen/` is output only: what the contract no longer makes is deleted, so a renamed file leaves no orphan. It must not
read anything but `proto/` and the protos that its libraries ship, so that the output depends on nothing else.

    python proto/generate.py           fill gen/
    python proto/generate.py --check   generate into a scratch folder and fail, listing files, when gen/ differs
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet

ROOT = Path(__file__).resolve().parents[1]
PROTO = ROOT / "proto"
GEN = ROOT / "gen"
PACKAGE = "heliograph"
DESCRIPTORS = f"{PACKAGE}/descriptors.binpb"

# What an error travels in: the transcoder at the edge needs it to print a status as JSON.
ERROR_PROTOS = ("google/rpc/status.proto", "google/rpc/error_details.proto")


class GenerateError(Exception):
    """The contract could not be compiled; the text says why."""


def contract_files(proto: Path = PROTO) -> list[str]:
    """Lists the contract's files relative to the proto folder, sorted, vendored ones excepted."""
    return sorted(path.relative_to(proto).as_posix() for path in (proto / PACKAGE).rglob("*.proto"))


def descriptor_set(path: Path, proto: Path = PROTO, *, comments: bool = False) -> None:
    """Writes the contract, everything it imports and the error messages as one FileDescriptorSet.

    Args:
        path: the file to write.
        proto: the folder of the contract.
        comments: keep comments and positions, for documentation; the edge needs none.
    """
    keep = ["--include_source_info"] if comments else []
    _protoc(proto, ["--include_imports", *keep, f"--descriptor_set_out={path}", *contract_files(proto), *ERROR_PROTOS])


def generate(out: Path, proto: Path = PROTO) -> None:
    """Generates everything that belongs into `gen/` into an empty folder."""
    files = contract_files(proto)
    if not files:
        raise GenerateError(f"no contract: {proto / PACKAGE} holds no .proto file")
    arguments = [f"--plugin={name}={_plugin(name)}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")]
    arguments += [f"--python_out={out}", f"--grpc_python_out={out}", f"--mypy_out={out}"]
    arguments += [f"--mypy_grpc_out=only_async:{out}"]
    _protoc(proto, [*arguments, *files])
    descriptor_set(out / DESCRIPTORS, proto)
    _drop_empty_stubs(out)
    _mark_packages(out)
    (out / PACKAGE / "py.typed").write_text("")


def differences(fresh: Path, present: Path) -> list[str]:
    """Names each file that is missing, stale or an orphan in the present folder."""
    wanted, found = _tree(fresh), _tree(present)
    lines = [f"missing  {name}" for name in wanted.keys() - found.keys()]
    lines += [f"orphan   {name}" for name in found.keys() - wanted.keys()]
    lines += [f"stale    {name}" for name in wanted.keys() & found.keys() if wanted[name] != found[name]]
    return sorted(lines, key=lambda line: line[9:])


def replace(fresh: Path, present: Path) -> int:
    """Makes the present folder equal to the fresh one, touching only what differs; returns how many files that were."""
    wanted, found = _tree(fresh), _tree(present)
    changed = [name for name in wanted if wanted[name] != found.get(name)]
    for name in changed:
        target = present / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(wanted[name])
    orphans = [present / name for name in found.keys() - wanted.keys()]
    for path in orphans:
        path.unlink()
    _drop_empty_folders(present)
    return len(changed) + len(orphans)


def _plugin(name: str) -> Path:
    # The environment need not be activated, so the plugins are not looked for on PATH.
    path = Path(sysconfig.get_path("scripts")) / name
    if not path.exists():
        raise GenerateError(f"{name} is not installed beside {sys.executable}: run `make gen`, which installs it")
    return path


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise GenerateError(f"package {package} is not installed beside {sys.executable}: run `make gen`")
    return Path(next(iter(spec.submodule_search_locations)))


def _protoc(proto: Path, arguments: Sequence[str]) -> None:
    well_known, google_wheel = _folder("grpc_tools") / "_proto", _folder("google.rpc").parents[1]
    paths = [proto, proto / "vendor", well_known, google_wheel]
    command = [sys.executable, "-m", "grpc_tools.protoc", *(f"-I{path}" for path in paths), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise GenerateError((done.stderr or done.stdout).strip())


def _drop_empty_stubs(out: Path) -> None:
    contents = FileDescriptorSet.FromString((out / DESCRIPTORS).read_bytes())
    for file in contents.file:
        if not file.service:
            stem = (out / file.name).with_suffix("")
            for ending in ("_pb2_grpc.py", "_pb2_grpc.pyi"):
                stem.with_name(stem.name + ending).unlink(missing_ok=True)


def _mark_packages(out: Path) -> None:
    # Plain packages, not namespace ones: a stray folder called like the package elsewhere on the path cannot mix in.
    folders = [out / PACKAGE, *(path for path in (out / PACKAGE).rglob("*") if path.is_dir())]
    for folder in folders:
        name = folder.relative_to(out).as_posix().replace("/", ".")
        (folder / "__init__.py").write_text(f'"""Package {name} of the contract. Generated, do not edit."""\n')


def _tree(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def _drop_empty_folders(folder: Path) -> None:
    for path in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
        if path.name == "__pycache__" and not any(path.parent.glob("*.py")):
            for cached in path.iterdir():
                cached.unlink()
        if not any(path.iterdir()):
            path.rmdir()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(description="Generate gen/ from the contract.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail when gen/ is not fresh")
    check = parser.parse_args(argv).check
    with tempfile.TemporaryDirectory(prefix="heliograph-gen-") as scratch:
        fresh = Path(scratch)
        try:
            generate(fresh)
        except GenerateError as error:
            print(error, file=sys.stderr)
            return 1
        if not check:
            print(f"gen/: {replace(fresh, GEN)} files changed, {len(_tree(fresh))} in all")
            return 0
        stale = differences(fresh, GEN)
    if stale:
        print("gen/ differs from what proto/ makes; run `make gen` and commit:", *stale, sep="\n  ", file=sys.stderr)
        return 1
    print("gen/ is fresh")
    return 0


if __name__ == "__main__":
    sys.exit(main())
