"""The development certificate authority and the certificate files that Envoy watches.

Each identity has a folder `<certs>/<its path>/` with generations `<generation>/{cert,key,ca}.pem` and a link `current`.
Moving the link is what Envoy notices: certificate and key change together, while streams stay open. Keys have mode
0600. Must not be used to run an authority for others: the root's key lies beside the certificates.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import secrets
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from mesh import tokens
from mesh.envoy import pki
from mesh.envoy.topology import Topology
from mesh.errors import StartError

LEAF_LIFETIME = 7 * 86400.0
PUBLIC = "public"

_AUTHORITY_LIFETIME = 365 * 86400.0
# A leaf is made anew when a third of its life is left, an authority when its leaves would nearly outlive it.
_RENEWED_AT = 1 / 3
_AUTHORITY_MARGIN = 4
_FILES = ("cert.pem", "key.pem", "ca.pem")
_TYPE = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"


class Identity(msgspec.Struct, frozen=True):
    """Whom a certificate is for: the path of its folder and what it says."""

    path: str
    names: pki.Names


class Inspection(msgspec.Struct, frozen=True):
    """What is known of one identity's certificate. `fault` is "" when it can be used now."""

    path: str
    folder: Path
    uris: tuple[str, ...]
    expire_time: float
    fault: str


def identities(
    topology: Topology, *, producers: Sequence[str] = (), operators: Sequence[str] = ()
) -> tuple[Identity, ...]:
    """Returns everybody in a mesh who needs a certificate.

    Args:
        topology: names the services.
        producers: "tenant/producer".
        operators: names.
    """
    edge = topology.edge
    public = pki.Names(PUBLIC, (), (*edge.public_names, *edge.producer_names), edge.public_addresses, client=False)
    return (
        *(identity(topology, f"svc/{name}", topology.host(name)) for name in topology.service_names()),
        Identity(PUBLIC, public),
        *(identity(topology, f"producer/{producer}") for producer in producers),
        *(identity(topology, f"operator/{operator}") for operator in operators),
    )


def identity(topology: Topology, path: str, *dns_names: str) -> Identity:
    """Returns one identity of the mesh; DNS names are for tools that cannot check a URI."""
    return Identity(path, pki.Names(path, (topology.identity(path),), dns_names))


def service_folder(certs_dir: Path, service: str) -> Path:
    """Returns the folder of a service's certificate."""
    return certs_dir / "svc" / service


def bundle_file(certs_dir: Path) -> Path:
    """Returns the file with the roots that a client trusts."""
    return certs_dir / "ca" / "bundle.pem"


def ensure(certs_dir: Path, wanted: Iterable[Identity], now: float, *, lifetime: float = LEAF_LIFETIME) -> list[str]:
    """Makes what is missing or about to expire; safe while Envoys run. Returns the paths that got a new certificate.

    When the root itself is due, all get both roots first and new leaves afterwards, so no two peers ever disagree.

    Args:
        certs_dir: the folder of all certificates.
        wanted: who needs one.
        now: Unix seconds.
        lifetime: seconds that a new leaf lives.

    Raises:
        StartError: a file is broken; it is named, with what to do.
    """
    return _renew(certs_dir, tuple(wanted), now, lifetime, force=False, new_root=False)


def rotate(
    certs_dir: Path,
    wanted: Iterable[Identity],
    now: float,
    *,
    lifetime: float = LEAF_LIFETIME,
    new_root: bool = False,
) -> list[str]:
    """Makes new certificates for all, whatever they have, and with `new_root` a new authority; as `ensure` else."""
    return _renew(certs_dir, tuple(wanted), now, lifetime, force=True, new_root=new_root)


def ensure_token_key(certs_dir: Path) -> tuple[Path, Path]:
    """Returns the files of the key that signs tokens and of the public keys, made when missing.

    Raises:
        StartError: the file of public keys is broken.
    """
    folder = certs_dir / "tokens"
    _make_folder(folder)
    private, public = folder / "signing.pem", folder / "jwks.json"
    if not (private.exists() and public.exists()):
        tokens.create_signing_key(private, public)
    return private, public


