"""Append frames: what a client put in comes out column by column, and no bytes make an owner do worse than refuse."""

from __future__ import annotations

import struct
from dataclasses import replace
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polonaise.errors import ProtocolError
from polonaise.terms import ChangeKind, ExpectationKind, FailureReason, LockMode
from polonaise.wire import codec
from polonaise.wire.appends import (
    CHANGE,
    GROUPS,
    LOCKS,
    OPERATIONS,
    OPERATIONS_MAX,
    AppendColumns,
    FailedAppend,
    ReceivedAppends,
    decode_failures,
    encode_failures,
)
from polonaise.wire.codec import Frames
from polonaise.wire.messages import Append
from rigs.order import Tx, append_of

int64 = st.integers(-(2**63), 2**63 - 1)
KINDS = [*ExpectationKind, *(CHANGE + kind for kind in ChangeKind)]


asked = st.builds(
    Tx,
    st.binary(max_size=20),
    int64,
    st.integers(-(2**31), 2**31 - 1),
    st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2)), max_size=4),
    st.lists(st.tuples(st.sampled_from(KINDS), st.binary(max_size=9), st.binary(max_size=9)), max_size=2),
    st.booleans(),
)
frames_asked = st.lists(asked, min_size=1, max_size=6)


def message_of(transactions: list[Tx]) -> Append:
    return append_of(*(replace(tx, sequence=3 * position) for position, tx in enumerate(transactions)))


def over_the_wire(message: Append) -> Append:
    (cut,) = Frames(codec.FRAME_BYTES_MAX).feed(b"".join(message.frame()))
    decoded = codec.decode(cut)
    assert isinstance(decoded, Append)
    return decoded


def as_columns(columns: bytes, count: int, flags: int = 0, data: bytes = b"") -> ReceivedAppends:
    return ReceivedAppends(Append(1, count, flags, columns, payload=[data] if data else []))


