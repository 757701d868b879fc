"""Words that the project does not use, and text that must not be in its tree."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorSet

from tests.meta.tree import ROOT, files, sources

_WORDS = {"manager", "mgr", "helper", "helpers", "util", "utils", "job", "jobs", "user", "users", "uid"}
_WORDS_OF_CONTRACT = _WORDS | {"status", "job", "handler"}

# Written in pieces, so that this file does not find itself.
_TEXTS = {
    "a path of one machine": re.compile(r"(?<![\w.$}])/(?:" + "work|root|home|Users" + r")/\w"),
    "a registry's host": re.compile(r"(?:pypi|pythonhosted|npmjs|crates|proxy\.golang)" + r"\.(?:org|io|com)\b"),
    "an open end": re.compile(r"\b(?:" + "TO" + "DO|FIX" + "ME|X" + "XX)" + r"\b"),
}
_BINARY = {".binpb", ".png", ".svg", ".ico", ".woff2"}


def words_of(name: str) -> set[str]:
    """Splits an identifier into its words, in lower case."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)
    return {part.lower() for part in parts}


def names_defined(tree: ast.Module) -> Iterable[tuple[str, int]]:
    """Yields every class and function that a module defines, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno


def _names_of_contract() -> Iterable[str]:
    contract = FileDescriptorSet.FromString((ROOT / "gen" / "heliograph" / "descriptors.binpb").read_bytes())
    for file in contract.file:
        if file.package.startswith("heliograph."):
            yield from (service.name for service in file.service)
            yield from (method.name for service in file.service for method in service.method)
            yield from (enum.name for enum in file.enum_type)
            for message in file.message_type:
                yield from _names_of_message(message)


def _names_of_message(message: DescriptorProto) -> Iterable[str]:
    yield message.name
    yield from (field.name for field in message.field)
    yield from (enum.name for enum in message.enum_type)
    for inner in message.nested_type:
        yield from _names_of_message(inner)


def test_definitions_use_the_words_of_the_glossary() -> None:
    """A class, function or module is named by what it is, in whole words of the glossary."""
    found = [
        f"{source.label}:{line} {name}"
        for source in sources()
        for name, line in (*names_defined(source.tree), (source.path.stem, 1))
        if words_of(name) & _WORDS
    ]
    assert found == []


def test_the_contract_uses_the_words_of_the_glossary() -> None:
    """What is on the wire for years is named with most care."""
    assert [name for name in _names_of_contract() if words_of(name) & _WORDS_OF_CONTRACT] == []


def test_no_file_holds_what_belongs_elsewhere() -> None:
    """No path of one machine, no registry's host, no open end."""
    found = []
    for path in files():
        if path.suffix in _BINARY:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            found += [f"{path.relative_to(ROOT)}:{number} {what}" for what, text in _TEXTS.items() if text.search(line)]
    assert found == []


def test_names_are_split_into_words() -> None:
    """Both ways of writing a name give the same words, so neither hides one."""
    assert words_of("SessionManager") == words_of("session_manager") == {"session", "manager"}
    assert words_of("HTTPUtils2") == {"http", "utils", "2"}
    assert not words_of("usersland") & _WORDS


def test_texts_are_recognised() -> None:
    """Each kind of foreign text is found, and its innocent neighbour is not."""
    path, host, end = _TEXTS.values()
    assert path.search("see /" + "root/x")
    assert path.search("(/" + "home/ann)")
    assert not path.search("run_dir/work/x and https://example.org/work/x")
    assert host.search("https://" + "pypi" + ".org/simple")
    assert end.search("# TO" + "DO later")
