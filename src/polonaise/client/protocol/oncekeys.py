"""What the log keeps of something that was done once, under a key: a transaction of the library's own behind it."""

from __future__ import annotations

import json
import struct
from hashlib import blake2b
from typing import Any, Final, NamedTuple
from uuid import UUID

from polonaise.client.protocol.arguments import encoded, wrong
from polonaise.errors import BadOption, DataDamaged
from polonaise.terms import PartitionId, Transaction, TransactionId

LOCK: Final = "polonaise/once"
"""The name of the lock, of which the key is the id."""
KEY_BYTES_MAX: Final = 1_024
VALUE_BYTES_MAX: Final = 64 * 1024

_HEAD: Final = struct.Struct("<HHI")


class Once(NamedTuple):
    """Something that was done under a key, now or before: `log.once` returns it."""

    partition: PartitionId
    id: TransactionId
    """The id of its (first) transaction."""
    appended: int
    """How many transactions it was."""
    value: Any
    """What the context returned the first time, as JSON reads it."""
    repeated: bool
    """Whether it had been done before, and nothing ran or was appended this time."""


class OnceRecord(NamedTuple):
    """What is kept."""

    key: str
    request: str
    """A digest of what was asked for; empty if nobody said."""
    appended: int
    value: str
    """JSON, in ASCII: a view's database of any encoding has to hold it."""

    def pack(self) -> bytes:
        """The body of the transaction that keeps it."""
        key, request = self.key.encode(), self.request.encode()
        return _HEAD.pack(len(key), len(request), self.appended) + key + request + self.value.encode()

    @classmethod
    def parse(cls, tx: Transaction) -> OnceRecord:
        """Raises `DataDamaged` for a body that is none."""
        try:
            key_bytes, request_bytes, appended = _HEAD.unpack_from(tx.data)
            value = _HEAD.size + key_bytes + request_bytes
            key, request = tx.data[_HEAD.size : value - request_bytes], tx.data[value - request_bytes : value]
            return cls(key.decode(), request.decode(), appended, tx.data[value:].decode())
        except (struct.error, UnicodeDecodeError) as error:
            raise DataDamaged(f"transaction {tx.id} of partition {tx.partition} keeps no key: {error}") from error


def checked_once_key(key: Any) -> str:
    """A key as text. Raises `BadOption` for what is none."""
    text = str(key) if isinstance(key, UUID) else key
    if not isinstance(text, str) or not text:
        raise wrong("key", key, "a key is a text that is not empty, or a UUID: what the request calls itself")
    size = len(encoded("key", text))
    if size > KEY_BYTES_MAX:
        raise BadOption(f"a key of {size} bytes; the limit is {KEY_BYTES_MAX}")
    return text


def digest_of_request(request: Any) -> str:
    """Tells one request from another; empty for none."""
    if request is None:
        return ""
    if not isinstance(request, bytes | str):
        raise wrong("request", request, "bytes or text of what was asked for, such as the body of the request")
    raw = encoded("request", request) if isinstance(request, str) else request
    return blake2b(raw, digest_size=16).hexdigest()


def encoded_value(value: Any) -> str:
    """What a context returned, as it is kept. Raises `BadOption`."""
    try:
        text = json.dumps(value, allow_nan=False)  # NaN and infinities are Python's own: no other reader takes them
    except (TypeError, ValueError, RecursionError) as error:
        raise BadOption(f"what a context of `once` returns is kept as JSON, and this is none: {error}") from error
    if len(text) > VALUE_BYTES_MAX:
        raise BadOption(f"a context of `once` returned {len(text)} bytes of JSON; the limit is {VALUE_BYTES_MAX}")
    return text
