"""Certificate files: what is made, when it is made anew, and what is said of a broken one."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from cryptography import x509

from mesh.envoy import certs, pki
from mesh.errors import StartError
from tests.support.envoys import topology

NOW = 1_800_000_000.0
DAY = 86400.0


def _identities() -> tuple[certs.Identity, ...]:
    return certs.identities(topology(), producers=["acme/demo"], operators=["dev"])


def _leaf(folder: Path, path: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / path / "current" / "cert.pem").read_bytes())


def _serials(folder: Path) -> dict[str, int]:
    return {one.path: _leaf(folder, one.path).serial_number for one in _identities()}


def test_everybody_gets_what_they_need(tmp_path: Path) -> None:
    """Each identity has a certificate with its one URI, usable now, and its key is its own."""
    made = certs.ensure(tmp_path, _identities(), NOW)
    assert made == [one.path for one in _identities()]
    assert {"svc/ingest", "svc/gateway", "svc/edge", "public", "producer/acme/demo", "operator/dev"} <= set(made)
    certs.check(tmp_path, _identities(), NOW)
    found = certs.inspect(tmp_path, "svc/fanout", NOW)
    assert found.uris == ("spiffe://heliograph.local/svc/fanout",)
    assert (found.fault, found.expire_time) == ("", NOW + certs.LEAF_LIFETIME)
    for key in tmp_path.rglob("key.pem"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_the_edges_public_certificate_is_nobody_in_the_mesh(tmp_path: Path) -> None:
    """It names hosts and no URI, so losing it opens nothing inside."""
    certs.ensure(tmp_path, _identities(), NOW)
    names = _leaf(tmp_path, "public").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "producers.localhost"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == []


def test_envoy_is_told_of_one_secret_a_file(tmp_path: Path) -> None:
    """Both files watch the folder whose link is swapped."""
    certs.ensure(tmp_path, _identities(), NOW)
    folder = certs.service_folder(tmp_path, "ingest")
    for name in ("leaf", "bundle"):
        (secret,) = json.loads((folder / f"{name}.json").read_text())["resources"]
        content = secret.get("tls_certificate") or secret["validation_context"]
        assert (secret["name"], content["watched_directory"]) == (name, {"path": str(folder)})


def test_what_is_good_is_left_alone(tmp_path: Path) -> None:
    """A second start makes nothing and touches no file."""
    certs.ensure(tmp_path, _identities(), NOW)
    before = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert certs.ensure(tmp_path, _identities(), NOW + DAY) == []
    assert {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_leaves_near_their_end_are_made_anew(tmp_path: Path) -> None:
    """With a third of its life left a leaf is replaced; the root stays, and the older generation is kept once."""
    certs.ensure(tmp_path, _identities(), NOW)
    before, root = _serials(tmp_path), (tmp_path / "ca" / "cert.pem").read_bytes()
    later = NOW + certs.LEAF_LIFETIME * 0.7
    assert certs.ensure(tmp_path, _identities(), later) == [one.path for one in _identities()]
    assert not set(before.values()) & set(_serials(tmp_path).values())
    assert (tmp_path / "ca" / "cert.pem").read_bytes() == root
    certs.rotate(tmp_path, _identities(), later)
    generations = [
        entry for entry in (tmp_path / "svc" / "ingest").iterdir() if entry.is_dir() and not entry.is_symlink()
    ]
    assert len(generations) == 2
    certs.check(tmp_path, _identities(), later)


def test_a_new_identity_of_an_existing_mesh_gets_its_own(tmp_path: Path) -> None:
    """Only who is missing gets a certificate, from the same root."""
    certs.ensure(tmp_path, _identities(), NOW)
    more = certs.identities(topology(), producers=["acme/demo", "acme/billing"])
    assert certs.ensure(tmp_path, more, NOW) == ["producer/acme/billing"]


def test_a_new_root_is_trusted_beside_the_old_one(tmp_path: Path) -> None:
    """After a change of root all bundles hold both, so peers with old and new leaves understand each other."""
    certs.ensure(tmp_path, _identities(), NOW)
    old = (tmp_path / "ca" / "cert.pem").read_bytes()
    old_leaf = certs._read_current(tmp_path / "svc" / "ingest")
    certs.rotate(tmp_path, _identities(), NOW + DAY, new_root=True)
    new = (tmp_path / "ca" / "cert.pem").read_bytes()
    assert old != new
    for one in _identities():
        bundle = (tmp_path / one.path / "current" / "ca.pem").read_bytes()
        assert bundle == new + old == certs.bundle_file(tmp_path).read_bytes()
        assert pki.fault(pki.Leaf(*_pair(tmp_path, one.path)), new) == ""
    assert old_leaf is not None
    assert pki.fault(old_leaf[0], new + old) == ""


def test_a_root_near_its_end_is_replaced_by_itself(tmp_path: Path) -> None:
    """The development root lives a year; who starts a mesh after it gets a new one."""
    certs.ensure(tmp_path, _identities(), NOW)
    root = (tmp_path / "ca" / "cert.pem").read_bytes()
    later = NOW + 400 * DAY
    assert certs.ensure(tmp_path, _identities(), later) == [one.path for one in _identities()]
    assert root not in certs.bundle_file(tmp_path).read_bytes()
    certs.check(tmp_path, _identities(), later)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("cert.pem", b"junk", "cert.pem is no certificate"),
        ("key.pem", b"junk", "key.pem is no unencrypted key"),
        ("ca.pem", b"junk", "ca.pem holds no certificate"),
        ("key.pem", None, "No such file"),
    ],
)
def test_a_broken_file_stops_the_start_and_is_named(
    tmp_path: Path, file: str, content: bytes | None, said: str
) -> None:
    """Broken is not missing: somebody put it there, so it is not silently replaced."""
    certs.ensure(tmp_path, _identities(), NOW)
    path = tmp_path / "svc" / "prefs" / "current" / file
    path.unlink() if content is None else path.write_bytes(content)
    for attempt in (certs.ensure, certs.check):
        with pytest.raises(StartError, match=rf"certificate .*svc/prefs.*{said}.*remove .*svc/prefs") as caught:
            attempt(tmp_path, _identities(), NOW)
        assert "\n" not in str(caught.value)


def test_a_mismatched_pair_is_told(tmp_path: Path) -> None:
    """A key of another certificate would only be noticed by every peer's refusal."""
    certs.ensure(tmp_path, _identities(), NOW)
    ours, other = (tmp_path / "svc" / name / "current" / "key.pem" for name in ("prefs", "fanout"))
    ours.write_bytes(other.read_bytes())
    assert "do not belong together" in certs.inspect(tmp_path, "svc/prefs", NOW).fault
    with pytest.raises(StartError, match="do not belong together"):
        certs.ensure(tmp_path, _identities(), NOW)


