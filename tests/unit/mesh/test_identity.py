"""Who calls: every way to say it, and every way to lie about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh.clock import ManualClock
from mesh.context import Caller
from mesh.errors import Unauthenticated
from mesh.identity import NOBODY, Identifier, parse_path, pick
from mesh.tokens import TokenSigner, TokenVerifier, create_signing_key

FANOUT = Caller(role="fanout", name="fanout")
EDGE = Caller(role="edge", name="edge")
BILLING = Caller(role="producer", name="billing", tenant="acme")
ADA = Caller(role="recipient", name="ada", tenant="acme")
BAD_TOKEN = ("authorization", "Bearer nonsense")
DOMAIN = "heliograph.local"
PRODUCER_URI = f"spiffe://{DOMAIN}/producer/acme/billing"


class Tokens:
    """Signs tokens that `verifier` accepts."""

    def __init__(self, folder: Path) -> None:
        create_signing_key(folder / "token.key", folder / "tokens.jwks")
        self.clock = ManualClock()
        self.verifier = TokenVerifier(folder / "tokens.jwks", clock=self.clock)
        self._signer = TokenSigner(folder / "token.key")

    def header(self, role: str = "recipient", scheme: str = "Bearer", lifetime_s: float = 60.0) -> tuple[str, str]:
        """Returns the header with a token of tenant acme's ada."""
        token = self._signer.sign("ada", "acme", role, lifetime_s, self.clock.wall())
        return ("authorization", f"{scheme} {token}")


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    """A key pair of its own."""
    return Tokens(tmp_path)


def _certificate(path: str, domain: str = DOMAIN) -> str:
    return f"By=spiffe://{DOMAIN}/svc/prefs;Hash=ab12;URI=spiffe://{domain}/{path}"


def _who(*headers: tuple[str, str | bytes], direct: bool = False, tokens: Tokens | None = None) -> Caller:
    verifier = None if tokens is None else tokens.verifier
    return Identifier(direct=direct, trust_domain=DOMAIN, tokens=verifier).identify(pick(headers))


@pytest.mark.parametrize(
    ("path", "caller"),
    [
        ("svc/fanout", FANOUT),
        ("producer/acme/billing", BILLING),
        ("operator/ada", Caller(role="operator", name="ada")),
    ],
)
def test_a_known_caller_is_named_in_both_modes(path: str, caller: Caller) -> None:
    """The development header names a caller in direct mode, the sidecar's header names the same one behind it."""
    assert _who(("x-heliograph-caller", path), direct=True) == caller
    assert _who(("x-forwarded-client-cert", _certificate(path))) == caller


@pytest.mark.parametrize(
    "path",
    [
        "",
        "fanout",
        "svc/",
        "svc/fanout/",
        "svc/fan out",
        "svc/fanout\n",
        "svc/producer",
        "svc/recipient",
        "svc/operator",
        "producer/billing",
        "producer/acme/billing/x",
        "producer//billing",
        "recipient/acme/ada",
        "operator/",
        "SVC/fanout",
    ],
)
def test_anything_else_is_nobody(path: str) -> None:
    """A path that is not exactly one of the three forms names nobody; no service takes an outside role's name."""
    assert parse_path(path) == NOBODY
    assert _who(("x-heliograph-caller", path), direct=True) == NOBODY
    assert _who(("x-forwarded-client-cert", _certificate(path))) == NOBODY


def test_the_development_header_means_nothing_behind_a_sidecar(tokens: Tokens) -> None:
    """Alone it names nobody, and beside a certificate it changes nothing."""
    forged = ("x-heliograph-caller", "svc/edge")
    assert _who(forged) == NOBODY
    assert _who(forged, ("x-forwarded-client-cert", _certificate("svc/fanout"))) == FANOUT
    assert _who(forged, tokens.header(), tokens=tokens) == NOBODY


def test_the_sidecars_header_means_nothing_without_one() -> None:
    """In direct mode only the development header names a peer."""
    assert _who(("x-forwarded-client-cert", _certificate("svc/fanout")), direct=True) == NOBODY


@pytest.mark.parametrize(
    "header",
    [
        f"By=a;Hash=b;URI=spiffe://{DOMAIN}/svc/fanout;URI=spiffe://{DOMAIN}/svc/prefs",
        f"By=a;Hash=b;URI=spiffe://{DOMAIN}/svc/fanout,By=a;Hash=c",
        f"By=a;Hash=b;URI=spiffe://{DOMAIN}/svc/fanout,By=a;Hash=c;URI=spiffe://{DOMAIN}/svc/edge",
        f"By=a;Hash=b;URI=spiffe://{DOMAIN}/svc/fanout;uri=x",
        f'By=a;Hash=b;URI="spiffe://{DOMAIN}/svc/fanout"',
        f"By=spiffe://{DOMAIN}/svc/fanout;Hash=b",
        f"By=a;Hash=b;DNS=spiffe://{DOMAIN}/svc/fanout",
        f"By=a;Hash=b;xURI=spiffe://{DOMAIN}/svc/fanout",
        "By=a;Hash=b;URI=spiffe://elsewhere.local/svc/fanout",
        f"By=a;Hash=b;URI=spiffe://{DOMAIN}.evil/svc/fanout",
        f"By=a;Hash=b;URI=https://{DOMAIN}/svc/fanout",
        "",
    ],
)
def test_a_certificate_needs_exactly_one_uri_of_our_domain(header: str) -> None:
    """Two URIs, two certificates, a foreign domain or no URI make nobody."""
    assert _who(("x-forwarded-client-cert", header)) == NOBODY


