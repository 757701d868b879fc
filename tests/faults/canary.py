"""Contents that tell on their own whom they are for: made from a seed, checked by whoever receives them.

A canary is a keyed hash of recipient and nonce. A notification that reaches somebody else is caught even when all its
ids look right.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence


def canary(secret: bytes, recipient: str, nonce: str) -> str:
    """Returns the mark of one content for one recipient."""
    return hmac.new(secret, f"{recipient}\n{nonce}".encode(), hashlib.sha256).hexdigest()[:16]


def body(secret: bytes, recipients: Sequence[str], nonce: str, size: int = 0) -> str:
    """Returns a content for recipients: its nonce, then the mark of each, then padding up to a size in characters."""
    text = " ".join((nonce, *(canary(secret, recipient, nonce) for recipient in recipients)))
    return f"{text} {'-' * (size - len(text) - 1)}" if size > len(text) + 1 else text


def nonce_of(text: str) -> str:
    """Returns the nonce of a content."""
    return text.partition(" ")[0]


def is_for(secret: bytes, recipient: str, text: str) -> bool:
    """Says whether a content names this recipient."""
    nonce, *marks = text.split(" ")
    return canary(secret, recipient, nonce) in marks


def digest(text: str) -> str:
    """Returns the digest of a content."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]
