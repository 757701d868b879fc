"""What the pages tell a reader to type, open or call exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperGroup

from heliograph_cli.main import app
from mesh.envoy.topology import load_topology
from tests.meta.tree import ROOT

_PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
_COMMAND = re.compile(r"(?<![\w/.])(?:\.venv/bin/)?heliograph ([a-z][^`\n)]*)")
_CODE = re.compile(r"^```\w*\n(.*?)^```$|`([^`\n]+)`", re.MULTILINE | re.DOTALL)


def _code(page: Path) -> list[str]:
    """Lists what stands in code blocks and between backticks."""
    return [block or span for block, span in _CODE.findall(page.read_text(encoding="utf-8"))]


def _commands() -> list[str]:
    found = {line.split(" #")[0].strip() for page in _PAGES for text in _code(page) for line in _COMMAND.findall(text)}
    return sorted(found)


def _fault(line: str) -> str:
    """Parses a command line as the command does, without running it; returns what is wrong."""
    words = shlex.split(re.sub(r"<[^>]*>", "something", line))
    command = typer.main.get_command(app)
    while isinstance(command, TyperGroup) and words:
        name = words.pop(0)
        found = command.commands.get(name)
        if found is None:
            return f"no command {name}"
        command = found
    if not words:
        # Named, not called: arguments are left to the reader.
        return ""
    try:
        command.make_context("heliograph", words)
    except Exception as error:  # the parser's own, which is at different places in different versions of typer
        return str(error) or type(error).__name__
    return ""


def test_commands_are_found_in_the_pages() -> None:
    """The search below is not empty by mistake."""
    assert len(_commands()) > 15


@pytest.mark.parametrize("line", _commands())
def test_every_command_line_is_understood(line: str) -> None:
    """Commands and options that a page names exist, and required arguments are given."""
    assert _fault(line) == ""


def test_a_wrong_command_line_is_noticed() -> None:
    """An unknown command, an unknown option and a missing argument are each found."""
    assert _fault("fly alice") == "no command fly"
    assert "--loud" in _fault("listen alice --loud")
    assert _fault("publish --to alice") != ""


def test_targets_of_make_exist() -> None:
    """Each `make` target that a page names is in the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {
        target for page in _PAGES for text in _code(page) for target in re.findall(r"(?:^|\n)make ([a-z-]+)", text)
    }
    assert named - targets == set()
    assert {"demo", "test"} <= named


def test_links_lead_somewhere() -> None:
    """A link to a file of the repository names one that is there."""
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in _PAGES
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert broken == []


def test_ports_are_those_of_the_topology() -> None:
    """The table of ports says what the topology file says."""
    topology = load_topology(ROOT / "deploy" / "topology.toml")
    page = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (?:sidecar of (?:the )?|the )(\w+)", page, re.MULTILINE)
    found = {name: (int(offset), int(port)) for offset, port, name in rows}
    expected = {name: (place.port, topology.port_of(name)) for name, place in topology.services.items()}
    expected["edge"] = (topology.edge.port, topology.port_of("edge"))
    expected["first"] = (topology.gateway.port, topology.base_port + topology.gateway.port)
    assert found == expected
    assert f"| +{topology.metrics.process_offset} |" in page
    assert f"| +{topology.metrics.envoy_offset} |" in page
