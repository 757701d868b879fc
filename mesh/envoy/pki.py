"""X.509 for the mesh: a certificate authority, short-lived leaves, and what can be wrong with a leaf.

ECDSA P-256 throughout. Must not touch files: `mesh.envoy.certs` keeps them.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# Clocks of one mesh differ by less.
_BACKDATED_S = 300.0


class Authority(msgspec.Struct, frozen=True):
    """A root certificate with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


class Leaf(msgspec.Struct, frozen=True):
    """A certificate with its key, as PEM."""

    certificate: bytes
    key: bytes


class Names(msgspec.Struct, frozen=True):
    """What a leaf says of its holder. `client` is false for one that only serves those outside the mesh."""

    subject: str
    uris: tuple[str, ...] = ()
    dns_names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    client: bool = True


def create_authority(name: str, now: float, lifetime: float) -> Authority:
    """Makes a root that may sign leaves and nothing else."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    certificate = (
        _builder(subject, subject, key.public_key(), now, lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key)


def issue(authority: Authority, names: Names, now: float, lifetime: float) -> Leaf:
    """Makes a leaf.

    Args:
        authority: who signs.
        names: whom it names.
        now: Unix seconds.
        lifetime: seconds from now until it expires.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, *([ExtendedKeyUsageOID.CLIENT_AUTH] if names.client else [])]
    alternatives: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in names.uris]
    alternatives += [x509.DNSName(name) for name in names.dns_names]
    alternatives += [x509.IPAddress(ipaddress.ip_address(address)) for address in names.addresses]
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = (
        _builder(_name(names.subject), authority.certificate.subject, key.public_key(), now, lifetime)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(identifier, critical=False)
    )
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return Leaf(pem(builder.sign(authority.key, hashes.SHA256())), key_pem(key))


def pem(certificate: x509.Certificate) -> bytes:
    """Returns a certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Returns a key as PEM, not encrypted: the file's mode guards it."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def expire_time(certificate: x509.Certificate) -> float:
    """Returns when a certificate expires, in Unix seconds."""
    return certificate.not_valid_after_utc.timestamp()


def uris_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """Returns the URIs that a certificate names."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(names.get_values_for_type(x509.UniformResourceIdentifier))


def authorities_of(bundle: bytes) -> Sequence[x509.Certificate]:
    """Returns the certificates of a bundle.

    Raises:
        ValueError: it is no PEM or holds no certificate.
    """
    return x509.load_pem_x509_certificates(bundle)


def fault(leaf: Leaf, bundle: bytes) -> str:
    """Says what makes a leaf unusable at any time, in a few words; "" when nothing does."""
    try:
        certificate = x509.load_pem_x509_certificate(leaf.certificate)
    except ValueError:
        return "cert.pem is no certificate"
    try:
        key = serialization.load_pem_private_key(leaf.key, password=None)
    except (ValueError, TypeError):
        return "key.pem is no unencrypted key"
    try:
        authorities = authorities_of(bundle)
    except ValueError:
        return "ca.pem holds no certificate"
    if key.public_key() != certificate.public_key():
        return "cert.pem and key.pem do not belong together"
    if not any(_issued(certificate, authority) for authority in authorities):
        return "cert.pem was not signed by an authority in ca.pem"
    if _is_authority(certificate):
        return "cert.pem may sign other certificates, which a leaf must not"
    return ""


def _issued(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: float, lifetime: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_time(min(now, now + lifetime) - _BACKDATED_S))
        .not_valid_after(_time(now + lifetime))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _time(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)
