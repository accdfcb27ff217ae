"""Batches: what goes in comes out, and damage is always seen."""

from __future__ import annotations

import struct
from typing import NamedTuple
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polonaise.errors import BatchDamaged, DataDamaged
from polonaise.log import registers
from polonaise.log.batch import HEADER_BYTES, Batch, Columns, padded, seal, split

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
ids = st.integers(0, 2**62)


class Given(NamedTuple):
    """One transaction that goes into a batch."""

    client_id: int
    generation: int
    sequence: int
    header: int
    data: bytes
    mark: int
    locks: list[tuple[int, int]]


given_transactions = st.lists(
    st.builds(
        Given,
        int32,
        int32,
        int64,
        int32,
        st.binary(max_size=24),
        int64,
        st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2)), max_size=3),
    ),
    min_size=1,
    max_size=6,
)


def columns_of(transactions: list[Given]) -> Columns:
    columns = Columns()
    for tx in transactions:
        columns.add(
            tx.client_id,
            tx.generation,
            tx.sequence,
            tx.header,
            tx.data,
            client_high_water_mark=tx.mark,
            locks=tx.locks,
        )
    return columns


def sealed(
    bodies: list[bytes], *, first: int = 100, registers_section: bytes = b"", evidence: bool = False, previous: int = 0
) -> bytes:
    """A batch of these bodies from client 7."""
    columns = Columns()
    for position, body in enumerate(bodies):
        columns.add(7, 3, 10 + position, position, body, client_high_water_mark=99, locks=[(position, 1)])
    return seal(
        columns,
        partition=2,
        first=first,
        session=5,
        generation=3,
        commit_time_us=1_000,
        previous_crc=previous,
        registers=registers_section,
        evidence=evidence,
    )


PLAIN = sealed([b"one", b"", b"three"])
EMPTY = sealed([b""])
WITH_REGISTERS = sealed([b""], registers_section=registers.encode([(b"key", b"value"), (b"gone", None)]))
WITH_EVIDENCE = sealed([b"", b"x"], evidence=True)
BATCHES = [PLAIN, EMPTY, WITH_REGISTERS, WITH_EVIDENCE, Batch.parse(PLAIN).without_data()]
NAMES = ["plain", "without bytes", "with registers", "with evidence", "reduced"]


@pytest.mark.slow
@given(
    transactions=given_transactions,
    first=ids,
    session=int64,
    time_us=int64,
    partition=st.integers(0, 2**31 - 1),
    previous=st.integers(0, 2**32 - 1),
    section=st.binary(max_size=20),
    evidence=st.booleans(),
)
def test_what_was_sealed_is_what_is_read(
    transactions: list[Given],
    first: int,
    session: int,
    time_us: int,
    partition: int,
    previous: int,
    section: bytes,
    evidence: bool,
) -> None:
    raw = seal(
        columns_of(transactions),
        partition=partition,
        first=first,
        session=session,
        generation=9,
        commit_time_us=time_us,
        previous_crc=previous,
        registers=section,
        evidence=evidence,
    )
    batch = Batch.parse(raw)
    assert (batch.partition, batch.first, batch.session, batch.generation) == (partition, first, session, 9)
    assert (batch.commit_time_us, batch.previous_crc, batch.count) == (time_us, previous, len(transactions))
    assert batch.length == len(raw) == padded(len(raw))
    assert batch.last == first + len(transactions) - 1
    assert bytes(batch.registers) == section
    assert batch.has_data
    assert [
        (t.client_id, t.generation, t.sequence, t.header, t.data, t.id, t.partition, t.commit_time_us)
        for t in batch.transactions(own=True)
    ] == [
        (g.client_id, g.generation, g.sequence, g.header, g.data, first + position, partition, time_us)
        for position, g in enumerate(transactions)
    ]
    kept = batch.evidence()
    if evidence:
        assert kept is not None
        assert kept.client_high_water_marks.tolist() == [g.mark for g in transactions]
        assert [kept.locks(position) for position in range(batch.count)] == [g.locks for g in transactions]
    else:
        assert kept is None


@pytest.mark.parametrize(("after", "expected"), [(-1, 3), (99, 3), (100, 2), (101, 1), (102, 0), (103, 0), (10**9, 0)])
def test_transactions_are_told_from_a_mark_on(after: int, expected: int) -> None:
    told = list(Batch.parse(PLAIN).transactions(after))
    assert [tx.id for tx in told] == [100, 101, 102][3 - expected :]
    assert [tx.data for tx in told] == [b"one", b"", b"three"][3 - expected :]


# ------------------------------------------------------------------ damage


@pytest.mark.parametrize("raw", BATCHES, ids=NAMES)
def test_every_flipped_bit_is_seen(raw: bytes) -> None:
    damaged = bytearray(raw)
    for position in range(len(raw)):
        for bit in range(8):
            damaged[position] ^= 1 << bit
            with pytest.raises(BatchDamaged):
                Batch.parse(damaged)
            damaged[position] ^= 1 << bit


@pytest.mark.parametrize("raw", BATCHES, ids=NAMES)
def test_a_batch_cut_short_is_seen_at_every_length(raw: bytes) -> None:
    for length in range(len(raw)):
        with pytest.raises(BatchDamaged):
            Batch.parse(raw[:length])


