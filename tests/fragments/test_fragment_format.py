"""A fragment gives back the very batches that went in, and whatever was done to it is refused."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.errors import BatchDamaged, FragmentDamaged, UnsupportedFormat, WrongClusterKey
from polonaise.fragments import format as fragments
from polonaise.fragments.arrow import SCHEMA
from polonaise.fragments.format import (
    Footer,
    FragmentWriter,
    batches_in,
    open_fragment,
    opened_by,
)
from rigs.fragments import KEY, PLAN, batches_of, fragment_of, made, rewritten, with_column


@given(st.lists(made, min_size=1, max_size=5), st.integers(0, 2**40), st.integers(0, 2**32 - 1))
def test_the_batches_come_out_byte_for_byte(plans: list[Any], first: int, crc: int) -> None:
    batches = batches_of(plans, first, crc)
    footer, raw = fragment_of(batches)
    assert footer == Footer(KEY, 7, first, batches[-1].last, crc, batches[-1].crc, len(batches))
    assert list(batches_in(raw, KEY)) == [bytes(batch.view) for batch in batches]


def test_row_groups_end_with_whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragments, "GROUP_ROWS", 3)
    batches = batches_of(PLAN * 4)
    _, raw = fragment_of(batches)
    _, file = open_fragment(raw)
    assert [file.metadata.row_group(n).num_rows for n in range(file.metadata.num_row_groups)] == [4] * 6
    assert list(batches_in(raw)) == [bytes(batch.view) for batch in batches]


def test_any_reader_of_parquet_sees_the_transactions(tmp_path: Any) -> None:
    batches = batches_of(PLAN)
    (tmp_path / "f.parquet").write_bytes(fragment_of(batches)[1])
    table = pq.read_table(tmp_path / "f.parquet")
    assert table.schema.remove_metadata() == SCHEMA
    expected = [tx for batch in batches for tx in batch.transactions()]
    assert table.column("transaction_id").to_pylist() == [tx.id for tx in expected]
    assert table.column("data").to_pylist() == [tx.data for tx in expected]
    assert table.column("header").to_pylist() == [tx.header for tx in expected]
    assert [int(at.timestamp() * 1e6) for at in table.column("timestamp").to_pylist()] == [1_000_000] * 6


def test_the_footer_can_be_read_from_the_end_alone() -> None:
    footer, raw = fragment_of(batches_of(PLAN))
    length = 8 + int.from_bytes(raw[-8:-4], "little")
    for end in (raw, raw[-length:]):
        opened = opened_by(end)
        assert opened is not None
        assert opened[0] == footer
    assert opened_by(raw[-length + 1 :]) is None
    assert opened_by(b"") is None
    with pytest.raises(FragmentDamaged):
        opened_by(raw[:-1])


def test_a_batch_that_does_not_follow_is_refused() -> None:
    first, second, third = batches_of(PLAN)
    writer = FragmentWriter(KEY)
    writer.add(first)
    with pytest.raises(BatchDamaged, match="does not follow"):
        writer.add(third)
    forked = batches_of(PLAN[:1], second.first, crc=1)[0]
    with pytest.raises(BatchDamaged, match="does not follow"):
        writer.add(forked)


def test_a_fragment_of_no_batches_cannot_be() -> None:
    with pytest.raises(BatchDamaged, match="a fragment holds one batch or more"):
        FragmentWriter(KEY).finish()


# ------------------------------------------------------------------ damage


@pytest.mark.parametrize(
    "change",
    [
        with_column("data", b"x"),
        with_column("header", 99),
        with_column("sequence", 99),
        with_column("session_id", 99),
        with_column("crc32", 99),
        with_column("locks", b""),
        with_column("client_high_water_mark", 99),
        with_column("batch_registers", b""),
        with_column("batch_crc32", 99),
        lambda table: table.slice(1),
        lambda table: table.slice(0, 4),
        lambda table: table.slice(0, 5),
        lambda table: table.drop_columns(["crc32"]),
    ],
)
def test_another_value_or_a_row_less_is_found(change: Any) -> None:
    _, raw = fragment_of(batches_of(PLAN))
    assert list(batches_in(rewritten(raw, lambda table: table)))
    with pytest.raises(FragmentDamaged):
        list(batches_in(rewritten(raw, change)))


@given(st.data())
def test_whatever_is_done_to_the_bytes_is_refused_or_harmless(data: Any) -> None:
    batches = batches_of(PLAN)
    _, raw = fragment_of(batches)
    place = data.draw(st.integers(0, len(raw) - 1))
    damaged = raw[:place] + data.draw(st.binary(max_size=9)) + raw[place + data.draw(st.integers(0, 9)) :]
    try:
        got = list(batches_in(damaged))
    except (FragmentDamaged, UnsupportedFormat):
        return
    assert got == [bytes(batch.view) for batch in batches]


@pytest.mark.parametrize("raw", [b"", b"PAR1", b"x" * 1000])
def test_what_is_no_parquet_is_no_fragment(raw: bytes) -> None:
    with pytest.raises(FragmentDamaged):
        open_fragment(raw)


def test_a_parquet_file_of_somebody_else_is_no_fragment(tmp_path: Any) -> None:
    import pyarrow as pa

    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(FragmentDamaged, match="no checksum of its own"):
        open_fragment(tmp_path / "other.parquet")


def test_a_fragment_of_another_version_is_refused() -> None:
    _, raw = fragment_of(batches_of(PLAN))
    with pytest.raises(UnsupportedFormat, match="2"):
        open_fragment(rewritten(raw, lambda table: table, {b"polonaise.format": b"2"}))


def test_a_fragment_of_another_cluster_is_refused() -> None:
    _, raw = fragment_of(batches_of(PLAN))
    with pytest.raises(WrongClusterKey):
        list(batches_in(raw, bytes(16)))
