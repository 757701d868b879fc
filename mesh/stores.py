"""What every store outside the process has in common: its URL, TLS and credentials from files, and its upkeep.

A URL names where and what (`kafka://host:9092/heliograph?ca=/etc/ca.pem`), never a secret: those are in files that it
points to. It must not know an engine.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from mesh.errors import StartError

# Options that every engine's URL may have.
TLS_OPTIONS = ("ca", "cert", "key")
COMMON_OPTIONS = (*TLS_OPTIONS, "credentials")


class Host(msgspec.Struct, frozen=True):
    """One address of an engine."""

    name: str
    port: int

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


class Credentials(msgspec.Struct, frozen=True):
    """A name and its password; printing it shows only the name."""

    name: str
    password: str

    def __repr__(self) -> str:
        return f"Credentials(name={self.name!r})"


class EngineUrl(msgspec.Struct, frozen=True):
    """A parsed URL of an engine.

    Attributes:
        text: as it was written; it holds no secret, so it may be logged.
        scheme: which kind, "kafka".
        hosts: where to begin, at least one.
        name: the path: a prefix of topics, a keyspace, a database; without slashes at its ends, may be empty.
        options: what stands behind the question mark.
    """

    text: str
    scheme: str
    hosts: tuple[Host, ...]
    name: str
    options: Mapping[str, str]

    def tls(self) -> ssl.SSLContext | None:
        """Returns how to speak TLS; None when no file of it is named.

        Raises:
            StartError: a file cannot be read, or is none of its kind; one line names it.
        """
        ca, cert, key = (self.options.get(name, "") for name in TLS_OPTIONS)
        if not (ca or cert or key):
            return None
        if bool(cert) != bool(key):
            raise StartError(f"{self.text}: name both cert=FILE and key=FILE, or neither")
        try:
            context = ssl.create_default_context(cafile=ca or None)
        except (OSError, ssl.SSLError) as error:
            raise StartError(f"{self.text}: ca={ca}: {_said(error)}; name a PEM file of trusted roots") from None
        if cert:
            try:
                context.load_cert_chain(cert, key)
            except (OSError, ssl.SSLError) as error:
                raise StartError(
                    f"{self.text}: cert={cert}, key={key}: {_said(error)}; name a PEM chain and its key"
                ) from None
        return context

    def credentials(self) -> Credentials | None:
        """Returns name and password from the file that `credentials` names: one line, `name:password`.

        Raises:
            StartError: the file cannot be read or has another form; its content is never shown.
        """
        path = self.options.get("credentials", "")
        if not path:
            return None
        try:
            name, colon, password = Path(path).read_text(encoding="utf-8").strip().partition(":")
        except (OSError, UnicodeDecodeError) as error:
            raise StartError(f"{self.text}: credentials={path}: {_said(error)}; name a readable file") from None
        if not (name and colon and password):
            raise StartError(f"{self.text}: credentials={path}: must hold one line, name:password")
        return Credentials(name, password)


def parse_url(
    setting: str, text: str, *, schemes: Sequence[str], default_port: int, known: str, options: Sequence[str] = ()
) -> EngineUrl:
    """Parses the URL of an engine.

    Args:
        setting: the setting it comes from; errors begin with it.
        text: the URL; several hosts are separated by commas.
        schemes: those of this engine.
        default_port: of a host without one.
        known: forms that are right, for errors.
        options: allowed behind the question mark, besides `COMMON_OPTIONS`.

    Raises:
        StartError: one line: the setting, what is wrong, and the known forms.
    """

    def wrong(what: str) -> StartError:
        return StartError(f"{setting}: {what}; known: {known}")

    # An address with a password in it is not repeated: it would be in the log from now on.
    if "@" in text.partition("?")[0]:
        raise wrong("a name or password in a URL is not taken: put name:password into a file, credentials=FILE")
    scheme, separator, _ = text.partition("://")
    if not separator or scheme not in schemes:
        raise wrong(f"{text!r} is no known store")
    parts = urlsplit(text)
    hosts = tuple(_host(one, default_port, wrong) for one in parts.netloc.split(",") if one)
    if not hosts:
        raise wrong(f"{text!r} names no host")
    if parts.fragment:
        raise wrong(f"{text!r} has a #fragment")
    found = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in found:
        if name not in options and name not in COMMON_OPTIONS:
            raise wrong(f"{text!r}: unknown option {name!r}; options: {', '.join((*options, *COMMON_OPTIONS))}")
    return EngineUrl(text, scheme, hosts, unquote(parts.path.strip("/")), found)


def _host(text: str, default_port: int, wrong: Callable[[str], StartError]) -> Host:
    try:
        parts = urlsplit(f"//{text}")
        port = parts.port
    except ValueError:
        parts, port = None, 0
    if parts is None or not parts.hostname or port == 0:
        raise wrong(f"{text!r} is no host:port")
    return Host(parts.hostname, port or default_port)


def _said(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)) or type(error).__name__


# ---------------------------------------------------------------- upkeep


class Finding(msgspec.Struct, frozen=True):
    """One thing that a store needs, and how it is.

    Attributes:
        what: a topic, a keyspace, a setting of one, a table.
        state: right; not there, which `create` mends; behind, which `migrate` mends; wrong, which a person must mend.
        detail: what it is and must be instead, with the setting's name; empty when it is right.
    """

    what: str
    state: Literal["ok", "missing", "behind", "wrong"]
    detail: str = ""


class StoreAdmin(Protocol):
    """The upkeep of one store: what `heliograph stores` does, and what a start checks.

    Each call connects, does its work and disconnects. Raises `StartError` with one line when the engine cannot be
    reached, refuses the credentials or is of a version that is not supported.
    """

    @property
    def what(self) -> str:
        """What is kept there: "event lanes"."""
        ...

    @property
    def url(self) -> str:
        """Where it is."""
        ...

    async def check(self) -> Sequence[Finding]:
        """Looks at everything that is needed, and changes nothing."""
        ...

    async def create(self, *, dry_run: bool) -> Sequence[str]:
        """Makes what is missing, changes nothing that is there, and returns a line for each thing made.

        Args:
            dry_run: only says what it would make.
        """
        ...

    async def migrate(self, *, dry_run: bool) -> Sequence[str]:
        """Brings a schema up to this version under a lock, and returns a line for each step."""
        ...


async def require(admin: StoreAdmin) -> None:
    """Refuses the start when a store is not as it must be.

    Raises:
        StartError: the first finding that is not "ok", and what to do.
    """
    for finding in await admin.check():
        if finding.state == "ok":
            continue
        remedy = {
            "missing": "make it with `heliograph stores create`",
            "behind": "run `heliograph stores migrate`",
            "wrong": "correct it, then look with `heliograph stores check`",
        }[finding.state]
        raise StartError(f"{admin.what} at {admin.url}: {finding.what}: {finding.detail or finding.state}; {remedy}")


async def require_all(admins: Sequence[StoreAdmin]) -> None:
    """Refuses the start when one of several stores is not as it must be; see `require`."""
    for admin in admins:
        await require(admin)
