"""Encode and parse the ids of a topic's partitions in a `TopicIs`: little-endian, i32 each, by their numbers."""

from __future__ import annotations

import struct

from polonaise.checksum import crc32
from polonaise.coordination.topics import TopicPartitions
from polonaise.errors import ProtocolError
from polonaise.wire.messages import TopicIs


def encode_topic(topic: TopicPartitions) -> TopicIs:
    """Return the message that tells of a topic's partitions."""
    ids = struct.pack(f"<{len(topic.ids)}i", *topic.ids)
    return TopicIs(topic.version, topic.total, crc32(ids), [ids])


def parse_topic(message: TopicIs, name: str) -> TopicPartitions:
    """Return the partitions of this topic in a message. Raises `ProtocolError` for ids that are damaged or none."""
    ids = message.payload[0] if message.payload else b""
    if crc32(ids) != message.crc or len(ids) % 4 or not len(ids):
        raise ProtocolError(f"the partitions of topic {name} arrived damaged: their checksum or length does not match")
    topic = TopicPartitions(message.version, message.total, struct.unpack(f"<{len(ids) // 4}i", ids), name)
    if len({*topic.ids}) != len(topic.ids) or not all(0 <= id < topic.total for id in topic.ids):
        raise ProtocolError(f"a server told of partitions of topic {name} that no cluster has: {topic.ids[:5]}, …")
    return topic
