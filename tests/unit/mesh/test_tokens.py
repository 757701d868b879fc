"""Tokens: what is accepted, what is refused, and keys that change while the process runs."""

from __future__ import annotations

import base64
import hmac
import json
import os
import stat
from pathlib import Path
from typing import Any

import jwt
import pytest
import structlog
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mesh import tokens
from mesh.clock import ManualClock
from mesh.errors import StartError, Unauthenticated
from mesh.tokens import Claims, TokenSigner, TokenVerifier, create_signing_key

_NOW = 1_700_000_000.0


class _Keys:
    """A key pair on disk, its verifier, and the raw key to sign forgeries with."""

    def __init__(self, folder: Path) -> None:
        self.private_file = folder / "tokens.pem"
        self.jwks_file = folder / "tokens.jwks"
        self.kid = create_signing_key(self.private_file, self.jwks_file)
        key = serialization.load_pem_private_key(self.private_file.read_bytes(), None)
        assert isinstance(key, Ed25519PrivateKey)
        self.key = key
        self.clock = ManualClock(wall=_NOW)
        self.verifier = TokenVerifier(self.jwks_file, clock=self.clock)
        self.signer = TokenSigner(self.private_file)

    def token(self, **changes: Any) -> str:
        """Returns a correctly signed token with claims changed, or left out when None."""
        claims: dict[str, Any] = {
            "iss": "heliograph",
            "aud": "heliograph",
            "sub": "alice",
            "tenant": "acme",
            "role": "recipient",
            "iat": _NOW,
            "exp": _NOW + 60,
        }
        claims.update(changes)
        kept = {name: value for name, value in claims.items() if value is not None}
        return _sign(self.key, {"alg": "EdDSA", "kid": self.kid}, kept)


def _encode(part: object) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")


def _sign(key: Ed25519PrivateKey, header: dict[str, Any], claims: object) -> str:
    """Signs by hand: the library refuses to make most of the wrong tokens."""
    signed = _encode(header) + b"." + _encode(claims)
    return (signed + b"." + base64.urlsafe_b64encode(key.sign(signed)).rstrip(b"=")).decode()


@pytest.fixture
def keys(tmp_path: Path) -> _Keys:
    """A fresh key pair with its verifier."""
    return _Keys(tmp_path)


def _refused(keys: _Keys, token: str) -> Unauthenticated:
    with pytest.raises(Unauthenticated) as caught:
        keys.verifier.verify(token)
    return caught.value


def _touch(file: Path, content: str) -> None:
    """Writes the file with a time of its own, whatever the grain of the file system's clock."""
    before = file.stat().st_mtime_ns if file.exists() else 0
    file.write_text(content)
    os.utime(file, ns=(before + 1_000_000, before + 1_000_000))


def test_a_signed_token_is_accepted(keys: _Keys) -> None:
    """What the signer signs, the verifier reads back."""
    token = keys.signer.sign("alice", "acme", "recipient", 60.0, _NOW)
    assert keys.verifier.verify(token) == Claims("alice", "acme", "recipient", _NOW + 60.0)


def test_the_injected_clock_decides_about_expiry(keys: _Keys) -> None:
    """A token lives to its expiry plus the leeway on our clock, whatever the machine's clock says."""
    token = keys.token()
    keys.clock.advance(64.9)
    keys.verifier.verify(token)
    keys.clock.advance(0.1)
    assert _refused(keys, token).reason == "TOKEN_EXPIRED"


def test_a_clock_that_lags_a_little_is_forgiven(keys: _Keys) -> None:
    """A token issued up to the leeway in the future is accepted, one beyond it is not."""
    keys.verifier.verify(keys.token(iat=_NOW + 4.9))
    assert _refused(keys, keys.token(iat=_NOW + 5.1)).reason == "TOKEN_INVALID"


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": None},
        {"iat": None},
        {"iss": None},
        {"aud": None},
        {"sub": None},
        {"tenant": None},
        {"role": None},
        {"iss": "other"},
        {"aud": "other"},
        {"sub": ""},
        {"sub": 7},
        {"sub": "x" * 257},
        {"tenant": ""},
        {"tenant": ["acme"]},
        {"role": "operator"},
        {"role": "fanout"},
        {"exp": "soon"},
        {"exp": True},
        {"exp": float("inf")},
        {"exp": float("nan")},
        {"nbf": _NOW + 30},
    ],
    ids=str,
)
def test_wrong_claims_are_refused(keys: _Keys, changes: dict[str, Any]) -> None:
    """A good signature does not save a token with a missing or foreign claim."""
    assert _refused(keys, keys.token(**changes)).reason == "TOKEN_INVALID"


