"""Where things lie, and that folders are nobody else's."""

from __future__ import annotations

from pathlib import Path

import pytest

from heliograph_cli.failures import CommandFailed
from heliograph_cli.folders import deploy_file, folders


def test_each_state_folder_has_a_short_run_folder_of_its_own(tmp_path: Path) -> None:
    """Two state folders never share sockets, and the same one always finds its own again."""
    one, other = folders(tmp_path / "one", "/tmp"), folders(tmp_path / "other", "/tmp")
    assert one.run != other.run
    assert folders(tmp_path / "one", "/tmp") == one
    assert len(str(one.run / "gw-abcdefghijklmnopqrst-15.admin")) < 60
    assert one.state.is_absolute()


def test_folders_are_made_for_their_owner_only(tmp_path: Path) -> None:
    """Sockets and keys are readable for nobody else, even where the folder was there before."""
    place = folders(tmp_path / "state", str(tmp_path))
    place.run.mkdir(mode=0o755)
    place.make()
    for folder in (place.state, place.data, place.certs, place.log, place.run):
        assert folder.stat().st_mode & 0o077 == 0, folder


def test_a_run_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """In a shared temporary folder somebody could have put a link to a folder of theirs."""
    place = folders(tmp_path / "state", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    place.run.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CommandFailed, match="belongs to somebody else"):
        place.make()


def test_a_state_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """The failure says which folder and why."""
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandFailed, match=r"file/state: Not a directory"):
        folders(tmp_path / "file" / "state", str(tmp_path)).make()


def test_registries_come_with_the_command() -> None:
    """A fresh installation has the development registries, and says what it lacks."""
    assert deploy_file("categories.toml").is_file()
    assert deploy_file("producers.example.toml").is_file()
    with pytest.raises(CommandFailed, match=r"nothing\.toml: is missing"):
        deploy_file("nothing.toml")
