"""Tokens of callers without a certificate: signing and checking JWTs, and the keys for both.

Only EdDSA with Ed25519 is accepted, and only keys named by `kid`; the time checks use the clock that is passed in.
Must not put a token or a part of it into a failure or a log line.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jwt
import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from mesh.clock import Clock
from mesh.errors import StartError, Unauthenticated

ISSUER = "heliograph"
AUDIENCE = "heliograph"
ROLES = frozenset({"recipient", "producer"})

_ALGORITHM = "EdDSA"
_REQUIRED = ("exp", "iat", "iss", "aud", "sub", "tenant", "role")
_LONGEST_TOKEN = 4096
_LONGEST_NAME = 256
# The library's time checks read the system's clock; ours come after the signature.
_OPTIONS: Any = {"require": list(_REQUIRED), "verify_exp": False, "verify_iat": False, "verify_nbf": False}

# Enough for the caller's developer; the library's own text may quote the token, and its names are nobody's business.
_FAULTS: Mapping[type[jwt.InvalidTokenError], str] = {
    jwt.InvalidAlgorithmError: f"it must be signed by {_ALGORITHM}",
    jwt.InvalidAudienceError: "its audience is another one",
    jwt.InvalidIssuerError: "its issuer is another one",
    jwt.InvalidSignatureError: "its signature is not of the key that it names",
}


class Claims(msgspec.Struct, frozen=True):
    """What a valid token says about its bearer."""

    subject: str
    tenant: str
    role: str
    expire_time: float


class _KeysUnusable(Exception):
    """The JWKS file cannot be used; the text says why."""


class TokenVerifier:
    """Checks tokens against a file of public keys, which may be replaced at any time.

    Raises:
        StartError: the file cannot be used at the start. Later the last good keys stay in force.
    """

    def __init__(self, jwks_file: Path, *, clock: Clock, leeway: float = 5.0) -> None:
        self._file = jwks_file
        self._clock = clock
        self._leeway = leeway
        # Read before the content: a file replaced in between is read once more, never missed.
        self._seen = self._signature()
        try:
            self._keys = _read_keys(jwks_file)
        except _KeysUnusable as error:
            raise StartError(f"tokens file {jwks_file}: {error}; give a JWKS file with Ed25519 public keys") from None

    def verify(self, token: str) -> Claims:
        """Returns the claims of a valid token.

        Raises:
            Unauthenticated: TOKEN_EXPIRED for a good token whose time is over, TOKEN_INVALID for any other fault.
        """
        self._refresh()
        payload = self._decode(token)
        now = self._clock.wall()
        expire_time = _number(payload, "exp")
        if _number(payload, "iat") > now + self._leeway:
            raise _invalid("the token was issued in the future")
        if "nbf" in payload and _number(payload, "nbf") > now + self._leeway:
            raise _invalid("the token is not valid yet")
        if expire_time + self._leeway <= now:
            raise Unauthenticated("the token has expired; get a new one", reason="TOKEN_EXPIRED")
        role = _name(payload, "role")
        if role not in ROLES:
            raise _invalid("the token gives no role that a token can give")
        return Claims(
            subject=_name(payload, "sub"), tenant=_name(payload, "tenant"), role=role, expire_time=expire_time
        )

    def _decode(self, token: str) -> Mapping[str, Any]:
        if len(token) > _LONGEST_TOKEN:
            raise _invalid(f"the token is longer than {_LONGEST_TOKEN} characters")
        try:
            key = self._keys.get(jwt.get_unverified_header(token).get("kid", ""))
            if key is None:
                raise _invalid("the token names no key that is known here")
            return jwt.decode(token, key, algorithms=[_ALGORITHM], audience=AUDIENCE, issuer=ISSUER, options=_OPTIONS)
        except jwt.MissingRequiredClaimError as error:
            raise _invalid(f"the token lacks the claim {error.claim}") from None
        except jwt.InvalidTokenError as error:
            raise _invalid(f"the token is not acceptable: {_FAULTS.get(type(error), 'it is malformed')}") from None
        except (ValueError, TypeError):
            raise _invalid("the token cannot be read") from None

    def _refresh(self) -> None:
        signature = self._signature()
        if signature == self._seen:
            return
        # Remembered also when the file is bad: a broken file is read, and complained about, once.
        self._seen = signature
        # Not at the top: whoever only signs tokens must not pay for loading logs and metrics.
        from mesh import telemetry

        try:
            self._keys = _read_keys(self._file)
        except _KeysUnusable as error:
            telemetry.logger().error(
                "tokens_file_unusable", file=str(self._file), cause=str(error), kept=len(self._keys)
            )
        else:
            telemetry.logger().info("tokens_file_read", file=str(self._file), keys=sorted(self._keys))

    def _signature(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._file)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


class TokenSigner:
    """Signs tokens with an Ed25519 private key (PKCS8 PEM).

    Raises:
        StartError: the file holds no such key.
    """

    def __init__(self, private_key_file: Path) -> None:
        try:
            key = serialization.load_pem_private_key(private_key_file.read_bytes(), password=None)
        except OSError as error:
            raise StartError(f"token key {private_key_file}: {error.strerror}; make one first") from None
        except (ValueError, TypeError):
            raise StartError(f"token key {private_key_file}: is no unencrypted PEM key; make a new one") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise StartError(f"token key {private_key_file}: is not an Ed25519 key; make a new one")
        self._key = key
        self._kid = key_id(key.public_key())

    def sign(self, subject: str, tenant: str, role: str, lifetime_s: float, now: float) -> str:
        """Returns a token.

        Args:
            subject: the recipient or producer.
            tenant: its tenant.
            role: "recipient" or "producer".
            lifetime_s: seconds until it expires.
            now: Unix time in seconds.
        """
        payload = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": subject,
            "tenant": tenant,
            "role": role,
            "iat": math.floor(now),
            "exp": math.ceil(now + lifetime_s),
        }
        return jwt.encode(payload, self._key, algorithm=_ALGORITHM, headers={"kid": self._kid})


def create_signing_key(private_file: Path, jwks_file: Path) -> str:
    """Makes a key pair and returns the key's id.

    The private key replaces the one in `private_file`; the public key joins those in `jwks_file`, so that tokens
    signed by an earlier key stay valid.

    Raises:
        OSError: a file cannot be written.
        StartError: the JWKS file exists and cannot be used.
    """
    key = Ed25519PrivateKey.generate()
    kid = key_id(key.public_key())
    known: list[dict[str, str]] = []
    if jwks_file.exists():
        try:
            known = [_jwk(name, public) for name, public in _read_keys(jwks_file).items()]
        except _KeysUnusable as error:
            raise StartError(f"tokens file {jwks_file}: {error}; remove it or correct it") from None
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    # The public key first: a token must never be signed by a key that nobody knows yet.
    content = json.dumps({"keys": [*known, _jwk(kid, key.public_key())]}, indent=2) + "\n"
    _replace(jwks_file, content.encode(), mode=0o644)
    _replace(private_file, pem, mode=0o600)
    return kid


def _read_keys(file: Path) -> dict[str, Ed25519PublicKey]:
    try:
        document = json.loads(file.read_bytes())
        entries = document["keys"]
        if not isinstance(entries, list):
            raise _KeysUnusable('"keys" is not a list')
    except OSError as error:
        raise _KeysUnusable(error.strerror or type(error).__name__) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _KeysUnusable('is not JSON with a list "keys"') from None
    keys = dict([_read_key(position, entry) for position, entry in enumerate(entries)])
    if len(keys) < len(entries):
        raise _KeysUnusable("two keys have the same kid")
    if not keys:
        raise _KeysUnusable("holds no key")
    return keys


def _read_key(position: int, entry: object) -> tuple[str, Ed25519PublicKey]:
    match entry:
        case {"d": _}:
            raise _KeysUnusable(f"key {position} contains a private key, which does not belong there")
        case {"kty": "OKP", "crv": "Ed25519", "kid": str(kid), "x": str(x)} if kid:
            try:
                return kid, Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(x + "=" * (-len(x) % 4)))
            except ValueError:
                raise _KeysUnusable(f"key {position} has a broken x") from None
        case _:
            raise _KeysUnusable(f"key {position} is not an Ed25519 key (kty OKP) with kid and x")


def _jwk(kid: str, key: Ed25519PublicKey) -> dict[str, str]:
    return {"kty": "OKP", "crv": "Ed25519", "use": "sig", "alg": _ALGORITHM, "kid": kid, "x": _x(key)}


def key_id(key: Ed25519PublicKey) -> str:
    """Returns the thumbprint of RFC 7638, so that signer and file agree without telling each other."""
    members = json.dumps({"crv": "Ed25519", "kty": "OKP", "x": _x(key)}, separators=(",", ":"))
    return _base64url(hashlib.sha256(members.encode()).digest())


def _x(key: Ed25519PublicKey) -> str:
    return _base64url(key.public_bytes_raw())


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _replace(file: Path, content: bytes, *, mode: int) -> None:
    """Writes a file as a whole or not at all, never readable for others before it has its mode."""
    fresh = file.with_name(f".{file.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
    os.replace(fresh, file)


def _number(payload: Mapping[str, Any], claim: str) -> float:
    value = payload[claim]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _invalid(f"the claim {claim} is not a time")
    return float(value)


def _name(payload: Mapping[str, Any], claim: str) -> str:
    value = payload[claim]
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_NAME:
        raise _invalid(f"the claim {claim} is not a text of 1 to {_LONGEST_NAME} characters")
    return value


def _invalid(message: str) -> Unauthenticated:
    return Unauthenticated(message, reason="TOKEN_INVALID")
