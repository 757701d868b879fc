"""The generator and the judge of breaking changes, tried on a contract of their own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from proto import breaking, generate

_SERVICE = """syntax = "proto3";
package heliograph.lamp.v1;
// Lights a lamp.
service LampService {
  // Lights it.
  rpc Light(LightRequest) returns (LightResponse);
}
// Asks.
message LightRequest {
  // Name.
  string name = 1;
}
// Answers.
message LightResponse {}
"""
_MESSAGE = 'syntax = "proto3";\npackage heliograph.lamp.v1;\nmessage Oil { string kind = 1; }\n'


@pytest.fixture
def contract(tmp_path: Path) -> Path:
    """A contract with one service and one file without."""
    folder = tmp_path / "proto" / "heliograph" / "lamp" / "v1"
    folder.mkdir(parents=True)
    (folder / "lamp_service.proto").write_text(_SERVICE)
    (folder / "oil.proto").write_text(_MESSAGE)
    return tmp_path / "proto"


def test_generates_messages_stubs_and_descriptors(contract: Path, tmp_path: Path) -> None:
    """Each file gets messages and types, a file with a service gets stubs, and a file without gets none."""
    out = tmp_path / "out"
    out.mkdir()
    generate.generate(out, contract)
    made = {path.name for path in (out / "heliograph" / "lamp" / "v1").iterdir()}
    stubs = {f"lamp_service_pb2{ending}" for ending in (".py", ".pyi", "_grpc.py", "_grpc.pyi")}
    assert made == {"__init__.py", "oil_pb2.py", "oil_pb2.pyi"} | stubs
    assert (out / "heliograph" / "py.typed").exists()
    described = FileDescriptorSet.FromString((out / "heliograph" / "descriptors.binpb").read_bytes())
    assert {"heliograph/lamp/v1/oil.proto", "google/rpc/status.proto"} <= {file.name for file in described.file}


def test_replacing_deletes_what_the_contract_no_longer_makes(contract: Path, tmp_path: Path) -> None:
    """A removed file leaves neither its modules nor its empty folder behind, and the difference names them before."""
    first, second, present = tmp_path / "first", tmp_path / "second", tmp_path / "present"
    for folder in (first, second, present):
        folder.mkdir()
    other = contract / "heliograph" / "wick" / "v1" / "wick.proto"
    other.parent.mkdir(parents=True)
    other.write_text(_MESSAGE.replace("lamp", "wick"))
    generate.generate(first, contract)
    generate.replace(first, present)
    assert generate.differences(first, present) == []

    other.unlink()
    (contract / "heliograph" / "lamp" / "v1" / "oil.proto").write_text(_MESSAGE.replace("kind", "colour"))
    generate.generate(second, contract)
    found = generate.differences(second, present)
    assert "orphan   heliograph/wick/v1/wick_pb2.py" in found
    assert "stale    heliograph/lamp/v1/oil_pb2.py" in found
    generate.replace(second, present)
    assert generate.differences(second, present) == []
    assert not (present / "heliograph" / "wick").exists()


def test_a_contract_that_does_not_compile_is_refused_with_its_place(contract: Path, tmp_path: Path) -> None:
    """The compiler's own line, with file and number, reaches the reader."""
    (contract / "heliograph" / "lamp" / "v1" / "oil.proto").write_text(_MESSAGE + "message {\n")
    with pytest.raises(generate.GenerateError, match=r"oil\.proto:4:"):
        generate.generate(tmp_path, contract)


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


@pytest.fixture
def history(contract: Path) -> Path:
    """A repository whose only commit is the baseline of its contract."""
    root = contract.parent
    (root / "buf.yaml").write_text("version: v2\nmodules:\n  - path: proto\nbreaking:\n  use: [FILE]\n")
    _git(root, "init", "-q")
    _git(root, "add", "proto", "buf.yaml")
    _git(root, "commit", "-q", "-m", "Light a lamp")
    (contract / "BASELINE").write_text(_git(root, "rev-parse", "HEAD") + "\n")
    return root


def test_a_removed_field_breaks_the_baseline(history: Path) -> None:
    """An unchanged contract and an addition pass; a removal is named with its message."""
    file = history / "proto" / "heliograph" / "lamp" / "v1" / "oil.proto"
    assert breaking.breaking(history) == ""
    file.write_text(_MESSAGE.replace("kind = 1;", "kind = 1; string colour = 2;"))
    assert breaking.breaking(history) == ""
    file.write_text(_MESSAGE.replace("string kind = 1;", ""))
    assert 'field "1" with name "kind" on message "Oil" was deleted' in breaking.breaking(history)


@pytest.mark.parametrize(("content", "text"), [("main", "one full commit id"), ("0" * 40, "is not in this clone")])
def test_a_wrong_baseline_is_named(history: Path, content: str, text: str) -> None:
    """A baseline that is no commit id, or whose commit is missing, fails instead of passing unseen."""
    (history / "proto" / "BASELINE").write_text(content)
    with pytest.raises(breaking.BaselineError, match=text):
        breaking.breaking(history)


def test_a_missing_baseline_is_named(history: Path) -> None:
    """Without the file there is nothing to compare with, and the text says what to write."""
    (history / "proto" / "BASELINE").unlink()
    with pytest.raises(breaking.BaselineError, match="BASELINE is missing"):
        breaking.breaking(history)
