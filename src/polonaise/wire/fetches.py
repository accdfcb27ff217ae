"""The columns of a `Fetch` and of the `Bodies` that answer it.

Little-endian. A fetch: id i64 of each. Bodies: length u32 of each · crc32 u32 of each (each column padded to 8 bytes)
· the bytes, in the order of the ids.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from polonaise.errors import ProtocolError
from polonaise.wire.messages import Bodies, Fetch

FETCH_MAX: Final = 4_096
"""The most bodies that one request may ask for. Clients divide what they want, and servers refuse more."""


def encode_fetch(ids: Sequence[int]) -> Fetch:
    return Fetch(struct.pack(f"<{len(ids)}q", *ids))


def parse_fetch(request: Fetch) -> tuple[int, ...]:
    """Return the ids that a request asks for; raises `ProtocolError`."""
    if len(request.ids) % 8:
        raise ProtocolError("invalid fetch: its ids do not take 8 bytes each")
    return struct.unpack(f"<{len(request.ids) // 8}q", request.ids)


def encode_bodies(bodies: Sequence[bytes], crcs: Sequence[int]) -> Bodies:
    """Encode the answer to a `Fetch`. `crcs` are those of the appends: damage since then can be found."""
    columns = (_column([len(body) for body in bodies]), _column(crcs))
    return Bodies(len(bodies), payload=[*columns, *bodies])


def parse_bodies(answer: Bodies, expected: int) -> list[bytes]:
    """Return the bodies in an answer, in the order asked for. Raises `ProtocolError` unless it holds just those.

    Its CRCs are not looked at: the caller knows the right ones from the columns that it was fed.
    """
    payload = memoryview(answer.payload[0] if answer.payload else b"")
    columns = 2 * len(_column(range(expected)))
    if answer.count != expected or len(payload) < columns:
        raise ProtocolError(f"asked for {expected} bodies and got {answer.count} in {len(payload)} bytes")
    lengths = struct.unpack_from(f"<{expected}I", payload)
    if columns + sum(lengths) != len(payload):
        raise ProtocolError(
            f"an answer to a fetch has {len(payload) - columns} bytes of bodies; its lengths add up to {sum(lengths)}"
        )
    bodies, start = [], columns
    for length in lengths:
        bodies.append(bytes(payload[start : start + length]))
        start += length
    return bodies


def _column(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}I", *values) + bytes(-4 * len(values) & 7)