@pytest.mark.parametrize(
    "kid", ["k" * 10_000, "a\nb", "x' OR '1'='1", "../tokens.pem", 7, ["a"], None, {"a": 1}], ids=str
)
def test_a_key_is_one_of_those_that_are_known_by_name(keys: _Keys, kid: object) -> None:
    """Whatever stands where the name belongs: it is looked up, and not looked at."""
    claims = jwt.decode(keys.token(), options={"verify_signature": False})
    assert _refused(keys, _sign(keys.key, {"alg": "EdDSA", "kid": kid}, claims)).reason == "TOKEN_INVALID"


def test_a_refusal_says_what_is_wrong_in_words_of_its_own(keys: _Keys) -> None:
    """A developer learns which part of the token to look at, and not the name of an exception."""
    good = keys.token()
    wrong = {
        keys.token(aud="other"): "its audience is another one",
        keys.token(iss="other"): "its issuer is another one",
        good[:-6] + "AAAAAA": "its signature is not of the key that it names",
        _sign(keys.key, {"alg": "HS256", "kid": keys.kid}, {}): "it must be signed by EdDSA",
        "no-token": "it is malformed",
    }
    assert [_refused(keys, token).message for token in wrong] == [
        f"the token is not acceptable: {what}" for what in wrong.values()
    ]


def test_an_expired_token_of_a_stranger_is_invalid_not_expired(keys: _Keys) -> None:
    """The signature is judged first: "expired" is said only about tokens that were once good."""
    forged = _sign(Ed25519PrivateKey.generate(), {"alg": "EdDSA", "kid": keys.kid}, {"exp": 1})
    assert _refused(keys, forged).reason == "TOKEN_INVALID"


def test_only_eddsa_is_accepted(keys: _Keys) -> None:
    """Neither "none" nor a symmetric signature made with the public key passes."""
    _, claims, _ = keys.token().split(".")
    unsigned = _encode({"alg": "none", "kid": keys.kid}).decode() + "." + claims + "."
    assert _refused(keys, unsigned).reason == "TOKEN_INVALID"
    public = json.loads(keys.jwks_file.read_text())["keys"][0]["x"]
    for secret in (public.encode(), keys.key.public_key().public_bytes_raw()):
        signed = _encode({"alg": "HS256", "kid": keys.kid}) + b"." + claims.encode()
        mac = base64.urlsafe_b64encode(hmac.digest(secret, signed, "sha256")).rstrip(b"=")
        assert _refused(keys, (signed + b"." + mac).decode()).reason == "TOKEN_INVALID"
    other = jwt.encode({"sub": "x"}, generate_private_key(SECP256R1()), algorithm="ES256", headers={"kid": keys.kid})
    assert _refused(keys, other).reason == "TOKEN_INVALID"


@pytest.mark.parametrize("kid", [None, "", "other", 7, ["a"]], ids=str)
def test_the_key_must_be_named(keys: _Keys, kid: object) -> None:
    """A token that names no known key is refused even if a known key signed it."""
    header = {"alg": "EdDSA"} if kid is None else {"alg": "EdDSA", "kid": kid}
    claims = json.loads(base64.urlsafe_b64decode(keys.token().split(".")[1] + "=="))
    assert _refused(keys, _sign(keys.key, header, claims)).reason == "TOKEN_INVALID"


@pytest.mark.parametrize(
    "token",
    ["", ".", "..", "a.b.c", "Bearer x", "ä.ö.ü", "\x00", "x" * 5000, "e30.e30.e30", "W10.W10.W10", "bnVsbA.e30."],
)
def test_garbage_is_refused(keys: _Keys, token: str) -> None:
    """Whatever is sent as a token ends in the same typed refusal."""
    assert _refused(keys, token).reason == "TOKEN_INVALID"


def test_a_changed_token_is_refused(keys: _Keys) -> None:
    """Swapping the claims of two good tokens gives a bad one."""
    head, _, signature = keys.token().split(".")
    _, claims, _ = keys.token(sub="mallory").split(".")
    assert _refused(keys, f"{head}.{claims}.{signature}").reason == "TOKEN_INVALID"


def test_refusals_do_not_repeat_the_token(keys: _Keys) -> None:
    """No part of a token reaches a text that may be logged."""
    token = keys.token(sub="secretname", role="operator")
    text = str(_refused(keys, token))
    assert "secretname" not in text
    assert not any(part in text for part in token.split("."))