@pytest.mark.slow
@given(transactions=frames_asked)
def test_what_a_client_asks_for_is_what_the_owner_reads(transactions: list[Tx]) -> None:
    appends = ReceivedAppends(over_the_wire(message_of(transactions)))
    count = len(transactions)
    assert appends.count == count
    assert appends.sequences.tolist() == [3 * position for position in range(count)]
    assert appends.client_high_water_marks.tolist() == [tx.mark for tx in transactions]
    assert appends.headers.tolist() == [tx.header for tx in transactions]
    ends = appends.data_ends.tolist()
    bodies = [bytes(appends.data[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    assert bodies == [tx.data for tx in transactions]
    assert appends.data_crcs.tolist() == [crc32(body) for body in bodies]
    if any(tx.locks for tx in transactions):
        assert appends.locks is not None
        locks = list(zip(appends.locks.hashes.tolist(), bytes(appends.locks.modes), strict=True))
        assert locks == [lock for tx in transactions for lock in tx.locks]
    else:
        assert appends.locks is None
    if appends.group_ends is None:
        assert all(tx.ends_group for tx in transactions[:-1])
    else:
        assert bytes(appends.group_ends) == bytes([*(tx.ends_group for tx in transactions[:-1]), 1])
    assert [(o.position, o.kind, o.key, o.value) for o in appends.operations] == [
        (position, *operation) for position, tx in enumerate(transactions) for operation in tx.operations
    ]


@pytest.mark.slow
@given(transactions=frames_asked, data=st.data())
def test_a_damaged_append_is_read_or_refused(transactions: list[Tx], data: st.DataObject) -> None:
    message = over_the_wire(message_of(transactions))
    raw, bodies = bytearray(message.columns), b"".join(message.payload)
    for position, value in data.draw(
        st.lists(st.tuples(st.integers(0, len(raw) - 1), st.integers(0, 255)), max_size=4)
    ):
        raw[position] = value
    count = data.draw(st.one_of(st.just(message.count), st.integers(0, 2**32 - 1)))
    flags = data.draw(st.one_of(st.just(message.flags), st.integers(0, 255)))
    stop = data.draw(st.one_of(st.just(len(raw)), st.integers(0, len(raw))))
    try:
        appends = as_columns(bytes(raw[:stop]), count, flags, bodies)
    except ProtocolError:
        return
    ends = appends.data_ends.tolist()
    assert ends == sorted(ends)
    assert ends[-1] == len(appends.data)
    assert all(operation.position < count for operation in appends.operations)


@settings(max_examples=200)
@given(raw=st.binary(max_size=150), count=st.integers(0, 5), flags=st.integers(0, 7), data=st.binary(max_size=9))
def test_noise_as_an_append_is_refused_or_read(raw: bytes, count: int, flags: int, data: bytes) -> None:
    try:
        appends = as_columns(raw, count, flags, data)
    except ProtocolError:
        return
    assert (appends.count, appends.data) == (count, data)


def columns_of(count: int, *, sequences: list[int] | None = None, ends: list[int] | None = None) -> bytes:
    narrow = bytes(-4 * count & 7)
    return (
        struct.pack(f"<{count}q", *(sequences or range(count)))
        + bytes(8 * count)
        + (bytes(4 * count) + narrow) * 2
        + struct.pack(f"<{count}I", *(ends or [0] * count))
        + narrow
    )


@pytest.mark.parametrize(
    ("columns", "count", "flags", "what"),
    [
        pytest.param(b"", 0, 0, "without transactions", id="count 0"),
        pytest.param(columns_of(2), 2**32 - 1, 0, "shorter", id="count 2^32-1"),
        pytest.param(columns_of(2), 10**9, LOCKS | GROUPS | OPERATIONS, "shorter", id="count 10^9"),
        pytest.param(columns_of(2), 3, 0, "shorter", id="one more than there are"),
        pytest.param(columns_of(2), 2, 8, "flags", id="unknown flag"),
        pytest.param(columns_of(2, sequences=[4, 4], ends=[1, 2]), 2, 0, "rise", id="sequences that stand still"),
        pytest.param(columns_of(2, ends=[3, 2]), 2, 0, "ends of data", id="ends that fall"),
        pytest.param(columns_of(2, ends=[1, 9]), 2, 0, "ends of data", id="data cut short"),
        pytest.param(columns_of(2, ends=[0, 1]), 2, 0, "ends of data", id="data left over"),
        pytest.param(columns_of(2, ends=[1, 2]) + bytes(8), 2, 0, "longer", id="columns left over"),
        pytest.param(
            columns_of(1) + struct.pack("<II", 2**32 - 1, 0), 1, LOCKS, "shorter", id="four billion locks"
        ),
        pytest.param(
            columns_of(1) + struct.pack("<IIQB", 1, 0, 5, 3) + bytes(7), 1, LOCKS, "lock mode", id="unknown lock mode"
        ),
        pytest.param(columns_of(2) + b"\1\0" + bytes(6), 2, GROUPS, "within a group", id="group without an end"),
        pytest.param(columns_of(2) + b"\2\1" + bytes(6), 2, GROUPS, "other than 0 and 1", id="odd end of a group"),
        pytest.param(
            columns_of(1) + struct.pack("<I", 2**32 - 1), 1, OPERATIONS, "shorter", id="4 GiB of operations"
        ),
        pytest.param(
            columns_of(1) + struct.pack("<IIBHI", 11, 0, 0, 2**16 - 1, 2**32 - 1) + b"\0",
            1, OPERATIONS, "invalid operations", id="operation longer than its section",
        ),
        pytest.param(
            columns_of(1) + struct.pack("<IIBHI", 11, 1, 0, 0, 0) + b"\0",
            1, OPERATIONS, "invalid operations", id="operation of no transaction",
        ),
        pytest.param(
            columns_of(1) + struct.pack("<IIBHI", 11, 0, 7, 0, 0) + b"\0",
            1, OPERATIONS, "invalid operations", id="unknown operation",
        ),
        pytest.param(
            columns_of(1) + struct.pack("<IIBH", 7, 0, 0, 0) + bytes(5),
            1, OPERATIONS, "cut short", id="operation cut short",
        ),
    ],
)  # fmt: skip
def test_invalid_appends_are_refused(columns: bytes, count: int, flags: int, what: str) -> None:
    with pytest.raises(ProtocolError, match=what):
        as_columns(columns, count, flags, b"ab")


@pytest.mark.slow
def test_a_frame_of_countless_tiny_operations_is_refused_before_they_fill_the_memory() -> None:
    rows = struct.pack("<IBHI", 0, 2, 0, 0) * (OPERATIONS_MAX + 1)
    with pytest.raises(ProtocolError, match="more than"):
        as_columns(columns_of(1) + len(rows).to_bytes(4, "little") + rows + bytes(-(4 + len(rows)) & 7), 1, OPERATIONS)


def test_a_frame_knows_what_it_keeps_in_memory() -> None:
    columns = AppendColumns()
    columns.add(0, -1, 0, b"body", 0, [(5, 1)] * 1000, operations=[(CHANGE, b"k", bytes(60_000))])
    message = over_the_wire(columns.message(1))
    assert ReceivedAppends(message).size == len(message.columns) + 4 > 69_000


failures = st.builds(FailedAppend, int64, int64, st.sampled_from(FailureReason))


@given(told=st.lists(failures, max_size=20))
def test_failures_arrive_as_they_were_told(told: list[FailedAppend]) -> None:
    assert decode_failures(encode_failures(told)) == told


@given(raw=st.binary(max_size=60))
def test_noise_as_failures_is_refused_or_read(raw: bytes) -> None:
    try:
        assert encode_failures(decode_failures(raw)) == raw
    except ProtocolError:
        pass


def test_a_failure_for_an_unknown_reason_is_refused() -> None:
    with pytest.raises(ProtocolError):
        decode_failures(struct.pack("<qqB", 1, 1, 200))


def test_a_frame_without_some_of_its_appends_has_the_others_unchanged() -> None:
    columns = AppendColumns()
    columns.add(1, 5, 0, b"one", 11, [(7, LockMode.WRITE)])
    columns.add(2, 5, 1, b"two", 12, ends_group=False, operations=[(ExpectationKind.ABSENT, b"k", b"")])
    columns.add(3, 6, 2, b"three", 13, [(8, LockMode.READ), (9, LockMode.WRITE)], operations=[(CHANGE, b"k", b"v")])
    columns.add(4, 6, 3, b"", 14, operations=[(CHANGE, b"l", b"w")])
    columns.data = [b"".join(bytes(part) for part in columns.data)]
    frame = ReceivedAppends(columns.message(1))
    left = frame.without({1})
    assert left is not None
    assert left.sequences.tolist() == [2, 3, 4]
    assert left.client_high_water_marks.tolist() == [5, 6, 6]
    assert [bytes(left.body(position)) for position in range(3)] == [b"two", b"three", b""]
    assert left.data_crcs.tolist() == [12, 13, 14]
    assert left.group_ends is not None
    assert bytes(left.group_ends) == b"\0\1\1"
    assert left.locks is not None
    assert left.locks.hashes[left.locks.of(1)].tolist() == [8, 9]
    assert [(o.position, o.kind, o.key) for o in left.operations] == [
        (0, ExpectationKind.ABSENT, b"k"), (1, CHANGE, b"k"), (2, CHANGE, b"l"),
    ]  # fmt: skip
    assert frame.without({1, 2, 3, 4}) is None
