"""Envoy's own validation of the rendered files, and what its complaint looks like."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from mesh.envoy import certs
from mesh.envoy.layout import Layout
from mesh.envoy.render import write
from mesh.envoy.validate import validate
from mesh.errors import StartError
from tests.support.contract import descriptors
from tests.support.envoys import nodes, topology

pytestmark = pytest.mark.mesh


def _written(folder: Path, *, with_certificates: bool = True) -> Mapping[str, Path]:
    layout = Layout(folder, folder / "certs", folder / "mesh", folder / "log")
    if with_certificates:
        certs.ensure(layout.certs_dir, certs.identities(topology()), time.time())
    return write(topology(), descriptors(), layout, nodes())


async def _complaint(files: Mapping[str, Path]) -> str:
    with pytest.raises(StartError) as caught:
        await validate(files.values())
    text = str(caught.value)
    assert "\n" not in text
    return text


async def test_envoy_takes_every_file(run_dir: Path) -> None:
    """Envoy finds nothing wrong with any of them."""
    await validate(_written(run_dir).values())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"cluster": "local",', '"cluster": "nowhere",', "route: unknown cluster 'nowhere';"),
        ('"codec_type": "HTTP2",', '"nonsense": 1,', "no such field: 'nonsense'"),
        ("{", "", "Unable to parse JSON"),
    ],
)
async def test_a_complaint_is_one_line_with_the_file(run_dir: Path, old: str, new: str, said: str) -> None:
    """What Envoy says about a file reaches the reader without the log around it."""
    files = _written(run_dir)
    text = files["prefs"].read_text(encoding="utf-8")
    assert old in text
    files["prefs"].write_text(text.replace(old, new, 1), encoding="utf-8")
    complaint = await _complaint(files)
    assert complaint.startswith(f"envoy file {files['prefs']}: ")
    assert said in complaint


async def test_missing_certificates_are_told(run_dir: Path) -> None:
    """The file of a secret that does not exist is named."""
    complaint = await _complaint(_written(run_dir, with_certificates=False))
    assert "svc/ingest/leaf.json' does not exist; " in complaint
