"""Packs appends into frames: the columns of the appends that wait to be sent, cut where a frame is full."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, groupby
from operator import attrgetter
from typing import Final, TypeAlias

from polonaise.checksum import crc32
from polonaise.client.protocol.draft import bytes_of
from polonaise.client.protocol.locks import lock_columns
from polonaise.client.protocol.outstanding import Pending
from polonaise.terms import TransactionId
from polonaise.wire.appends import AppendColumns, Operation

Operations: TypeAlias = Sequence[tuple[int, bytes, bytes]]
"""The expectations and changes of one transaction, each as (kind, key, value)."""

Outgoing: TypeAlias = tuple[Pending, int, TransactionId, int, bytes, bytes, Operations, bool]
"""One transaction to send: append, sequence, client high-water mark, header, data, locks, operations, whether a group
ends here. A plain tuple, because there is one for each transaction."""

_OPERATION_BYTES: Final = 32
"""The bytes that an operation counts as, besides key and value, because servers bound their number in a frame."""


def frames(waiting: Sequence[Outgoing], count_max: int, bytes_max: int) -> Iterator[AppendColumns]:
    """Cut appends into frames of at most `count_max` transactions and `bytes_max` bytes of bodies, locks, operations. A
    group is never cut: a larger one, or a larger append, gets a frame of its own. Failed appends are left out."""
    live = [out for out in waiting if out[0].failure is None]
    start = 0
    for stop in _cuts(live, count_max, bytes_max):
        yield _columns(live[start:stop])
        start = stop


def _cuts(live: Sequence[Outgoing], count_max: int, bytes_max: int) -> Iterator[int]:
    """Yield the positions in `live` before which a frame ends."""
    if not live:
        return
    ends = list(
        accumulate(
            len(body) + len(locks) + (_bytes_on_the_wire(operations) if operations else 0)
            for _, _, _, _, body, locks, operations, _ in live
        )
    )
    if len(live) <= count_max and ends[-1] <= bytes_max:
        yield len(live)
        return
    start = group_start = 0
    for position, out in enumerate(live):
        if not out[7]:  # a group goes on here, and is never cut
            continue
        before = ends[start - 1] if start else 0
        too_much = position + 1 - start > count_max or ends[position] - before > bytes_max
        # Else the group fills the frame alone, and is too much for any.
        if too_much and group_start > start:
            yield group_start
            start = group_start
        group_start = position + 1
    yield len(live)


def _bytes_on_the_wire(operations: Operations) -> int:
    return _OPERATION_BYTES * len(operations) + bytes_of(operations)


def _columns(chunk: Sequence[Outgoing]) -> AppendColumns:
    """Return the columns of one frame, empty for locks and operations where there are none."""
    _, sequences, marks, headers, bodies, locks, operations, group_ends = zip(*chunk, strict=True)
    columns = AppendColumns()
    columns.sequences = array("q", sequences)
    columns.client_high_water_marks = array("q", marks)
    columns.headers = array("i", headers)
    columns.data_crcs = array("I", map(crc32, bodies))
    columns.data_ends = array("I", accumulate(map(len, bodies)))
    columns.data_bytes = columns.data_ends[-1]
    columns.data = [b"".join(bodies)]
    columns.group_ends = bytearray(group_ends)
    if any(locks):
        ends, hashes, columns.lock_modes = lock_columns(locks)
        columns.lock_ends, columns.lock_hashes = array("I", ends), array("Q", hashes)
    if any(operations):
        columns.operations = [
            Operation(position, kind, key, value)
            for position, of_append in enumerate(operations)
            for kind, key, value in of_append
        ]
    return columns


def still_pending(columns: AppendColumns, is_pending: Callable[[int], bool]) -> AppendColumns | None:
    """Return the columns of a frame without the appends that are settled; None if all are. A group is settled as a
    whole, so none is cut."""
    sequences = columns.sequences.tolist()
    kept = [position for position, sequence in enumerate(sequences) if is_pending(sequence)]
    if len(kept) == len(sequences):
        return columns
    if not kept:
        return None
    data = memoryview(b"".join(columns.data))
    left = AppendColumns()
    # Walked once, beside the appends: searched through for each of them, a full frame would take seconds.
    operations = {position: list(of_one) for position, of_one in groupby(columns.operations, attrgetter("position"))}
    for position in kept:
        locks = _span(columns.lock_ends, position) if columns.lock_ends else slice(0)
        left.add(
            sequences[position],
            columns.client_high_water_marks[position],
            columns.headers[position],
            data[_span(columns.data_ends, position)],
            columns.data_crcs[position],
            list(zip(columns.lock_hashes[locks], columns.lock_modes[locks], strict=True)),
            ends_group=bool(columns.group_ends[position]),
            operations=[(o.kind, o.key, o.value) for o in operations.get(position, ())],
        )
    return left


def _span(ends: Sequence[int], position: int) -> slice:
    return slice(ends[position - 1] if position else 0, ends[position])
