"""The site of the pages builds without a warning, holds every page, and a broken link ends its build."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import website
from tests.meta.tree import ROOT


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Every page is there, and nothing on it is fetched from anywhere else."""
    website.lay_out(tmp_path)
    site = website.build(tmp_path)
    for place in website.pages().values():
        built = site / place.replace("README.md", "index.md").replace(".md", ".html")
        assert built.is_file(), place
    text = (site / "index.html").read_text(encoding="utf-8")
    fetched = re.findall(r'<(?:script|img|link)[^>]*(?:src|href)="?(https?://[^">\s]+)', text)
    assert fetched == []
    assert "producer.html" in text


def test_a_broken_link_ends_the_build(tmp_path: Path) -> None:
    """A page that leads nowhere is named, and so is an anchor that is not there."""
    website.lay_out(tmp_path)
    page = tmp_path / "pages" / "limits.md"
    page.write_text(page.read_text(encoding="utf-8") + "\n[weather](weather.md)\n[none](errors.md#weather)\n")
    with pytest.raises(website.SiteError) as raised:
        website.build(tmp_path)
    assert "page does not exist" in str(raised.value)
    assert "anchor does not exist" in str(raised.value)
    assert "limits.md" in str(raised.value)


@pytest.mark.parametrize(
    ("nav", "says"),
    [
        ([{"First hour": "index.md"}], "nav lacks"),
        ([{"All": [{"One": place} for place in (*website.pages().values(), "weather.md")]}], "names .*weather.md"),
    ],
)
def test_nav_and_pages_agree(nav: list[object], says: str) -> None:
    """A page that no reader can reach is noticed, and so is an entry without a page."""
    with pytest.raises(website.SiteError, match=says):
        website._check_nav(nav, set(website.pages().values()))


def test_links_of_moved_pages_lead_to_their_new_places() -> None:
    """README stands at the top of the repository and leads the site."""
    placed = website.pages()
    text = "[a](docs/errors.md#reasons) [b](CONTRIBUTING.md) [c](https://x.example/docs/errors.md) [d](svc_x/core.py)"
    moved = website.moved(text, ROOT / "README.md", "index.md", placed)
    assert moved == (
        "[a](errors.md#reasons) [b](contributing.md) [c](https://x.example/docs/errors.md) [d](svc_x/core.py)"
    )
    record = ROOT / "docs" / "adr" / "0001-programs-of-the-gate.md"
    assert website.moved("[e](../errors.md)", record, placed[record], placed) == "[e](../errors.md)"
