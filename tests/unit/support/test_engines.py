"""A run without engines says so, and does not pass their tests over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import engines

_URLS = {key: f"{key}://127.0.0.1:1" for key in engines.KEYS}


def test_every_url_is_read_from_the_file_that_is_named(tmp_path: Path) -> None:
    """What else stands in the file, as the number of replicas, is not an address."""
    named = tmp_path / "engines.json"
    named.write_text(json.dumps({**_URLS, "replicas": 1}), encoding="utf-8")
    assert engines.read({engines.VARIABLE: str(named)}) == _URLS


@pytest.mark.parametrize("content", ["", "[]", json.dumps({**_URLS, "cassandra": 1})])
def test_a_file_that_names_not_all_engines_fails_the_test(content: str, tmp_path: Path) -> None:
    """The failure begins with the variable and the file."""
    named = tmp_path / "engines.json"
    named.write_text(content, encoding="utf-8")
    with pytest.raises(pytest.fail.Exception, match=f"^{engines.VARIABLE}={named}: "):
        engines.read({engines.VARIABLE: str(named)})


def test_a_run_without_engines_fails_their_tests() -> None:
    """Nothing is skipped: the failure says how to start them."""
    with pytest.raises(pytest.fail.Exception, match=r"make engines"):
        engines.read({})
