"""Builds the site of these pages: `build/site/index.html`.

    python docs/website.py           build it
    python docs/website.py --check   build it elsewhere and fail at any warning: a broken link, a page that nav lacks

README and CONTRIBUTING stand at the top of the repository, so the pages are laid out anew for the builder, links
included. It must not change what a page says.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
SITE: Final = ROOT / "build" / "site"
CONFIG: Final = ROOT / "docs" / "zensical.toml"

# Where a file of the repository stands on the site, if not where it stands below docs/.
_MOVED: Final[Mapping[str, str]] = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "LICENSE": "LICENSE.txt",
}
_BESIDE: Final = ("openapi.json", "asyncapi.json")
# A page that comes with a later build of the benchmarks.
_MAY_LACK: Final = frozenset({"performance.md"})
_LINK: Final = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])")
_BUILD_LIMIT_S: Final = 120


class SiteError(Exception):
    """The site cannot be built; the text says why."""


def pages(root: Path = ROOT) -> dict[Path, str]:
    """Returns every page and file of the site with its place there."""
    docs = root / "docs"
    found = {root / name: place for name, place in _MOVED.items()}
    found |= {path: path.relative_to(docs).as_posix() for path in (*docs.glob("*.md"), *docs.glob("adr/*.md"))}
    return found | {docs / name: name for name in _BESIDE}


def lay_out(folder: Path, root: Path = ROOT) -> None:
    """Writes pages and configuration as the builder wants them.

    Raises:
        SiteError: nav lacks a page or names one that is not there.
    """
    placed = pages(root)
    config = tomllib.loads(CONFIG.read_text(encoding="utf-8"))
    _check_nav(config["project"]["nav"], set(placed.values()))
    for source, place in placed.items():
        target = folder / "pages" / place
        target.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text(encoding="utf-8")
        target.write_text(moved(text, source, place, placed) if source.suffix == ".md" else text, encoding="utf-8")
    lines = CONFIG.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if not any(f'"{name}"' in line for name in _MAY_LACK - set(placed.values()))]
    (folder / CONFIG.name).write_text("".join(kept), encoding="utf-8")


def moved(text: str, source: Path, place: str, placed: Mapping[Path, str]) -> str:
    """Returns a page's text with its links to other pages leading to their places on the site."""

    def change(match: re.Match[str]) -> str:
        target = placed.get((source.parent / match[1]).resolve())
        if target is None:
            return match[1]
        return "../" * place.count("/") + target

    return _LINK.sub(change, text)


def build(folder: Path) -> Path:
    """Builds the site in a folder that `lay_out` filled; returns where it is.

    Raises:
        SiteError: the builder fails or warns.
    """
    program = Path(sysconfig.get_path("scripts")) / "zensical"
    command = [str(program), "build", "--strict", "--clean"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_BUILD_LIMIT_S, check=False)
    except FileNotFoundError:
        raise SiteError(f"zensical is not installed beside {sys.executable}: run `make install`") from None
    site = folder / "site"
    if done.returncode != 0 or not (site / "index.html").is_file():
        raise SiteError(_plain(done.stdout + done.stderr))
    return site


def _check_nav(nav: Sequence[object], places: set[str]) -> None:
    named = set(_leaves(nav))
    # Decisions are reached from their index.
    wanted = {place for place in places if place.endswith(".md") and (place == "adr/README.md" or "/" not in place)}
    if lacking := sorted(wanted - named):
        raise SiteError(f"docs/zensical.toml: nav lacks {', '.join(lacking)}")
    if missing := sorted(named - wanted - _MAY_LACK):
        raise SiteError(f"docs/zensical.toml: nav names {', '.join(missing)}, which is not there")


def _leaves(nav: object) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        yield from (leaf for value in nav.values() for leaf in _leaves(value))
    elif isinstance(nav, list):
        yield from (leaf for value in nav for leaf in _leaves(value))


def _plain(text: str) -> str:
    """Takes off colours, and the trace behind what the builder says."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text).partition("Traceback")[0].strip()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(description="Build the site of the pages.")
    parser.add_argument("--check", action="store_true", help="keep nothing; fail at any warning")
    check = parser.parse_args(argv).check
    with tempfile.TemporaryDirectory(prefix="heliograph-site-") as scratch:
        try:
            lay_out(Path(scratch))
            site = build(Path(scratch))
        except SiteError as error:
            print(error, file=sys.stderr)
            return 1
        if not check:
            shutil.rmtree(SITE, ignore_errors=True)
            shutil.copytree(site, SITE)
    print("site: builds without a warning" if check else f"site: {SITE.relative_to(ROOT)}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
