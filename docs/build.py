"""Builds the pages that are made from something else: the index of decisions and the settings.

    python docs/build.py           write them
    python docs/build.py --check   change nothing; fail, naming each page that is stale

It must not hold text that belongs to one setting or decision: that stands where the thing itself stands.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import itertools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mesh.settings import ServiceSettings, document

DOCS = Path(__file__).resolve().parent
SERVICES = ("ingest", "fanout", "presence", "gateway", "delivery", "prefs")
STATES = ("proposed", "accepted", "superseded", "rejected")
SECTIONS = ("Context", "Decision", "Consequences", "Revisions")


class PageError(Exception):
    """A page cannot be built; the text names the file and what it lacks."""


class Decision(NamedTuple):
    """What the index shows of one decision record."""

    number: str
    title: str
    state: str
    date: str
    file: str


def read_decision(name: str, text: str) -> Decision:
    """Reads the head of a decision record and checks that every section is there.

    Raises:
        PageError: the name, the head or a section is not as CONTRIBUTING.md says.
    """
    number = re.fullmatch(r"(\d{4})-[a-z0-9-]+\.md", name)
    if number is None:
        raise PageError(f"docs/adr/{name}: the name must be NNNN-words-with-dashes.md")
    title = re.match(rf"# {number[1]}: (.+)\n", text)
    state = re.search(r"^- State: (\w+)$", text, re.MULTILINE)
    date = re.search(r"^- Date: (\d{4}-\d\d-\d\d)$", text, re.MULTILINE)
    if title is None or state is None or date is None or state[1] not in STATES:
        head = f'"# {number[1]}: Title", "- State: {"|".join(STATES)}" and "- Date: YYYY-MM-DD"'
        raise PageError(f"docs/adr/{name}: it must begin with {head}")
    for section in SECTIONS:
        if f"\n## {section}\n" not in text:
            raise PageError(f'docs/adr/{name}: the section "## {section}" is missing')
    return Decision(number[1], title[1], state[1], date[1], name)


def decisions_page(folder: Path = DOCS / "adr") -> str:
    """Renders the index of the decision records."""
    files = sorted(path for path in folder.glob("*.md") if path.name != "README.md")
    records = [read_decision(path.name, path.read_text(encoding="utf-8")) for path in files]
    for earlier, later in itertools.pairwise(records):
        if earlier.number == later.number:
            raise PageError(f"docs/adr/{later.file}: number {later.number} is taken by {earlier.file}")
    rows = [
        f"| [{record.number}]({record.file}) | {record.title} | {record.state} | {record.date} |" for record in records
    ]
    head = ["# Decisions", "", "Built by `make docs`; what belongs into a record is in `CONTRIBUTING.md`.", ""]
    return "\n".join([*head, "| Number | Decision | State | Date |", "|---|---|---|---|", *rows, ""])


def settings_page(services: Sequence[str] = SERVICES) -> str:
    """Renders every setting of the services whose settings exist."""
    lines = [
        "# Settings",
        "",
        "Built by `make docs` from each service's `settings.py`. A later source wins: default, `--config FILE` (TOML),",
        "environment, flag.",
        "",
    ]
    for service in services:
        package = f"svc_{service}"
        if importlib.util.find_spec(package) and importlib.util.find_spec(f"{package}.settings"):
            lines += [f"## {service}", "", *_settings_table(f"{package}.settings"), ""]
    return "\n".join(lines)


def _settings_table(module: str) -> list[str]:
    models = [
        value
        for value in vars(importlib.import_module(module)).values()
        if isinstance(value, type) and issubclass(value, ServiceSettings) and value.__module__ == module
    ]
    if len(models) != 1:
        raise PageError(f"{module}: it must define exactly one model of settings, not {len(models)}")
    rows = ["| Setting | Variable | Flag | Kind | Default | Meaning |", "|---|---|---|---|---|---|"]
    for field in document(models[0]):
        names_of_field = (f"`{field.name}`", f"`{field.variable}`", f"`{field.flag}`", field.kind)
        rows.append(
            "| " + " | ".join(_cell(text) for text in (*names_of_field, field.default, field.description)) + " |"
        )
    return rows


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


PAGES: Mapping[str, Callable[[], str]] = {"adr/README.md": decisions_page, "config.md": settings_page}


def stale(folder: Path = DOCS) -> list[str]:
    """Names the pages that are not what their sources make."""
    return [name for name, render in PAGES.items() if _read(folder / name) != render()]


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(description="Build the generated pages.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail when a page is stale")
    check = parser.parse_args(argv).check
    try:
        pages = stale()
        if not check:
            for name in pages:
                (DOCS / name).write_text(PAGES[name](), encoding="utf-8")
    except PageError as error:
        print(error, file=sys.stderr)
        return 1
    if check and pages:
        print("stale, run `make docs` and commit:", *(f"docs/{name}" for name in pages), sep="\n  ", file=sys.stderr)
        return 1
    print(f"docs: {len(PAGES)} pages fresh" if not pages else f"docs: wrote {', '.join(pages)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
