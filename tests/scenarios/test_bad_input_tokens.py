"""Tokens that prove nothing: refused by every call, over REST and in hello, for the same reason."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Mapping
from typing import NamedTuple

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from heliograph.delivery.v1 import inbox_service_pb2 as inbox_pb2
from heliograph.prefs.v1 import prefs_service_pb2 as prefs_pb2
from mesh.errors import PermissionDenied, Unauthenticated
from mesh.identity import TOKEN_HEADER
from tests.support.publishing import publish_request
from tests.support.raw_socket import End, hello, opened
from tests.support.recipient_calls import RecipientCalls
from tests.support.refusals import judge, refusal_of
from tests.support.site import Metadata, Site
from tests.support.wait import until

HOUR = 3600.0
OTHER_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


class Forged(NamedTuple):
    """One way to make a bad token: what differs from a good one."""

    name: str
    claims: Mapping[str, object] = {}
    header: Mapping[str, object] = {}
    missing: str = ""
    key: Ed25519PrivateKey | None = None
    reason: str = "TOKEN_INVALID"


FORGED = (
    Forged("of another key under a known name", key=OTHER_KEY),
    Forged("of a key that nobody knows", header={"kid": "nobody"}),
    Forged("of a key named like a file", header={"kid": "../../../etc/passwd"}),
    Forged("of a key named like a statement", header={"kid": "x' OR '1'='1'; drop table keys; --"}),
    Forged("of a key named in two lines", header={"kid": "a\r\nx-heliograph-caller: operator/dev"}),
    Forged("of a key with a long name", header={"kid": "k" * 2_000}),
    Forged("of a key with a name that is too long", header={"kid": "k" * 4_000}),
    Forged("of a key without a name", header={"kid": ""}),
    Forged("with a header that must be understood", header={"crit": ["b64"], "b64": False}),
    Forged("for another audience", {"aud": "billing"}),
    Forged("by another issuer", {"iss": "https://heliograph"}),
    Forged("without an end", missing="exp"),
    Forged("without a subject", missing="sub"),
    Forged("without a tenant", missing="tenant"),
    Forged("without a role", missing="role"),
    Forged("without an audience", missing="aud"),
    Forged("with an empty subject", {"sub": ""}),
    Forged("with a number as tenant", {"tenant": 1}),
    Forged("of an operator", {"role": "operator"}),
    Forged("of a service", {"role": "gateway"}),
    Forged("with an end that is text", {"exp": "tomorrow"}),
    Forged("of tomorrow", {"iat": time.time() + 24 * HOUR}),
    Forged("that is not valid yet", {"nbf": time.time() + HOUR}),
    Forged("that is too long", {"note": "x" * 5_000}),
    Forged("that is over", {"iat": time.time() - 2 * HOUR, "exp": time.time() - HOUR}, reason="TOKEN_EXPIRED"),
)


def _forge(site: Site, forged: Forged, role: str, subject: str) -> str:
    good = site.cluster.token(subject, role=role)
    claims = jwt.decode(good, options={"verify_signature": False})
    claims |= forged.claims
    claims.pop(forged.missing, None)
    header = {**jwt.get_unverified_header(good), **forged.header}
    own = serialization.load_pem_private_key(site.cluster.place.token_key.read_bytes(), password=None)
    assert isinstance(own, Ed25519PrivateKey)
    return jwt.encode(claims, forged.key or own, algorithm="EdDSA", headers=header)


async def _try_everywhere(site: Site, producer: str, recipient: str, reason: str) -> None:
    """Shows tokens wherever one is taken."""
    judge(
        await refusal_of(site.publish(publish_request("Bad", to=["alice"]), _bearer(producer))), Unauthenticated, reason
    )
    calls = RecipientCalls(site, _bearer(recipient))
    judge(await refusal_of(calls.list_inbox(inbox_pb2.ListInboxRequest())), Unauthenticated, reason)
    judge(await refusal_of(calls.get_preferences(prefs_pb2.GetPreferencesRequest())), Unauthenticated, reason)
    async with opened(site.live_url, site.tls()) as raw:
        await raw.say(hello(recipient))
        code = 4003 if reason == "TOKEN_EXPIRED" else 4501
        assert await raw.end() == End(code, reason, (reason,))
    if site.mesh:
        async with site.rest() as client:
            answer = await client.get("/v1/inbox", headers={"authorization": f"Bearer {recipient}".strip()})
        assert (answer.status_code, answer.json()["code"]) == (401, Unauthenticated.code)
        assert answer.json()["details"][0]["reason"] == reason


@pytest.mark.parametrize("forged", FORGED, ids=[forged.name.replace(" ", "-") for forged in FORGED])
async def test_a_bad_token_opens_nothing(site: Site, forged: Forged) -> None:
    """Calls, REST and hello refuse it alike, and say whether a fresh one would help."""
    producer, recipient = _forge(site, forged, "producer", "demo"), _forge(site, forged, "recipient", "alice")
    async with site.undisturbed():
        await _try_everywhere(site, producer, recipient, forged.reason)


async def test_no_token_makes_a_service_look_for_its_key(site: Site) -> None:
    """A key that a token brings, or says where to fetch, is not taken, and nobody goes to fetch it."""
    visits: list[str] = []

    async def visited(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.append("somebody came")
        writer.close()

    public = OTHER_KEY.public_key().public_bytes_raw()
    jwk = {"kty": "OKP", "crv": "Ed25519", "x": base64.urlsafe_b64encode(public).rstrip(b"=").decode()}
    async with await asyncio.start_server(visited, "127.0.0.1", 0) as listener, site.undisturbed():
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/keys"
        for header in ({"jku": url}, {"x5u": url}, {"jku": url, "kid": url}, {"jwk": jwk}, {"x5c": [jwk["x"]]}):
            forged = Forged("of a key of its own", header=header, key=OTHER_KEY)
            producer, recipient = _forge(site, forged, "producer", "demo"), _forge(site, forged, "recipient", "alice")
            await _try_everywhere(site, producer, recipient, "TOKEN_INVALID")
        assert visits == []
        _, writer = await asyncio.open_connection("127.0.0.1", listener.sockets[0].getsockname()[1])
        writer.close()
        await until(lambda: visits == ["somebody came"], 5.0, "the listener to notice who comes")


async def test_a_key_with_a_name_of_ten_thousand_letters_opens_no_session(site: Site) -> None:
    """A first frame has room for it; headers, which have less, are refused before anybody looks into them."""
    token = _forge(site, Forged("of a key with an endless name", header={"kid": "k" * 10_000}), "recipient", "alice")
    async with site.undisturbed(), opened(site.live_url, site.tls()) as raw:
        await raw.say(hello(token))
        assert await raw.end() == End(4501, "TOKEN_INVALID", ("TOKEN_INVALID",))


async def test_a_token_without_a_true_signature_opens_nothing(site: Site) -> None:
    """No algorithm, a public key used as a secret, a changed claim, and what is no token at all."""
    good = site.cluster.token("alice")
    claims = jwt.decode(good, options={"verify_signature": False})
    kid = jwt.get_unverified_header(good)["kid"]
    header, _, signature = good.split(".")
    bob = site.cluster.token("bob").split(".")[1]
    public = json.loads(site.cluster.place.token_keys.read_bytes())["keys"][0]["x"]
    bad = [
        jwt.encode(claims, "", algorithm="none", headers={"kid": kid}),
        jwt.encode(claims, public, "HS256", headers={"kid": kid}),
        f"{header}.{bob}.{signature}",
        f"{good[:-4]}AAAA",
        "not-a-token",
        "a.b.c",
        "",
    ]
    async with site.undisturbed():
        for token in bad:
            await _try_everywhere(site, token, token, "TOKEN_INVALID")


async def test_credentials_of_another_kind_open_nothing(site: Site) -> None:
    """Another scheme, and two tokens of which nobody could say which one counts."""
    alice, bob = (f"Bearer {site.cluster.token(name)}" for name in ("alice", "bob"))
    async with site.undisturbed():
        for credentials in (
            ((TOKEN_HEADER, "Basic YWxpY2U6YWxpY2U="),),
            ((TOKEN_HEADER, alice), (TOKEN_HEADER, bob)),
            ((TOKEN_HEADER, alice.removeprefix("Bearer ")),),
        ):
            listed = RecipientCalls(site, credentials).list_inbox(inbox_pb2.ListInboxRequest())
            judge(await refusal_of(listed), Unauthenticated, "TOKEN_INVALID")


async def test_without_credentials_nothing_is_open(site: Site) -> None:
    """The edge's callers are asked who they are; without an edge a caller without a name has no role."""
    calls = RecipientCalls(site, ())
    async with site.undisturbed():
        for failure in (
            await refusal_of(site.publish(publish_request("Bad", to=["alice"]), ())),
            await refusal_of(calls.list_inbox(inbox_pb2.ListInboxRequest())),
            await refusal_of(calls.get_preferences(prefs_pb2.GetPreferencesRequest())),
        ):
            if site.mesh:
                judge(failure, Unauthenticated, "TOKEN_INVALID")
            else:
                judge(failure, PermissionDenied, "CALLER_NOT_ALLOWED")


def _bearer(token: str) -> Metadata:
    return ((TOKEN_HEADER, f"Bearer {token}"),)
