"""Certificates: what a leaf says, and what makes it unusable."""

from __future__ import annotations

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from mesh.envoy import pki

NOW = 1_800_000_000.0
HOUR = 3600.0
URI = "spiffe://heliograph.local/svc/fanout"


def _authority() -> pki.Authority:
    return pki.create_authority("root", NOW, 24 * HOUR)


def _parsed(leaf: pki.Leaf) -> x509.Certificate:
    return x509.load_pem_x509_certificate(leaf.certificate)


def test_a_leaf_serves_and_calls_but_signs_nothing() -> None:
    """Both usages, no authority flag, no signing of certificates."""
    certificate = _parsed(pki.issue(_authority(), pki.Names("svc/fanout", (URI,)), NOW, HOUR))
    usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usages) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not certificate.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    assert pki.uris_of(certificate) == (URI,)
    assert pki.expire_time(certificate) == NOW + HOUR


def test_a_server_only_leaf_cannot_call() -> None:
    """What clients outside see is no identity to call with."""
    certificate = _parsed(
        pki.issue(_authority(), pki.Names("public", dns_names=("localhost",), client=False), NOW, HOUR)
    )
    usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usages) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert pki.uris_of(certificate) == ()


def test_a_certificate_without_names_has_no_uris() -> None:
    """A root names nobody."""
    assert pki.uris_of(_authority().certificate) == ()


def test_faults_are_found() -> None:
    """A foreign root, a foreign key and an authority used as leaf are told apart from a good leaf."""
    ours, other = _authority(), _authority()
    bundle = pki.pem(ours.certificate)
    leaf, another = (pki.issue(ours, pki.Names("x", (URI,)), NOW, HOUR) for _ in range(2))
    assert pki.fault(leaf, bundle) == ""
    assert pki.fault(leaf, bundle + pki.pem(other.certificate)) == ""
    assert "not signed" in pki.fault(leaf, pki.pem(other.certificate))
    assert "belong together" in pki.fault(pki.Leaf(leaf.certificate, another.key), bundle)
    root = pki.Leaf(bundle, pki.key_pem(ours.key))
    assert "may sign" in pki.fault(root, bundle)
