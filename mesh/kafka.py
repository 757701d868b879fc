"""Kafka: how to reach it, what its failures mean, and what is heard of its client.

`mesh.kafka_clients` has the producer and the consumers, `mesh.kafka_admin` the questions. These three are the only
importers of aiokafka, and are imported only when a URL names Kafka. Here the client's failures become
`KafkaUnavailable` and its log one line an outage. It must not know what a topic is for.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from mesh.errors import StartError, Unavailable
from mesh.stores import EngineUrl, parse_url
from mesh.telemetry import logger

try:
    from aiokafka import errors as kafka_errors
except ImportError:
    raise StartError("Kafka needs the package aiokafka: pip install 'heliograph[engines]'") from None

SCHEMES: Final = ("kafka",)
KNOWN: Final = "kafka://host:9092,host:9092/PREFIX?partitions=4&replicas=3"
OLDEST: Final = "Kafka 3.1"
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
# No answer within it: the connection is given up, and the request repeated where that is harmless.
REQUEST_TIMEOUT_S: Final = 5.0
# So late a topic that grew, or was made anew, is noticed.
_METADATA_AGE_S: Final = 10.0
_QUIET_S: Final = 10.0

# The broker refused the batch: nothing of it was appended.
_REFUSED: Final = (
    kafka_errors.MessageSizeTooLargeError,
    kafka_errors.RecordListTooLargeError,
    kafka_errors.InvalidTopicError,
    kafka_errors.InvalidTimestampError,
    kafka_errors.PolicyViolationError,
    kafka_errors.TopicAuthorizationFailedError,
    kafka_errors.ClusterAuthorizationFailedError,
    kafka_errors.UnsupportedForMessageFormatError,
    kafka_errors.ProducerClosed,
)
_TOO_LARGE: Final = (kafka_errors.MessageSizeTooLargeError, kafka_errors.RecordListTooLargeError)
_OLD_GENERATION: Final = (
    kafka_errors.CommitFailedError,
    kafka_errors.IllegalGenerationError,
    kafka_errors.UnknownMemberIdError,
    kafka_errors.RebalanceInProgressError,
    kafka_errors.IllegalStateError,
)
# aiokafka's two exceptions that are no KafkaError; connection failures come as OSError, late answers as TimeoutError.
FAILURES: Final = (
    kafka_errors.KafkaError,
    kafka_errors.ConsumerStoppedError,
    kafka_errors.IllegalOperation,
    # No version of a request is known to both sides.
    NotImplementedError,
    OSError,
    TimeoutError,
)


class KafkaUnavailable(Unavailable):
    """Kafka did not do it, or with `unknown` set perhaps did.

    Attributes:
        unknown: it may be done all the same.
        too_large: the topic takes nothing of this size.
        denied: these credentials may not do it.
        old_generation: the group has given the partition to somebody else.
    """

    def __init__(
        self,
        message: str,
        *,
        unknown: bool = False,
        too_large: bool = False,
        denied: bool = False,
        old_generation: bool = False,
    ) -> None:
        super().__init__(message, reason="STORE_UNAVAILABLE")
        self.unknown = unknown
        self.too_large = too_large
        self.denied = denied
        self.old_generation = old_generation


@contextlib.contextmanager
def translated(what: str, *, unknown: bool = False) -> Iterator[None]:
    """Turns the client's failures into ours.

    Args:
        what: was tried; the message begins with it.
        unknown: whether a failure that does not say so may have happened after the deed.
    """
    try:
        yield
    except FAILURES as error:
        raise KafkaUnavailable(
            f"{what}: {_said(error)}",
            unknown=unknown and not isinstance(error, _REFUSED),
            too_large=isinstance(error, _TOO_LARGE),
            denied="Authorization" in type(error).__name__,
            old_generation=isinstance(error, _OLD_GENERATION),
        ) from error


def _said(error: Exception) -> str:
    """Returns one line about a failure; the client tells why it has no connection to its log only."""
    if isinstance(error, NotImplementedError | kafka_errors.IncompatibleBrokerVersion):
        return f"the brokers are of a version that is not supported; {OLDEST} or newer is needed"
    if isinstance(error, TimeoutError):
        return f"no answer within {REQUEST_TIMEOUT_S:g} s"
    if isinstance(error, kafka_errors.KafkaConnectionError) and "bootstrap" in str(error) and _heard.text:
        return _heard.text + ("it ended the connection" if _heard.text.endswith(": ") else "")
    return (str(error) or type(error).__name__).splitlines()[0]


class Cluster(msgspec.Struct, frozen=True):
    """A Kafka as a URL names it.

    Attributes:
        url: the URL.
        prefix: begins the name of every topic and group.
        partitions: of a topic that is made.
        replicas: copies that every topic must have.
        mechanism: of SASL, where there are credentials.
    """

    url: EngineUrl
    prefix: str
    partitions: int
    replicas: int
    mechanism: str

    @property
    def text(self) -> str:
        """The URL as it was written; it holds no secret."""
        return self.url.text

    def connection(self) -> dict[str, Any]:
        """Returns what every client of aiokafka is given.

        Raises:
            StartError: a file with certificates or credentials cannot be used.
        """
        tls, credentials = self.url.tls(), self.url.credentials()
        _mute()
        found: dict[str, Any] = {
            "bootstrap_servers": [str(host) for host in self.url.hosts],
            "request_timeout_ms": int(REQUEST_TIMEOUT_S * 1000),
            "metadata_max_age_ms": int(_METADATA_AGE_S * 1000),
            "security_protocol": ("SASL_" if credentials else "") + ("SSL" if tls else "PLAINTEXT"),
            "ssl_context": tls,
        }
        if credentials is not None:
            found |= {
                "sasl_mechanism": self.mechanism,
                "sasl_plain_username": credentials.name,
                "sasl_plain_password": credentials.password,
            }
        return found


def parse_cluster(setting: str, text: str) -> Cluster:
    """Parses `kafka://host:port,…/PREFIX?partitions=4&replicas=3&sasl=SCRAM-SHA-512`.

    Raises:
        StartError: one line with the setting, what is wrong and the known form.
    """
    options = ("partitions", "replicas", "sasl")
    url = parse_url(setting, text, schemes=SCHEMES, default_port=9092, known=KNOWN, options=options)
    if not url.name or not all(letter.isalnum() or letter in "._-" for letter in url.name):
        raise StartError(f"{setting}: {text!r} names no prefix of letters, digits, '.', '_' and '-'; known: {KNOWN}")
    mechanism = url.options.get("sasl", "SCRAM-SHA-512")
    if mechanism not in MECHANISMS:
        raise StartError(f"{setting}: {text!r}: sasl={mechanism} is none of {', '.join(MECHANISMS)}")
    return Cluster(url, url.name, _count(setting, url, "partitions", 4), _count(setting, url, "replicas", 3), mechanism)


def _count(setting: str, url: EngineUrl, name: str, default: int) -> int:
    text = url.options.get(name, str(default))
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 10_000):
        raise StartError(f"{setting}: {url.text!r}: {name}={text} must be a whole number, 1 to 10,000")
    return int(text)


class _OneLine(logging.Handler):
    """The client says the same thing ten times a second while a broker is away: here it is said once an outage."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._last = -_QUIET_S
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage().splitlines()[0]
        now = time.monotonic()
        if now - self._last >= _QUIET_S:
            logger().warning("kafka_client", text=self.text)
        self._last = now


_heard = _OneLine()


def _mute() -> None:
    root = logging.getLogger("aiokafka")
    if _heard not in root.handlers:
        root.addHandler(_heard)
        root.propagate = False
        root.setLevel(logging.WARNING)
