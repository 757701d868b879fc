"""What Envoy would let a caller of its own mesh decide by headers, were they not taken off. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# Every failure is to be repeated, and counted under a name of the caller's own.
RETRIES: Final[Mapping[str, str]] = {
    "x-envoy-internal": "true",
    "x-envoy-retry-on": "5xx,reset,gateway-error,retriable-status-codes",
    "x-envoy-retry-grpc-on": "cancelled,deadline-exceeded,internal,resource-exhausted,unavailable",
    "x-envoy-retriable-status-codes": "503",
    "x-envoy-max-retries": "9",
    "x-envoy-upstream-alt-stat-name": "a_strangers_own_statistic",
}
# And no time at all for any of it.
CONTROLS: Final[Mapping[str, str]] = {
    **RETRIES,
    "x-envoy-upstream-rq-timeout-ms": "1",
    "x-envoy-upstream-rq-per-try-timeout-ms": "1",
    "x-envoy-expected-rq-timeout-ms": "1",
    "x-envoy-hedge-on-per-try-timeout": "true",
    "x-envoy-decorator-operation": "a-strangers-own-operation",
    "x-envoy-force-trace": "true",
}