def inspect(certs_dir: Path, path: str, now: float, *, uri: str | None = None) -> Inspection:
    """Returns what is known of one identity's certificate.

    Args:
        certs_dir: the folder of all certificates.
        path: the identity's path, such as "svc/ingest".
        now: Unix seconds.
        uri: the one URI it must name; None accepts any or none.
    """
    folder = certs_dir / path
    current = folder / "current"
    try:
        certificate, key, bundle = ((current / name).read_bytes() for name in _FILES)
    except OSError as error:
        return Inspection(path, folder, (), 0.0, f"{error.filename}: {error.strerror}")
    fault = pki.fault(pki.Leaf(certificate, key), bundle)
    try:
        parsed = x509.load_pem_x509_certificate(certificate)
    except ValueError:
        return Inspection(path, folder, (), 0.0, fault)
    uris, ends = pki.uris_of(parsed), pki.expire_time(parsed)
    if not fault and ends <= now:
        fault = f"cert.pem expired at {_shown(ends)}"
    if not fault and parsed.not_valid_before_utc.timestamp() > now:
        fault = f"cert.pem is valid from {_shown(parsed.not_valid_before_utc.timestamp())} only; check the clock"
    if not fault and uri is not None and uris != (uri,):
        fault = f"cert.pem names {' and '.join(uris) or 'nobody'} instead of {uri}"
    if not fault and (current / "key.pem").stat().st_mode & 0o077:
        fault = "key.pem can be read by others; chmod 600"
    return Inspection(path, folder, uris, ends, fault)


def check(certs_dir: Path, wanted: Iterable[Identity], now: float) -> None:
    """Checks that everybody has a certificate that can be used now.

    Raises:
        StartError: one line with the first that cannot.
    """
    for one in wanted:
        found = inspect(certs_dir, one.path, now, uri=one.names.uris[0] if one.names.uris else None)
        if found.fault:
            raise StartError(f"certificate {found.folder}: {found.fault}; remove {found.folder} to have it made anew")


def _renew(
    certs_dir: Path, wanted: tuple[Identity, ...], now: float, lifetime: float, *, force: bool, new_root: bool
) -> list[str]:
    _make_folder(certs_dir)
    # Before anything is written: what somebody broke is told, not silently replaced.
    for one in wanted:
        _refuse_broken(certs_dir / one.path)
    authority, bundle = _ensure_authority(certs_dir / "ca", now, lifetime, new_root=new_root)
    for one in wanted:
        folder = certs_dir / one.path
        _make_folder(folder)
        _write_secrets(folder)
        found = _read_current(folder)
        if found is not None and found[1] != bundle:
            _write_generation(folder, found[0], bundle, now)
    renewed = []
    for one in wanted:
        folder = certs_dir / one.path
        found = _read_current(folder)
        if force or found is None or _is_due(found[0], one, authority, now, lifetime):
            _write_generation(folder, pki.issue(authority, one.names, now, lifetime), bundle, now)
            renewed.append(one.path)
    return renewed


def _refuse_broken(folder: Path) -> None:
    found = _read_current(folder)
    fault = "" if found is None else pki.fault(*found)
    if fault:
        raise StartError(f"certificate {folder}: {fault}; remove {folder} to have it made anew")


def _is_due(leaf: pki.Leaf, one: Identity, authority: pki.Authority, now: float, lifetime: float) -> bool:
    certificate = x509.load_pem_x509_certificate(leaf.certificate)
    return (
        pki.expire_time(certificate) - now < lifetime * _RENEWED_AT
        or certificate.not_valid_before_utc.timestamp() > now
        or pki.uris_of(certificate) != one.names.uris
        or pki.fault(leaf, pki.pem(authority.certificate)) != ""
    )


def _shown(moment: float) -> str:
    return f"{datetime.datetime.fromtimestamp(moment, tz=datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"


# ---------------------------------------------------------------- authority


