"""gRPC options of servers and channels: both sides must agree, so they stand together.

Each value was found by trial; the defaults let a stream buffer megabytes that nobody counts. Must not hold deadlines
or retries: those belong to calls.
"""

from __future__ import annotations

Option = tuple[str, int | str]

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
MAX_METADATA_BYTES = 16 * 1024

_WINDOW_BYTES = 64 * 1024
_KEEPALIVE_MS = 30_000
_KEEPALIVE_TIMEOUT_MS = 10_000

_BOTH: tuple[Option, ...] = (
    # Without the probe the flow-control window stays what it is set to; with it, it grows to megabytes a stream.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
    ("grpc.http2.write_buffer_size", _WINDOW_BYTES),
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Soft and hard limit alike: between the two gRPC refuses at random.
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)


def server_options(max_receive_bytes: int) -> list[Option]:
    """Returns the options of a server that takes messages up to this size."""
    return [
        *_BOTH,
        ("grpc.max_receive_message_length", max_receive_bytes),
        ("grpc.so_reuseport", 0),
        # The shortest distance between pings that is no offence; peers ping every 30 s.
        ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.server.max_pending_requests", 30_000),
        ("grpc.server.max_pending_requests_hard_limit", 60_000),
        ("grpc.enable_channelz", 1),
    ]


def channel_options(authority: str | None, *, own_connection: bool) -> list[Option]:
    """Returns the options of a channel.

    Args:
        authority: the name by which a sidecar finds the peer; None for a direct connection.
        own_connection: do not share a connection with other channels to the same address.
    """
    options: list[Option] = [
        *_BOTH,
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
    ]
    if own_connection:
        options.append(("grpc.use_local_subchannel_pool", 1))
    if authority is not None:
        options.append(("grpc.default_authority", authority))
    return options