def test_a_header_that_comes_twice_names_nobody() -> None:
    """Whoever adds a second copy does not get to choose which counts."""
    twice = [("x-heliograph-caller", "svc/fanout"), ("x-heliograph-caller", "svc/fanout")]
    assert _who(*twice, direct=True) == NOBODY
    certificate = ("x-forwarded-client-cert", _certificate("svc/fanout"))
    assert _who(certificate, certificate) == NOBODY


@pytest.mark.parametrize("direct", [False, True])
def test_the_edge_speaks_for_a_producer(direct: bool, tokens: Tokens) -> None:
    """A certificate that the edge checked makes the caller that producer; the token beside it is not read."""
    peer = ("x-heliograph-caller", "svc/edge") if direct else ("x-forwarded-client-cert", _certificate("svc/edge"))
    claim = ("x-heliograph-producer", PRODUCER_URI)
    for token in (tokens.header(), BAD_TOKEN):
        assert _who(peer, claim, token, direct=direct, tokens=tokens) == BILLING


@pytest.mark.parametrize(
    "uri", ["", "producer/acme/billing", f"spiffe://{DOMAIN}/svc/fanout", f"spiffe://{DOMAIN}/operator/a"]
)
def test_the_edge_speaks_for_producers_only(uri: str) -> None:
    """Anything but a producer's full URI in that header makes nobody, not the edge."""
    assert _who(("x-forwarded-client-cert", _certificate("svc/edge")), ("x-heliograph-producer", uri)) == NOBODY


def test_nobody_else_speaks_for_a_producer() -> None:
    """From any other peer the header is ignored."""
    claim = ("x-heliograph-producer", PRODUCER_URI)
    assert _who(("x-forwarded-client-cert", _certificate("svc/fanout")), claim) == FANOUT
    assert _who(("x-heliograph-caller", "svc/fanout"), claim, direct=True) == FANOUT
    assert _who(claim) == NOBODY


def test_the_edge_passes_tokens_on(tokens: Tokens) -> None:
    """Behind the edge a bearer token makes the caller its subject, with its tenant and role."""
    edge = ("x-forwarded-client-cert", _certificate("svc/edge"))
    assert _who(edge, tokens.header(), tokens=tokens) == ADA
    producer = tokens.header("producer", scheme="bearer")
    assert _who(edge, producer, tokens=tokens) == Caller(role="producer", name="ada", tenant="acme")
    assert _who(edge, tokens=tokens) == EDGE


def test_without_a_named_caller_direct_mode_reads_credentials(tokens: Tokens) -> None:
    """A client that is no service shows a token or a producer's URI; with neither it is nobody."""
    assert _who(tokens.header(), direct=True, tokens=tokens) == ADA
    assert _who(("x-heliograph-producer", PRODUCER_URI), direct=True) == BILLING
    assert _who(direct=True, tokens=tokens) == NOBODY


def test_a_named_peers_token_is_not_read(tokens: Tokens) -> None:
    """A service's own identity is not changed by a token that it carries, valid or not."""
    for token in (tokens.header(), BAD_TOKEN):
        assert _who(("x-heliograph-caller", "svc/fanout"), token, direct=True, tokens=tokens) == FANOUT
        assert _who(("x-forwarded-client-cert", _certificate("svc/fanout")), token, tokens=tokens) == FANOUT


@pytest.mark.parametrize("role", ["operator", "fanout", "edge", ""])
def test_no_token_makes_an_operator_or_a_service(role: str, tokens: Tokens) -> None:
    """A well-signed token with any other role is refused."""
    with pytest.raises(Unauthenticated) as caught:
        _who(tokens.header(role), direct=True, tokens=tokens)
    assert caught.value.reason == "TOKEN_INVALID"


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer nonsense", "Basic YTpi"])
def test_a_bad_token_is_no_anonymous_call(header: str, tokens: Tokens) -> None:
    """Credentials that cannot be read are told, not ignored."""
    for peer in ((), (("x-heliograph-caller", "svc/edge"),)):
        with pytest.raises(Unauthenticated) as caught:
            _who(*peer, ("authorization", header), direct=True, tokens=tokens)
        assert caught.value.reason == "TOKEN_INVALID"


def test_an_expired_token_is_told(tokens: Tokens) -> None:
    """The client learns that it needs a new one."""
    header = tokens.header(lifetime_s=60.0)
    tokens.clock.advance(120.0)
    with pytest.raises(Unauthenticated) as caught:
        _who(header, direct=True, tokens=tokens)
    assert caught.value.reason == "TOKEN_EXPIRED"


def test_two_tokens_are_none(tokens: Tokens) -> None:
    """Nobody chooses between two."""
    with pytest.raises(Unauthenticated):
        _who(tokens.header(), tokens.header("producer"), direct=True, tokens=tokens)


def test_without_keys_tokens_are_refused(tokens: Tokens) -> None:
    """A service that was given no keys cannot take a token for valid."""
    with pytest.raises(Unauthenticated, match="takes no tokens"):
        _who(tokens.header(), direct=True)
