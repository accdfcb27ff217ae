"""Keys of `log.once`: their checks, and the record of a key in the log, an own transaction behind what was appended."""

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
"""The name of the lock whose id is the key."""
KEY_BYTES_MAX: Final = 1_024
"""The most bytes of a key, in UTF-8."""
VALUE_BYTES_MAX: Final = 64 * 1024
"""The most bytes of what a context returned, as JSON."""

_HEAD: Final = struct.Struct("<HHI")


class Once(NamedTuple):
    """What was appended under a key, now or before; returned by `log.once`."""

    partition: PartitionId
    id: TransactionId
    """The id of the transaction, or of the first of several."""
    appended: int
    """The number of transactions, without the library's own record of the key."""
    value: Any
    """The value that the context returned in the run that was committed, after a round trip through JSON."""
    repeated: bool
    """Whether the key had been used before, so that nothing was appended this time."""


class OnceRecord(NamedTuple):
    """What the first use of a `log.once` key has done, kept in the log and by views so that a second use appends
    nothing."""

    key: str
    request: str
    """The digest of the request; empty if none was given."""
    appended: int
    value: str
    """The returned value as JSON, in ASCII, which a view's database of any encoding can hold."""

    def pack(self) -> bytes:
        key, request = self.key.encode(), self.request.encode()
        return _HEAD.pack(len(key), len(request), self.appended) + key + request + self.value.encode()

    @classmethod
    def parse(cls, tx: Transaction) -> OnceRecord:
        try:
            key_bytes, request_bytes, appended = _HEAD.unpack_from(tx.data)
            value = _HEAD.size + key_bytes + request_bytes
            key, request = tx.data[_HEAD.size : value - request_bytes], tx.data[value - request_bytes : value]
            return cls(key.decode(), request.decode(), appended, tx.data[value:].decode())
        except (struct.error, UnicodeDecodeError) as error:
            raise DataDamaged(
                f"transaction {tx.id} of partition {tx.partition} should record a `log.once` key, and is no readable "
                f"record ({error}): a view can't go on past it. If a newer version wrote it, run that version here"
            ) from error


def checked_once_key(key: Any) -> str:
    text = str(key) if isinstance(key, UUID) else key
    if not isinstance(text, str) or not text:
        raise wrong("key", key, "a key is a text that is not empty, or a UUID")
    size = len(encoded("key", text))
    if size > KEY_BYTES_MAX:
        raise BadOption(f"a key of {size} bytes for `log.once`; the limit is {KEY_BYTES_MAX}")
    return text


def digest_of_request(request: Any) -> str:
    """Return a digest that tells one request from another; empty for None. Raises `BadOption`."""
    if request is None:
        return ""
    if not isinstance(request, bytes | str):
        raise wrong("request", request, "bytes or text of what was asked for, such as the body of the request")
    raw = encoded("request", request) if isinstance(request, str) else request
    return blake2b(raw, digest_size=16).hexdigest()


def encoded_value(value: Any) -> str:
    """Return a context's value as JSON. Raises `BadOption` for one that JSON can't hold, or that is too large."""
    try:
        text = json.dumps(value, allow_nan=False)  # Python alone writes and reads NaN and infinities in JSON
    except (TypeError, ValueError, RecursionError) as error:
        raise BadOption(f"a context of `once` returns what JSON can hold: {error}") from error
    if len(text) > VALUE_BYTES_MAX:
        raise BadOption(f"a context of `once` returned {len(text)} bytes of JSON; the limit is {VALUE_BYTES_MAX}")
    return text
