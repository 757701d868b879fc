"""Ids of sixteen bytes that carry their time, their text form, and keys joined from several strings.

Pure: no clock, no randomness; both are arguments. Ids and their text sort alike, by time first.
Must not know what an id stands for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b

_SIZE = 16
_TIME_LIMIT = 1 << 48
_VARIANT_MASK = 0x3F
_VARIANT = 0x80
_TEXT = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z")
# Only what escaping needs; anything else would give two keys for one tuple of parts.
_ESCAPE = re.compile(r"%(25|2F)|%")


def uuid7(time_ms: int, entropy: bytes) -> bytes:
    """Returns a UUIDv7 of this time.

    Args:
        time_ms: Unix time in milliseconds, 48 bits.
        entropy: ten random bytes; six of their eighty bits give way to version and variant.

    Raises:
        ValueError: the time does not fit, or there are not ten bytes.
    """
    if len(entropy) != _SIZE - 6:
        raise ValueError(f"entropy must be {_SIZE - 6} bytes, not {len(entropy)}")
    return _compose(time_ms, entropy, version=7)


def derive_id(time_ms: int, parts: Sequence[bytes], low_bit: bool) -> bytes:
    """Returns the UUIDv8 that these parts always give: time, then hash bits, then one bit of the caller's.

    The parts are hashed with their lengths, so moving a byte from one part to the next gives another id.

    Args:
        time_ms: Unix time in milliseconds, 48 bits.
        parts: what the id is derived from, in order.
        low_bit: value of the id's last bit.

    Raises:
        ValueError: the time does not fit.
    """
    digest = blake2b(digest_size=_SIZE - 6)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    bits = bytearray(digest.digest())
    bits[-1] = (bits[-1] & 0xFE) | low_bit
    return _compose(time_ms, bytes(bits), version=8)


def id_time_ms(id_: bytes) -> int:
    """Returns the Unix time in milliseconds that an id carries."""
    return int.from_bytes(id_[:6], "big")


def to_text(id_: bytes) -> str:
    """Returns the canonical text of an id: lower-case hexadecimal in five groups.

    Raises:
        ValueError: it is not sixteen bytes.
    """
    if len(id_) != _SIZE:
        raise ValueError(f"an id has {_SIZE} bytes, not {len(id_)}")
    digits = id_.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def from_text(text: str) -> bytes:
    """Returns the bytes of a canonical id text; other spellings of the same number are refused.

    Raises:
        ValueError: it is not the canonical text of an id.
    """
    if _TEXT.match(text) is None:
        raise ValueError("not an id: expected lower-case UUID text of 36 characters")
    return bytes.fromhex(text.replace("-", ""))


def join_key(*parts: str) -> str:
    """Returns one key for several strings; different parts always give different keys.

    "/" separates; inside a part "%" becomes "%25" and "/" becomes "%2F". A prefix of the parts gives a prefix of the
    key, up to and including the separator.

    Raises:
        ValueError: there is no part at all (one empty part would give the same key).
    """
    if not parts:
        raise ValueError("a key needs at least one part")
    return "/".join([part.replace("%", "%25").replace("/", "%2F") for part in parts])


def split_key(key: str) -> tuple[str, ...]:
    """Returns the parts of a joined key.

    Raises:
        ValueError: no parts give this key.
    """
    if "%" not in key:
        return tuple(key.split("/"))
    return tuple([_unescape(part) for part in key.split("/")])


def _unescape(part: str) -> str:
    return _ESCAPE.sub(_unescape_one, part)


def _unescape_one(match: re.Match[str]) -> str:
    digits: str | None = match.group(1)
    if digits is None:
        raise ValueError('not a joined key: "%" is followed by neither "25" nor "2F"')
    return "%" if digits == "25" else "/"


def _compose(time_ms: int, tail: bytes, *, version: int) -> bytes:
    if not 0 <= time_ms < _TIME_LIMIT:
        raise ValueError(f"time {time_ms} ms does not fit into 48 bits")
    id_ = bytearray(time_ms.to_bytes(6, "big") + tail)
    id_[6] = (id_[6] & 0x0F) | version << 4
    id_[8] = (id_[8] & _VARIANT_MASK) | _VARIANT
    return bytes(id_)
