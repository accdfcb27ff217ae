"""The messages of a stream from a player to a target, and the columns of the entries that it carries.

The player opens the stream with `OpenDelivery`, and the target answers with `DeliveryAccepted`, or with
`DeliveryFenced` or `DeliveryEnded`, which may also come at any time later and are the last message. Once accepted, the
player sends `DeliverEntries`, and for each the target answers `EntriesApplied` or `EntryRefused`. Messages about
entries have the partition in their frame, the others none.

Columns of `DeliverEntries`, little-endian: id i64 of each entry · length i32 of each payload, -1 for a dummy, which
has none. The payload of the message is those of the entries, one after the other.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from polonaise.checksum import crc32
from polonaise.errors import ProtocolError
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId
from polonaise.wire.codec import I64, U32, Blob, Buffer, Key, Message, Payload, Text, encode_frame, message, payload

_APPLIED: Final = struct.Struct("<iq")
_THROUGH: Final = struct.Struct("<q")
_DUMMY: Final = -1
_ENTRY_BYTES: Final = 12
_ONE_ENTRY: Final = struct.Struct("<qIIqi")
"""The head of a batch of one entry: most are while the log is written slowly."""
_ONE_COLUMN: Final = struct.Struct("<qi")


@message(128)
class OpenDelivery(Message):
    """Opens the stream. The target compares the fence with the one that it keeps."""

    epoch: I64
    term: I64
    log_key: Key
    """The key of the log that the entries are of: that of the cluster, or of a topic."""
    player: Text
    target: Text
    """The name by which the player knows the target, and by which the server of several targets finds it."""


@message(129)
class DeliveryAccepted(Message):
    """The target keeps the stream's fence now, durably."""

    applied: Blob
    """Rows of partition i32 and id i64: the last id applied of each partition."""


@message(130)
class DeliveryFenced(Message):
    """The target keeps this fence, and takes nothing more of the stream."""

    epoch: I64
    term: I64


@message(131)
class DeliverEntries(Message):
    """Consecutive entries of one partition for the target."""

    previous: I64
    """The id of the entry that was sent before the first one; -1 for none. The target has to have applied it."""
    crc: U32
    """CRC of the payload."""
    columns: Blob
    payload: Payload = payload()


@message(132)
class EntriesApplied(Message):
    """The target has applied everything that it was sent of the partition up to this id."""

    through: I64


@message(133)
class EntryRefused(Message):
    """The target could not apply the entry after `last`, and passes over what follows until it is sent that again."""

    last: I64
    reason: Text


@message(134)
class DeliveryEnded(Message):
    """The target's side has ended the stream."""

    reason: Text


_NOT_RISING: Final = "the ids of a delivery must rise, from above {} on"


def applied_frame(partition: PartitionId, through: TransactionId) -> list[Buffer]:
    """Return the frame of an `EntriesApplied`, made in one go: there is one of each batch."""
    return encode_frame(EntriesApplied.TYPE, 0, partition, _THROUGH.pack(through))


def entries_frame(
    partition: PartitionId, previous: TransactionId, entries: Sequence[tuple[TransactionId, bytes | None]]
) -> list[Buffer]:
    """Return the frame of a `DeliverEntries`, made in one go, of pairs of id and payload; a dummy's is None."""
    count = len(entries)
    if count == 1:
        ((id, payload),) = entries
        data = payload or b""
        length = _DUMMY if payload is None else len(data)
        head = _ONE_ENTRY.pack(previous, crc32(data), _ENTRY_BYTES, id, length)
    else:
        ids, payloads = zip(*entries, strict=True)
        lengths = [_DUMMY if each is None else len(each) for each in payloads]
        data = b"".join(filter(None, payloads))
        head = struct.pack(f"<qII{count}q{count}i", previous, crc32(data), count * _ENTRY_BYTES, *ids, *lengths)
    return encode_frame(DeliverEntries.TYPE, 0, partition, head, (data,) if data else ())


def parse_entries(message: DeliverEntries) -> list[tuple[TransactionId, bytes | None]]:
    """Return the entries, in their order. Raises `ProtocolError` for damage, and for what no player sends."""
    count, rest = divmod(len(message.columns), _ENTRY_BYTES)
    if not count or rest:
        raise ProtocolError(f"a delivery has {len(message.columns)} bytes of columns: {_ENTRY_BYTES} for each entry")
    data = message.payload[0] if message.payload else b""
    if crc32(data) != message.crc:
        raise ProtocolError("the entries of a delivery arrived damaged: their checksum does not match")
    if count == 1:
        id, length = _ONE_COLUMN.unpack(message.columns)
        if message.previous < NO_TRANSACTION or id <= message.previous:
            raise ProtocolError(_NOT_RISING.format(message.previous))
        if length == _DUMMY and not data:
            return [(id, None)]
        if length == len(data):
            return [(id, bytes(data))]
    numbers = struct.unpack(f"<{count}q{count}i", message.columns)
    ids, lengths = numbers[:count], numbers[count:]
    if not NO_TRANSACTION <= message.previous < ids[0] or not all(map(operator.lt, ids, ids[1:])):
        raise ProtocolError(_NOT_RISING.format(message.previous))
    entries: list[tuple[TransactionId, bytes | None]] = []
    start = 0
    for id, length in zip(ids, lengths, strict=True):
        if length == _DUMMY:
            entries.append((id, None))
            continue
        end = start + length
        if length < 0 or end > len(data):
            raise ProtocolError(f"entry {id} of a delivery takes {length} bytes, and {len(data) - start} are left")
        entries.append((id, bytes(data[start:end])))
        start = end
    if start != len(data):
        raise ProtocolError(f"{len(data) - start} bytes left over in a delivery")
    return entries


def encode_applied(applied: Mapping[PartitionId, TransactionId]) -> DeliveryAccepted:
    return DeliveryAccepted(b"".join(_APPLIED.pack(*row) for row in applied.items()))


def parse_applied(message: DeliveryAccepted) -> dict[PartitionId, TransactionId]:
    """Return the last ids that a target has applied, by partition. Raises `ProtocolError`."""
    if len(message.applied) % _APPLIED.size:
        raise ProtocolError("the ids that a target has applied are cut short")
    rows: Iterable[tuple[int, int]] = _APPLIED.iter_unpack(message.applied)
    applied: dict[PartitionId, TransactionId] = {}
    for partition, last in rows:
        if partition < 0 or last < NO_TRANSACTION or partition in applied:
            raise ProtocolError(f"a target has applied {last} of partition {partition}, which can't be")
        applied[partition] = last
    return applied
