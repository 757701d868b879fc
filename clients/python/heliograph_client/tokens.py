"""Where a token comes from, and when it ends.

Must not verify a token: the servers do. Its claims are read only to fetch the next one in time.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import jwt
import msgspec

from mesh.ids import join_key

# A token that never changes, or something that returns the current one whenever it is asked.
TokenSource: TypeAlias = str | Callable[[], str | Awaitable[str]]


async def fetch_token(source: TokenSource) -> str:
    """Returns the current token."""
    if isinstance(source, str):
        return source
    token = source()
    return await token if inspect.isawaitable(token) else token


def renewable(source: TokenSource) -> bool:
    """Tells whether asking again may bring another token."""
    return not isinstance(source, str)


class Claims(msgspec.Struct, frozen=True):
    """What a token says about itself, unverified.

    Attributes:
        owner: tenant and subject in one text; empty when the token does not say.
        expire_time: Unix time in seconds, or None.
    """

    owner: str = ""
    expire_time: float | None = None


def claims_of(token: str) -> Claims:
    """Returns what a token says; nothing when it cannot be read."""
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except jwt.InvalidTokenError:
        return Claims()
    tenant, subject, expire_time = claims.get("tenant"), claims.get("sub"), claims.get("exp")
    return Claims(
        owner=join_key(tenant, subject) if isinstance(tenant, str) and isinstance(subject, str) else "",
        expire_time=float(expire_time) if isinstance(expire_time, int | float) else None,
    )
