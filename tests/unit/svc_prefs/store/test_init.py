"""Which store a URL names, and what it costs to choose the embedded one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mesh.errors import StartError
from mesh.sqlite import StoreUrlError
from svc_prefs.store import open_store, store_admins


def test_each_scheme_has_its_store() -> None:
    """Embedded stores need no upkeep, the others name what they keep and where."""
    url = "postgresql://db/notices?schema=blue"
    assert type(open_store("sqlite:///prefs.db", data_dir=Path())).__name__ == "SqliteWishes"
    assert type(open_store(url, data_dir=Path())).__name__ == "PostgresWishes"
    assert store_admins("sqlite:///prefs.db") == ()
    assert [(one.what, one.url) for one in store_admins(url)] == [("preferences and subscriptions", url)]


@pytest.mark.parametrize("url", ["mysql://db/notices", "prefs.db", "", "mysql://ann:secret@db/x?password=secret"])
def test_an_unknown_scheme_names_the_known_ones(url: str) -> None:
    """In one line, for the start and for the upkeep."""
    for ask in (lambda: open_store(url, data_dir=Path()), lambda: store_admins(url)):
        with pytest.raises(StoreUrlError, match=r"known: sqlite:///path, postgresql://host:port") as caught:
            ask()
        assert "\n" not in str(caught.value)
        assert "secret" not in str(caught.value)


def test_a_wrong_url_is_refused_before_anything_runs() -> None:
    """Also without a server."""
    with pytest.raises(StartError, match="names no database"):
        open_store("postgresql://db", data_dir=Path())


def test_the_embedded_store_loads_no_driver() -> None:
    """Whoever keeps wishes in a file does not need the package of an engine."""
    program = """
import sys
from pathlib import Path
import svc_prefs.main
from svc_prefs.store import open_store, store_admins
open_store("sqlite:///prefs.db", data_dir=Path())
store_admins("sqlite:///prefs.db")
sys.exit("asyncpg" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=25)
    assert done.returncode == 0, done.stderr