def _ensure_authority(folder: Path, now: float, lifetime: float, *, new_root: bool) -> tuple[pki.Authority, bytes]:
    """Returns the authority that signs, and all roots that are to be trusted."""
    _make_folder(folder)
    existing = _read_authority(folder)
    if existing is not None and not new_root:
        left = pki.expire_time(existing.certificate) - now
        if left > lifetime * _AUTHORITY_MARGIN:
            return existing, _read_bundle(folder)
    made = pki.create_authority(f"mesh development root {secrets.token_hex(4)}", now, _AUTHORITY_LIFETIME)
    roots = [made.certificate]
    if existing is not None:
        older = pki.authorities_of(_read_bundle(folder))
        roots += [root for root in older if pki.expire_time(root) > now]
    bundle = b"".join(pki.pem(root) for root in roots)
    # The bundle first: a leaf signed by a root that nobody trusts yet would be refused.
    _write(folder / "bundle.pem", bundle, 0o644)
    _write(folder / "key.pem", pki.key_pem(made.key), 0o600)
    _write(folder / "cert.pem", pki.pem(made.certificate), 0o644)
    return made, bundle


def _read_authority(folder: Path) -> pki.Authority | None:
    if not (folder / "cert.pem").exists():
        return None
    advice = f"remove {folder} to have a new authority made"
    try:
        certificate = x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes())
        key = serialization.load_pem_private_key((folder / "key.pem").read_bytes(), password=None)
    except OSError as error:
        raise StartError(f"certificate authority {error.filename}: {error.strerror}; {advice}") from None
    except (ValueError, TypeError):
        raise StartError(f"certificate authority {folder}: cert.pem or key.pem is not PEM; {advice}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise StartError(f"certificate authority {folder}: cert.pem and key.pem do not belong together; {advice}")
    return pki.Authority(certificate, key)


def _read_bundle(folder: Path) -> bytes:
    try:
        bundle = (folder / "bundle.pem").read_bytes()
        pki.authorities_of(bundle)
    except (OSError, ValueError):
        raise StartError(
            f"certificate authority {folder / 'bundle.pem'}: holds no certificates; copy cert.pem there"
        ) from None
    return bundle


# ---------------------------------------------------------------- files


def _read_current(folder: Path) -> tuple[pki.Leaf, bytes] | None:
    current = folder / "current"
    if not current.exists():
        return None
    try:
        certificate, key, bundle = ((current / name).read_bytes() for name in _FILES)
    except OSError as error:
        raise StartError(
            f"certificate {error.filename}: {error.strerror}; remove {folder} to have it made anew"
        ) from None
    return pki.Leaf(certificate, key), bundle


def _write_generation(folder: Path, leaf: pki.Leaf, bundle: bytes, now: float) -> None:
    name = f"{datetime.datetime.fromtimestamp(now, tz=datetime.UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
    generation = folder / name
    _make_folder(generation)
    _write(generation / "cert.pem", leaf.certificate, 0o644)
    _write(generation / "key.pem", leaf.key, 0o600)
    _write(generation / "ca.pem", bundle, 0o644)
    fresh = folder / f".current-{secrets.token_hex(4)}"
    fresh.symlink_to(name)
    before = os.readlink(folder / "current") if (folder / "current").is_symlink() else ""
    os.replace(fresh, folder / "current")
    _remove_old(folder, {name, before})


def _remove_old(folder: Path, kept: set[str]) -> None:
    """Keeps the generation before the current one: an Envoy may be reading it."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink() and entry.name not in kept:
            with contextlib.suppress(OSError):
                shutil.rmtree(entry)


def _write_secrets(folder: Path) -> None:
    """Writes the files by which Envoy finds the certificate: one secret each, or it takes only one of them."""
    watched = {"path": str(folder)}
    current = folder / "current"
    leaf = {
        "certificate_chain": {"filename": str(current / "cert.pem")},
        "private_key": {"filename": str(current / "key.pem")},
        "watched_directory": watched,
    }
    bundle = {"trusted_ca": {"filename": str(current / "ca.pem")}, "watched_directory": watched}
    for name, content in (("leaf", {"tls_certificate": leaf}), ("bundle", {"validation_context": bundle})):
        document = {"resources": [{"@type": _TYPE, "name": name, **content}]}
        text = msgspec.json.format(msgspec.json.encode(document)) + b"\n"
        path = folder / f"{name}.json"
        if not path.exists() or path.read_bytes() != text:
            _write(path, text, 0o644)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(f"certificates folder {folder}: {error.strerror}; make it writable") from None


def _write(path: Path, content: bytes, mode: int) -> None:
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
    os.replace(fresh, path)
