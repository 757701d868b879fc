"""Claiming a Unix socket's path without stealing it from the living."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from mesh.errors import StartError
from mesh.sockets import claim, owner_only


def test_a_dead_processs_socket_is_removed(run_dir: Path) -> None:
    """A file whose server is gone makes room."""
    path = run_dir / "a.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
    claim(path)
    assert not path.exists()


def test_a_living_processs_socket_stays(run_dir: Path) -> None:
    """A served socket is not taken away; one line says which."""
    path = run_dir / "a.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        with pytest.raises(StartError, match="another process serves") as caught:
            claim(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert path.exists()


def test_other_files_are_not_touched(run_dir: Path) -> None:
    """Only a socket is removed."""
    path = run_dir / "a.sock"
    path.write_text("precious")
    with pytest.raises(StartError, match="not a socket"):
        claim(path)
    assert path.read_text() == "precious"


def test_impossible_paths_are_told(run_dir: Path) -> None:
    """A missing folder and a path that the kernel cannot take stop the start with one line."""
    with pytest.raises(StartError, match="no such folder"):
        claim(run_dir / "missing" / "a.sock")
    with pytest.raises(StartError, match="longer than 107 bytes"):
        claim(run_dir / ("x" * 120))


def test_sockets_made_inside_are_the_owners_only(run_dir: Path) -> None:
    """The mode is 0600 from the first moment, and the former mask comes back."""
    inside, outside = run_dir / "a.sock", run_dir / "b.sock"
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        with owner_only():
            first.bind(str(inside))
        second.bind(str(outside))
        assert stat.S_IMODE(inside.stat().st_mode) == 0o600
        assert stat.S_IMODE(outside.stat().st_mode) != 0o600