def test_an_inspection_tells_what_is_wrong(tmp_path: Path) -> None:
    """Missing, over, not yet valid, another's name, readable by others: each in a few words."""
    assert "No such file" in certs.inspect(tmp_path, "svc/prefs", NOW).fault
    certs.ensure(tmp_path, _identities(), NOW)

    def fault(now: float, uri: str | None = None) -> str:
        return certs.inspect(tmp_path, "svc/prefs", now, uri=uri).fault

    assert fault(NOW + 8 * DAY) == "cert.pem expired at 2027-01-22 08:00:00 UTC"
    assert "check the clock" in fault(NOW - DAY)
    assert "instead of spiffe://x/svc/y" in fault(NOW, "spiffe://x/svc/y")
    (tmp_path / "svc" / "prefs" / "current" / "key.pem").chmod(0o644)
    assert "read by others" in fault(NOW)


@pytest.mark.parametrize(
    ("file", "said"), [("cert.pem", "is not PEM"), ("key.pem", "is not PEM"), ("bundle.pem", "holds no")]
)
def test_a_broken_authority_stops_the_start(tmp_path: Path, file: str, said: str) -> None:
    """An authority that cannot be read is not replaced: its leaves may be in use."""
    certs.ensure(tmp_path, _identities(), NOW)
    (tmp_path / "ca" / file).write_bytes(b"junk")
    with pytest.raises(StartError, match=said):
        certs.ensure(tmp_path, _identities(), NOW)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    """A file where the folder should be stops the start."""
    (tmp_path / "certs").write_text("")
    with pytest.raises(StartError, match="certificates folder"):
        certs.ensure(tmp_path / "certs", _identities(), NOW)


def test_the_token_key_is_made_once(tmp_path: Path) -> None:
    """Tokens stay valid over restarts."""
    private, public = certs.ensure_token_key(tmp_path)
    before = private.read_bytes(), public.read_bytes()
    assert certs.ensure_token_key(tmp_path) == (private, public)
    assert (private.read_bytes(), public.read_bytes()) == before


def _pair(folder: Path, path: str) -> tuple[bytes, bytes]:
    current = folder / path / "current"
    return (current / "cert.pem").read_bytes(), (current / "key.pem").read_bytes()
