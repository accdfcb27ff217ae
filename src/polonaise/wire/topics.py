"""What a cluster has, as clients ask for it: the messages about topics, and which server owns which partition.

In `TopicIs` the ids of a topic's partitions are little-endian, i32 each, by their numbers; in `TopicsAre` all is JSON.

The rows of an `AssignmentIs` are little-endian. For each server: id i32 · length of its address u16 · the address, in
UTF-8. Then for each partition: partition i32 · its owner's index among these servers u32 · generation i32.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from polonaise.checksum import crc32
from polonaise.errors import ProtocolError
from polonaise.terms import ClusterTopics, Generation, PartitionId, ServerId, check_topics
from polonaise.wire.codec import I64, U32, Message, Payload, Text, message, payload
from polonaise.wire.messages import AssignmentIs


@message(39)
class DescribeTopic(Message):
    """Asks any server for a topic's partitions, in a description no older than the client has heard of.

    The server reads the coordinator for it, if it can.
    """

    version_known: I64
    """The version of the description that the client knows; -1 for none."""
    total_known: U32
    """The least number of partitions of the whole cluster that the description must have."""
    topic: Text


@message(40)
class TopicIs(Message):
    """The answer to `DescribeTopic`."""

    version: I64
    total: U32
    """The number of partitions of the whole cluster, in this version of its description."""
    crc: U32
    payload: Payload = payload()
    """The ids of the topic's partitions (`encode_topic`)."""


@message(41)
class ListTopics(Message):
    """Asks any server for the partitions of all topics. The server reads the coordinator for it."""


@message(42)
class TopicsAre(Message):
    """The answer to `ListTopics`."""

    partitions: U32
    """The number of the log's own partitions."""
    crc: U32
    payload: Payload = payload()
    """The ids of each topic's partitions, as JSON: `{"NAME": [ID, …], …}`."""


def encode_topics(topics: ClusterTopics) -> TopicsAre:
    raw = json.dumps({name: list(ids) for name, ids in sorted(topics.topics.items())}).encode()
    return TopicsAre(topics.partitions, crc32(raw), [raw])


def parse_topics(message: TopicsAre) -> ClusterTopics:
    """Return the topics of a cluster; raises `ProtocolError`."""
    raw = bytes(message.payload[0]) if message.payload else b""
    if crc32(raw) != message.crc:
        raise ProtocolError("the topics of a cluster arrived damaged: their checksum does not match")
    try:
        return ClusterTopics(message.partitions, check_topics(message.partitions, json.loads(raw)))
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"a server told of topics that no cluster has: {error}") from None


def encode_topic(version: int, total: int, ids: Sequence[PartitionId]) -> TopicIs:
    """Return the message that tells of a topic's partitions in a description with `total` partitions."""
    packed = struct.pack(f"<{len(ids)}i", *ids)
    return TopicIs(version, total, crc32(packed), [packed])


def parse_topic(message: TopicIs) -> tuple[PartitionId, ...]:
    """Return the ids of the topic's partitions; raises `ProtocolError`."""
    packed = message.payload[0] if message.payload else b""
    if crc32(packed) != message.crc or len(packed) % 4 or not len(packed):
        raise ProtocolError("the partitions of a topic arrived damaged: their checksum or length does not match")
    ids: tuple[PartitionId, ...] = struct.unpack(f"<{len(packed) // 4}i", packed)
    if len({*ids}) != len(ids) or not all(0 <= id < message.total for id in ids):
        raise ProtocolError(f"a server told of a topic with partitions that no cluster has: {ids[:5]}, …")
    return ids


_SERVER: Final = struct.Struct("<iH")
_PARTITION: Final = struct.Struct("<iIi")


class AssignedPartition(NamedTuple):
    """A partition with its owner: the server's id and address, and the generation of its ownership."""

    partition: PartitionId
    server: ServerId
    address: str
    generation: Generation


def encode_assignment(version: int, assigned: Iterable[AssignedPartition]) -> AssignmentIs:
    """Return the message for an assignment, with age and trouble left for its sender to fill in."""
    places: dict[tuple[ServerId, str], int] = {}
    rows = [
        _PARTITION.pack(each.partition, places.setdefault((each.server, each.address), len(places)), each.generation)
        for each in assigned
    ]
    servers = []
    for server, address in places:
        raw = address.encode()
        servers.append(_SERVER.pack(server, len(raw)) + raw)
    payload = b"".join((*servers, *rows))
    return AssignmentIs(version, 0, len(servers), len(rows), crc32(payload), "", [payload])


def parse_assignment(message: AssignmentIs) -> list[AssignedPartition]:
    """Return the assigned partitions in a message. Raises `ProtocolError` for rows that are damaged or invalid."""
    payload = memoryview(message.payload[0] if message.payload else b"")
    if crc32(payload) != message.crc:
        raise ProtocolError("an assignment arrived damaged: its checksum does not match")
    servers: list[tuple[ServerId, str]] = []
    offset = 0
    try:
        for _ in range(message.servers):
            server, length = _SERVER.unpack_from(payload, offset)
            offset += _SERVER.size
            address = bytes(payload[offset : offset + length]).decode()
            if not address.isprintable():  # it is shown in messages, and in terminals
                raise ProtocolError(f"an assignment names a server at {address!r}, which is no address")
            servers.append((server, address))
            offset += length
        if len(payload) - offset != message.partitions * _PARTITION.size:
            raise ProtocolError(
                f"an assignment of {message.partitions} partitions has {len(payload) - offset} bytes of rows"
            )
        return [
            AssignedPartition(partition, servers[place][0], servers[place][1], generation)
            for partition, place, generation in _PARTITION.iter_unpack(payload[offset:])
        ]
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(f"an assignment has invalid rows: {error}") from None
