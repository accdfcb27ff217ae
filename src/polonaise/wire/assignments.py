"""Encode and parse the rows of an `AssignmentIs`: the servers, and which of them owns which partition.

Little-endian. For each server: id i32 · length of its address u16 · the address, in UTF-8. Then for each partition:
partition i32 · its owner's index among these servers u32 · generation i32.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from polonaise.checksum import crc32
from polonaise.errors import ProtocolError
from polonaise.terms import Generation, PartitionId, ServerId
from polonaise.wire.messages import AssignmentIs

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