@given(raw=st.binary(max_size=300))
def test_noise_is_no_batch(raw: bytes) -> None:
    with pytest.raises(BatchDamaged):
        Batch.parse(raw)


def read_everything(batch: Batch) -> None:
    """All that a reader of an unchecked batch may ask of it."""
    for column in (batch.client_ids, batch.generations, batch.sequences, batch.headers, batch.data_crcs):
        assert len(column) == batch.count
    _ = bytes(batch.registers), batch.last
    evidence = batch.evidence()
    if evidence is not None:
        _ = [evidence.locks(position) for position in range(batch.count)]
    for transaction in range(batch.first, batch.last + 1):
        try:
            batch.body(transaction)
        except DataDamaged:
            pass
    try:
        list(batch.transactions())
    except DataDamaged:
        pass
    batch.without_data()


@pytest.mark.slow
@settings(max_examples=300)
@given(which=st.sampled_from(BATCHES), changes=st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=6))
def test_even_unchecked_a_damaged_batch_harms_nobody(which: bytes, changes: list[tuple[int, int]]) -> None:
    raw = bytearray(which)
    for position, value in changes:
        raw[position % len(raw)] = value
    try:
        batch = Batch.parse(bytes(raw), verify=False)
    except BatchDamaged:
        return
    read_everything(batch)


def with_header(raw: bytes, offset: int, form: str, value: int) -> bytes:
    """The batch with one field changed and its checksum made right again: what a broken writer would send."""
    changed = bytearray(raw)
    struct.pack_into(form, changed, offset, value)
    struct.pack_into("<I", changed, 4, crc32(memoryview(changed)[8:]))
    return bytes(changed)


@pytest.mark.parametrize(
    ("offset", "form", "value"),
    [
        pytest.param(8, "<I", 0, id="length 0"),
        pytest.param(8, "<I", HEADER_BYTES - 1, id="shorter than its header"),
        pytest.param(8, "<I", 2**32 - 1, id="length 2^32-1"),
        pytest.param(12, "<H", 2, id="future version"),
        pytest.param(14, "<H", 8, id="unknown flag"),
        pytest.param(20, "<I", 0, id="no transactions"),
        pytest.param(20, "<I", 2**32 - 1, id="count 2^32-1"),
        pytest.param(24, "<q", -1, id="first id -1"),
        pytest.param(24, "<q", 2**63 - 2, id="last id beyond 2^63"),
        pytest.param(52, "<I", 2**32 - 1, id="4 GiB of data"),
        pytest.param(52, "<I", 1, id="less data than there is"),
        pytest.param(56, "<I", 2**32 - 1, id="4 GiB of registers"),
        pytest.param(14, "<H", 2, id="evidence that is not there"),
    ],
)
def test_a_batch_that_cannot_be_is_refused_even_with_a_right_checksum(offset: int, form: str, value: int) -> None:
    with pytest.raises(BatchDamaged):
        Batch.parse(with_header(PLAIN, offset, form, value))


def test_a_body_that_does_not_fit_its_own_checksum_is_never_told() -> None:
    columns = Columns()
    columns.add(1, 1, 1, 0, b"good")
    columns.add(1, 1, 2, 0, b"evil", data_crc=crc32(b"other"))
    raw = seal(columns, partition=0, first=0, session=1, generation=1, commit_time_us=0, previous_crc=0)
    batch = Batch.parse(raw)
    assert batch.body(0) == b"good"
    with pytest.raises(DataDamaged):
        batch.body(1)
    told = batch.transactions()
    assert next(told).data == b"good"
    with pytest.raises(DataDamaged):
        next(told)


# ------------------------------------------------------------------ reduced, and several


@pytest.mark.slow
@given(transactions=given_transactions, evidence=st.booleans())
def test_a_reduced_batch_has_all_columns_and_no_bodies(transactions: list[Given], evidence: bool) -> None:
    whole = Batch.parse(
        seal(
            columns_of(transactions),
            partition=1,
            first=50,
            session=2,
            generation=3,
            commit_time_us=4,
            previous_crc=5,
            registers=b"section!",
            evidence=evidence,
        )
    )
    raw = whole.without_data()
    assert len(raw) < whole.length
    bare = Batch.parse(raw)
    assert not bare.has_data
    assert bare.evidence() is None
    assert (bare.first, bare.last, bare.session, bare.previous_crc) == (50, whole.last, 2, 5)
    assert bare.crc == whole.crc  # the chain can be followed through reduced batches too
    for name in ("client_ids", "generations", "sequences", "headers", "data_crcs", "data_ends"):
        assert getattr(bare, name).tolist() == getattr(whole, name).tolist()
    assert bytes(Batch.parse(bare.without_data()).view) == raw


def test_batches_lie_one_after_the_other() -> None:
    first = sealed([b"a", b"b"], first=0)
    second = sealed([b"c"], first=2, previous=Batch.parse(first).crc)
    batches = split(first + second)
    assert [(batch.first, batch.last) for batch in batches] == [(0, 1), (2, 2)]
    assert batches[1].previous_crc == batches[0].crc
    assert split(b"") == []


@pytest.mark.parametrize("rest", [b"\0", PLAIN[:40], PLAIN[:-8]], ids=["a byte", "half a header", "most of a batch"])
def test_what_follows_a_batch_and_is_none_is_refused(rest: bytes) -> None:
    with pytest.raises(BatchDamaged):
        split(PLAIN + rest)
