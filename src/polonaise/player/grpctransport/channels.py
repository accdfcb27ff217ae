"""The settings of gRPC channels and servers: how a dead connection is noticed, and what is too large."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from polonaise.errors import BadOption
from polonaise.host.address import HostPort, is_every_interface, parse_address
from polonaise.player.grpctransport.messages import MESSAGE_BYTES_MAX
from polonaise.redaction import redacted

ChannelOptions: TypeAlias = list[tuple[str, Any]]

SCHEME: Final = "grpc://"
KEEPALIVE_S: Final = 5.0
"""Seconds of silence after which a side asks whether the other is still there. With twice as long for the answer, that
is well below `PlayerSettings.progress_s_max`."""
_STRANGER_MS: Final = 10_000
"""The longest that a connection lasts on which nobody opens a stream."""
_STREAMS_MAX: Final = 100
"""The most streams of one connection: a player has one."""


def place_of(text: str) -> HostPort:
    place = parse_address(text)
    if not isinstance(place, HostPort):
        raise BadOption(f"{SCHEME}{redacted(text)} is not the address of a target over gRPC: write grpc://host:port")
    return place


def connectable(text: str) -> str:
    """Return the place in `host:port`. Raises `BadOption` for anything else, and for one that nobody can connect to."""
    place = place_of(text)
    if is_every_interface(place) or not place.port:
        raise BadOption(f"nobody can connect to {SCHEME}{place}: name the host and the port of the target")
    return str(place)


def client_options(keepalive_s: float, open_s_max: float) -> ChannelOptions:
    open_ms = max(1, int(open_s_max * 1000))
    return [
        *_common_options(keepalive_s),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.use_local_subchannel_pool", 1),  # its connection is its own, and so is what went wrong with that
        ("grpc.min_reconnect_backoff_ms", open_ms),  # how long a connection may take to be made, even if it is closed
        ("grpc.initial_reconnect_backoff_ms", open_ms),
        ("grpc.max_reconnect_backoff_ms", open_ms),
        ("grpc.enable_http_proxy", 0),  # as everything else here connects
        ("grpc.enable_retries", 0),  # the player opens the next stream, under the next fence
        ("grpc.service_config_disable_resolution", 1),
    ]


def server_options(keepalive_s: float) -> ChannelOptions:
    return [
        *_common_options(keepalive_s),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.so_reuseport", 0),  # or a second server would get every other connection, and nobody an error
        ("grpc.http2.min_ping_interval_without_data_ms", 200),  # players ask more often than gRPC allows for
        ("grpc.max_concurrent_streams", _STREAMS_MAX),
        ("grpc.server_handshake_timeout_ms", _STRANGER_MS),
        ("grpc.max_connection_idle_ms", _STRANGER_MS),
    ]


def _common_options(keepalive_s: float) -> ChannelOptions:
    silence_ms = max(1, int(keepalive_s * 1000))
    answer_ms = 2 * silence_ms  # the question waits behind what is being sent
    return [
        ("grpc.keepalive_time_ms", silence_ms),
        ("grpc.keepalive_timeout_ms", answer_ms),
        ("grpc.http2.ping_timeout_ms", answer_ms),  # else a minute, and gRPC goes by this one
        ("grpc.http2.max_pings_without_data", 0),  # go on asking while nothing is sent
    ]