def test_new_keys_are_picked_up_and_old_ones_can_be_withdrawn(keys: _Keys) -> None:
    """A key added to the file works at once beside the old one; a removed key stops working."""
    old = keys.token()
    before = keys.jwks_file.read_text()
    create_signing_key(keys.private_file, keys.jwks_file)
    new = TokenSigner(keys.private_file).sign("bob", "acme", "producer", 60.0, _NOW)
    assert keys.verifier.verify(new).subject == "bob"
    assert keys.verifier.verify(old).subject == "alice"
    assert len(json.loads(keys.jwks_file.read_text())["keys"]) == 2
    _touch(keys.jwks_file, before)
    assert _refused(keys, new).reason == "TOKEN_INVALID"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"keys": 3}', '{"keys": []}', '{"keys": [{"kty": "RSA"}]}']
)
def test_a_broken_file_keeps_the_last_good_keys(keys: _Keys, content: str) -> None:
    """A bad replacement locks nobody out, is complained about once, and the next good file counts."""
    token, good = keys.token(), keys.jwks_file.read_text()
    with structlog.testing.capture_logs() as lines:
        _touch(keys.jwks_file, content)
        for _ in range(3):
            assert keys.verifier.verify(token).subject == "alice"
    assert [line["event"] for line in lines] == ["tokens_file_unusable"]
    _touch(keys.jwks_file, good)
    assert keys.verifier.verify(token).subject == "alice"


def test_a_removed_file_keeps_the_last_good_keys(keys: _Keys) -> None:
    """The moment between removing and replacing a file is survived."""
    keys.jwks_file.unlink()
    with structlog.testing.capture_logs() as lines:
        keys.verifier.verify(keys.token())
        keys.verifier.verify(keys.token())
    assert len(lines) == 1


def test_a_start_without_usable_keys_is_refused(tmp_path: Path) -> None:
    """A missing, broken or leaking file stops the start in one line with its name."""
    file = tmp_path / "tokens.jwks"
    with pytest.raises(StartError, match=f"{file}: No such file"):
        TokenVerifier(file, clock=ManualClock())
    entry = {"kty": "OKP", "crv": "Ed25519", "kid": "a", "x": base64.urlsafe_b64encode(bytes(32)).decode()}
    for entries, fault in [
        ([], "no key"),
        ([entry, entry], "same kid"),
        ([entry | {"d": "AA"}], "private key"),
        ([entry | {"x": "AA"}], "broken x"),
        ([entry | {"kid": ""}], "not an Ed25519 key"),
    ]:
        file.write_text(json.dumps({"keys": entries}))
        with pytest.raises(StartError, match=fault) as caught:
            TokenVerifier(file, clock=ManualClock())
        assert "\n" not in str(caught.value)


def test_the_private_key_is_private(keys: _Keys) -> None:
    """Nobody else can read the private key, and the public file holds no private part."""
    assert stat.S_IMODE(keys.private_file.stat().st_mode) == 0o600
    assert all("d" not in entry for entry in json.loads(keys.jwks_file.read_text())["keys"])


def test_the_key_id_is_the_standard_thumbprint() -> None:
    """Other tools compute the same id for the key: the example of RFC 8037, appendix A.3."""
    seed = base64.urlsafe_b64decode("nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=")
    public = Ed25519PrivateKey.from_private_bytes(seed).public_key()
    assert tokens.key_id(public) == "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"


def test_signing_without_a_usable_key_is_refused(tmp_path: Path) -> None:
    """A missing file, text that is no key, and a key of another kind are told apart in one line."""
    file = tmp_path / "key.pem"
    with pytest.raises(StartError, match="No such file"):
        TokenSigner(file)
    file.write_text("no key")
    with pytest.raises(StartError, match="no unencrypted PEM key"):
        TokenSigner(file)
    file.write_bytes(
        generate_private_key(SECP256R1()).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    with pytest.raises(StartError, match="not an Ed25519 key"):
        TokenSigner(file)


def test_a_broken_public_file_is_not_overwritten(keys: _Keys) -> None:
    """Making a key does not throw away a file it cannot read."""
    keys.jwks_file.write_text("{")
    with pytest.raises(StartError, match="remove it or correct it"):
        create_signing_key(keys.private_file, keys.jwks_file)
    assert keys.jwks_file.read_text() == "{"
