"""Who calls: from the sidecar's header, the development header, or the credentials that the edge passes on.

Path step: the first thing done with every call. Must not decide what a caller may do; that is `mesh.access`.

Behind a sidecar only `x-forwarded-client-cert` counts: the sidecar replaces whatever a peer wrote there. Without
sidecars (direct) `x-heliograph-caller` says who it is. Credentials of somebody behind the edge, a certificate that the
edge checked or a bearer token, are looked at only when the edge passes them on, or in direct mode when nobody named
himself. A header that comes twice, or that cannot be read, makes the caller nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from mesh.access import OUTSIDE_ROLES, PRODUCER
from mesh.context import Caller
from mesh.errors import Unauthenticated
from mesh.tokens import TokenVerifier

CALLER_HEADER = "x-heliograph-caller"
PRODUCER_HEADER = "x-heliograph-producer"
CERTIFICATE_HEADER = "x-forwarded-client-cert"
TOKEN_HEADER = "authorization"
TRACE_HEADER = "traceparent"

NOBODY = Caller(role="", name="")
EDGE = "edge"

_WANTED = frozenset({CALLER_HEADER, PRODUCER_HEADER, CERTIFICATE_HEADER, TOKEN_HEADER, TRACE_HEADER})
# Stands for a header that came twice: no parser accepts it.
_AMBIGUOUS = "\n"
_SEGMENT = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_PATH = re.compile(rf"(?:svc/({_SEGMENT})|producer/({_SEGMENT})/({_SEGMENT})|operator/({_SEGMENT}))")


def pick(metadata: Iterable[tuple[str, str | bytes]]) -> dict[str, str]:
    """Returns the headers that identity and trace need, each once; one that came twice cannot be read any more."""
    found: dict[str, str] = {}
    for key, value in metadata:
        if key in _WANTED:
            found[key] = _AMBIGUOUS if key in found or not isinstance(value, str) else value
    return found


def parse_path(path: str) -> Caller:
    """Returns the caller that a path names ("svc/fanout", "producer/acme/billing", "operator/ada"), or nobody."""
    match = _PATH.fullmatch(path)
    if match is None:
        return NOBODY
    service, tenant, producer, operator = match.groups()
    if producer is not None:
        return Caller(role=PRODUCER, name=producer, tenant=tenant)
    if operator is not None:
        return Caller(role="operator", name=operator)
    # "svc/producer" would be taken for a producer by everything that looks at the role.
    return NOBODY if service in OUTSIDE_ROLES else Caller(role=service, name=service)


class Identifier:
    """Tells from a call's headers who calls.

    Args:
        direct: believe the development header; there is no sidecar.
        trust_domain: the only trust domain whose certificates count.
        tokens: checks bearer tokens; None refuses them all.
    """

    def __init__(self, *, direct: bool, trust_domain: str, tokens: TokenVerifier | None) -> None:
        self._direct = direct
        self._prefix = f"spiffe://{trust_domain}/"
        self._tokens = tokens
        self._header = CALLER_HEADER if direct else CERTIFICATE_HEADER
        # Peers are few and their headers never change; the bound is against a flood of made-up ones.
        self._peer = lru_cache(maxsize=1024)(parse_path if direct else self._parse_certificate)
        self._producer = lru_cache(maxsize=1024)(self._parse_producer)

    def identify(self, headers: dict[str, str]) -> Caller:
        """Returns the caller; nobody (role "") when nothing valid names one.

        Args:
            headers: what `pick` found.

        Raises:
            Unauthenticated: a bearer token that counts is invalid (TOKEN_INVALID) or over (TOKEN_EXPIRED).
        """
        named = headers.get(self._header)
        peer = NOBODY if named is None else self._peer(named)
        if peer.role == EDGE or (self._direct and named is None):
            return self._behind_edge(headers, peer)
        return peer

    def _behind_edge(self, headers: dict[str, str], peer: Caller) -> Caller:
        producer = headers.get(PRODUCER_HEADER)
        if producer is not None:
            return self._producer(producer)
        bearer = headers.get(TOKEN_HEADER)
        return peer if bearer is None else self._bearer(bearer)

    def _bearer(self, header: str) -> Caller:
        if self._tokens is None:
            raise Unauthenticated("this service takes no tokens", reason="TOKEN_INVALID")
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthenticated("only bearer tokens are taken here", reason="TOKEN_INVALID")
        # The verifier takes producers and recipients only: no token makes anybody an operator or a service.
        claims = self._tokens.verify(token.strip())
        return Caller(role=claims.role, name=claims.subject, tenant=claims.tenant)

    def _parse_certificate(self, header: str) -> Caller:
        # One certificate, one URI: two of either, or a quoted value, is not something the sidecar writes for a peer.
        if "," in header or '"' in header or header.upper().count("URI=") != 1:
            return NOBODY
        uris = [pair[4:] for pair in header.split(";") if pair.startswith("URI=")]
        return self._parse_uri(uris[0]) if uris else NOBODY

    def _parse_producer(self, uri: str) -> Caller:
        caller = self._parse_uri(uri)
        return caller if caller.role == PRODUCER else NOBODY

    def _parse_uri(self, uri: str) -> Caller:
        return parse_path(uri[len(self._prefix) :]) if uri.startswith(self._prefix) else NOBODY
