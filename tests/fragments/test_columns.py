"""Fragments are Parquet: any reader reads them, the very batches come out, and rows go to Arrow as they are."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from polonaise.errors import (
    BadOption,
    BatchDamaged,
    FragmentDamaged,
    NotFound,
    StoreUnavailable,
    UnsupportedFormat,
    WrongClusterKey,
)
from polonaise.fragments import arrow
from polonaise.fragments import format as fragments
from polonaise.fragments.arrow import SCHEMA, columns_of
from polonaise.fragments.columns import columns_in
from polonaise.fragments.format import (
    Footer,
    FragmentWriter,
    batches_in,
    open_fragment,
    opened_by,
)
from polonaise.fragments.protocol.coverage import Span
from polonaise.fragments.ranges import Parts, Range, RangeFile
from polonaise.fragments.store import open_store
from polonaise.log.batch import Batch
from rigs.fragments import KEY, PLAN, batches_of, fragment_of, made, name_of, plain_batches, rewritten, with_column

COLUMNS = ["partition", "transaction_id", "timestamp", "header", "data"]
ALL = Span(0, 2**62)


def rows_of(batches: Sequence[Batch], span: Span = ALL) -> list[dict[str, Any]]:
    """The transactions as rows, made one by one."""
    return [
        {"partition": tx.partition, "transaction_id": tx.id, "header": tx.header, "data": tx.data}
        for batch in batches
        for tx in batch.transactions()
        if span.first <= tx.id <= span.last
    ]


def read(source: Any, about: Any, span: Span = ALL, columns: Sequence[str] = COLUMNS, **how: Any) -> pa.Table:
    return pa.Table.from_batches(columns_in(source, about, span, columns, **how), schema=arrow.schema_of(columns))


# ------------------------------------------------------------------ from batches


@pytest.mark.slow
@given(st.lists(made, min_size=1, max_size=5), st.integers(0, 2**40))
def test_a_fragment_holds_the_very_columns_of_its_batches(plans: list[Any], first: int) -> None:
    batches = batches_of(plans, first)
    whole = columns_of(batches, SCHEMA.names)
    assert whole.schema == SCHEMA
    whole.validate(full=True)
    plain = ["partition", "transaction_id", "header", "data"]
    assert columns_of(batches, plain).to_pylist() == rows_of(batches)
    footer, raw = fragment_of(batches)
    assert pa.Table.from_batches([whole]) == read(raw, footer, columns=SCHEMA.names)


@given(st.lists(made, min_size=1, max_size=4), st.lists(st.sampled_from(SCHEMA.names), min_size=1, unique=True))
@pytest.mark.slow
def test_only_the_columns_that_were_asked_for_are_made(plans: list[Any], names: list[str]) -> None:
    batches = batches_of(plans)
    assert columns_of(batches, names) == columns_of(batches, SCHEMA.names).select(names)
    footer, raw = fragment_of(batches)
    assert read(raw, footer, columns=names).schema == arrow.schema_of(names)
    assert read(raw, footer, columns=names) == read(raw, footer, columns=SCHEMA.names).select(names)


def test_batches_that_do_not_follow_each_other_keep_their_ids() -> None:
    batches = plain_batches([2, 3, 2])
    assert columns_of([batches[2], batches[0]], ["transaction_id"]).column(0).to_pylist() == [5, 6, 0, 1]


def test_no_batches_are_no_rows() -> None:
    assert columns_of([], COLUMNS).to_pylist() == []
    assert columns_of([], COLUMNS).schema.names == COLUMNS


def test_more_bodies_than_a_column_can_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "_BYTES_MAX", 10)
    with pytest.raises(BadOption, match="fewer batches"):
        columns_of(plain_batches([9]), ["data"])
    assert columns_of(plain_batches([9]), ["header"]).num_rows == 9


@pytest.mark.parametrize("columns", [[], ["data", "price"], ["data", "data"]])
def test_invalid_columns_are_refused(columns: list[str]) -> None:
    footer, raw = fragment_of(batches_of(PLAN))
    with pytest.raises(BadOption, match="transaction_id"):
        columns_in(raw, footer, ALL, columns)
    with pytest.raises(BadOption, match="transaction_id"):
        columns_of(batches_of(PLAN), columns)


def test_batches_of_no_rows_are_refused() -> None:
    footer, raw = fragment_of(batches_of(PLAN))
    with pytest.raises(BadOption, match="1 or more"):
        columns_in(raw, footer, ALL, COLUMNS, rows_max=0)


# ------------------------------------------------------------------ from fragments


@pytest.mark.slow
@settings(max_examples=60)
@given(st.integers(0, 60), st.integers(-1, 40), st.integers(1, 9))
@example(20, 100, 4)
def test_a_span_is_read_and_nothing_beside_it(first: int, more: int, rows_max: int) -> None:
    batches = plain_batches([5, 1, 7, 3, 9, 4], first=20)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fragments, "GROUP_ROWS", 6)
        footer, raw = fragment_of(batches)
    span = Span(first, first + more)
    got = list(columns_in(raw, footer, span, COLUMNS, rows_max=rows_max))
    assert all(0 < batch.num_rows <= rows_max for batch in got)
    assert [row for batch in got for row in batch.drop_columns(["timestamp"]).to_pylist()] == rows_of(batches, span)


def test_row_groups_beside_the_span_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragments, "GROUP_ROWS", 6)
    footer, raw = fragment_of(plain_batches([6, 6, 6]))
    columns = pq.ParquetFile(pa.BufferReader(raw)).metadata.row_group(0)
    damaged = bytearray(raw)
    for place in range(columns.num_columns):
        damaged[columns.column(place).data_page_offset + 30] ^= 0xFF
    assert read(bytes(damaged), footer, Span(6, 17)).num_rows == 12
    with pytest.raises(FragmentDamaged, match="row group 0"):
        read(bytes(damaged), footer, Span(5, 17))


def test_a_fragment_that_is_not_what_its_name_says_is_refused() -> None:
    footer, raw = fragment_of(plain_batches([6]))
    with pytest.raises(FragmentDamaged, match="should hold partition 7, 1 to 5"):
        read(raw, name_of(footer)._replace(first=1))
    with pytest.raises(WrongClusterKey):
        read(raw, footer, cluster_key=bytes(16))
    assert read(raw, name_of(footer), cluster_key=KEY).num_rows == 6


def test_ids_that_are_not_dense_are_refused() -> None:
    from rigs.fragments import rewritten, with_column

    footer, raw = fragment_of(plain_batches([6]))
    with pytest.raises(FragmentDamaged, match="ids"):
        read(rewritten(raw, with_column("transaction_id", 3)), footer)
    with pytest.raises(FragmentDamaged, match="the rows of row group 0"):
        read(rewritten(raw, with_column("partition", 3)), footer)
    with pytest.raises(FragmentDamaged, match="end with id 4, and the footer says 5"):
        read(rewritten(raw, lambda table: table.slice(0, 5)), footer)


@given(st.data())
@settings(max_examples=300)
@pytest.mark.slow
def test_a_flipped_byte_anywhere_is_refused_or_changes_nothing(data: Any) -> None:
    raw = bytearray(FRAGMENT)
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        got = read(bytes(raw), FOOTER)
    except FragmentDamaged:
        pass
    else:
        assert got == TABLE
    try:
        batches = list(batches_in(bytes(raw)))
    except FragmentDamaged:
        pass
    else:
        assert batches == [bytes(batch.view) for batch in BATCHES]


@pytest.mark.slow
def test_no_flipped_byte_at_any_place_is_believed() -> None:
    refused = 0
    for place in range(len(FRAGMENT)):
        for flip in (0x01, 0x10, 0x80, 0xFF):
            raw = bytearray(FRAGMENT)
            raw[place] ^= flip
            try:
                assert read(bytes(raw), FOOTER) == TABLE, (place, flip)
            except FragmentDamaged:
                refused += 1
            try:
                assert list(batches_in(bytes(raw))) == [bytes(batch.view) for batch in BATCHES], (place, flip)
            except FragmentDamaged:
                refused += 1
    assert refused > len(FRAGMENT)


BATCHES = [*plain_batches([5, 1, 7]), *batches_of(PLAN, first=13, crc=plain_batches([5, 1, 7])[-1].crc)]
FOOTER, FRAGMENT = fragment_of(BATCHES)
TABLE = read(FRAGMENT, FOOTER)


# ------------------------------------------------------------------ sources


class Fetches:
    """Fetches of an object, counted."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.asked: list[list[Range]] = []
        self.error: StoreUnavailable | None = None

    def __call__(self, ranges: Sequence[Range]) -> list[bytes]:
        self.asked.append(list(ranges))
        if self.error is not None:
            raise self.error
        return [self.raw[each.start : each.stop] for each in ranges]


@pytest.fixture
def grouped(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, bytes, list[Batch]]:
    """A fragment of several row groups, of more bytes than are fetched to learn its footer."""
    monkeypatch.setattr(fragments, "GROUP_ROWS", 100)
    bodies = random.Random(1)
    rows = [(1, 2, k, 0, bodies.randbytes(1_500), -1, []) for k in range(100)]
    batches = batches_of([(rows, 1, 1, 1, False, False)] * 5)
    return *fragment_of(batches), batches


def test_every_source_gives_the_same(grouped: tuple[Any, bytes, list[Batch]], tmp_path: Path) -> None:
    footer, raw, batches = grouped
    path = tmp_path / "fragment.parquet"
    path.write_bytes(raw)
    with RangeFile(Fetches(raw), len(raw)) as ranges:
        tables = [read(source, footer, Span(50, 420)) for source in (raw, str(path), path, ranges)]
    assert tables[0].drop_columns(["timestamp"]).to_pylist() == rows_of(batches, Span(50, 420))
    assert all(table == tables[0] for table in tables)
    with RangeFile(Fetches(raw), len(raw)) as ranges:
        assert list(batches_in(ranges)) == [bytes(batch.view) for batch in batches]


def test_a_row_groups_columns_are_one_fetch_and_those_of_no_other_are_fetched(
    grouped: tuple[Any, bytes, list[Batch]],
) -> None:
    footer, raw, _ = grouped
    fetches = Fetches(raw)
    with RangeFile(fetches, len(raw)) as ranges:
        assert read(ranges, footer, Span(100, 299)).num_rows == 200
    assert len(fetches.asked) == 3  # the footer, and two row groups of five
    assert sum(each.stop - each.start for asked in fetches.asked for each in asked) < len(raw) * 0.6


def test_a_footer_that_is_longer_than_what_is_fetched_at_first(
    grouped: tuple[Any, bytes, list[Batch]], monkeypatch: pytest.MonkeyPatch
) -> None:
    footer, raw, _ = grouped
    monkeypatch.setattr("polonaise.fragments.ranges.FOOTER_BYTES", 100)
    monkeypatch.setattr("polonaise.fragments.format.FOOTER_BYTES", 100)
    with RangeFile(Fetches(raw), len(raw)) as ranges:
        assert read(ranges, footer).num_rows == 500


def test_a_store_that_fails_is_not_a_damaged_fragment(grouped: tuple[Any, bytes, list[Batch]]) -> None:
    footer, raw, _ = grouped
    fetches = Fetches(raw)
    fetches.error = StoreUnavailable("gone")
    with RangeFile(fetches, len(raw)) as ranges, pytest.raises(StoreUnavailable, match="gone"):
        read(ranges, footer)
    fetches.error = None
    with RangeFile(fetches, len(raw)) as ranges:
        reading = columns_in(ranges, footer, ALL, COLUMNS)
        next(reading)
        fetches.error = StoreUnavailable("gone")
        with pytest.raises(StoreUnavailable, match="gone"):
            list(reading)


def test_fewer_bytes_than_asked_for_are_a_store_that_fails(grouped: tuple[Any, bytes, list[Batch]]) -> None:
    footer, raw, _ = grouped
    with (
        RangeFile(Fetches(raw[:-100]), len(raw), "'0/a' in s3://b") as ranges,
        pytest.raises(StoreUnavailable, match=r"the store returned .* bytes of '0/a' in s3://b: try again"),
    ):
        read(ranges, footer)


def test_a_file_of_parts_is_read_to_its_end_where_that_was_fetched() -> None:
    parts = Parts({0: b"0123", 6: b"6789"}, 10)
    assert (parts.read(2), parts.read(2)) == (b"01", b"23")
    assert (parts.seek(7), parts.read(-1), parts.read(-1), parts.read(5)) == (7, b"789", b"", b"")
    parts.seek(2)
    for size in (-1, 3):
        with pytest.raises(OSError, match="were not fetched"):
            parts.read(size)
    assert parts.read(2) == b"23"


async def test_a_store_gives_what_columns_are_read_from(tmp_path: Path) -> None:
    for url in (str(tmp_path), "memory:///"):
        store = open_store(url)
        await store.put_if_absent("0/fragment", FRAGMENT)
        source = store.source("0/fragment", len(FRAGMENT))
        assert read(source, FOOTER) == TABLE
        missing = store.source("0/other", len(FRAGMENT))
        with pytest.raises(NotFound, match="0/other"):
            read(missing, FOOTER)
        for each in (source, missing):
            if isinstance(each, RangeFile):
                each.close()


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a store with two fragments of a partition."""
    directory = tmp_path_factory.mktemp("store")
    first = [*plain_batches([50, 1, 70]), *batches_of(PLAN, 121, plain_batches([50, 1, 70])[-1].crc)]
    for batches in (first, plain_batches([30, 30], first=first[-1].last + 1)):
        footer, raw = fragment_of(batches)
        path = directory / name_of(footer).path
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(raw)
    return directory


@pytest.fixture(scope="module")
def rows(store: Path) -> list[dict[str, Any]]:
    """The transactions as our own reader gives them."""
    found: list[dict[str, Any]] = []
    for path in sorted(store.glob("7/*.parquet")):
        first, last = (int(part) for part in path.name.split("-")[:2])
        footer = pq.read_metadata(path).metadata
        assert int(footer[b"polonaise.first"]) == first
        name = name_of_path(path)
        for batch in columns_in(str(path), name, Span(first, last), COLUMNS):
            found += batch.to_pylist()
    assert [row["transaction_id"] for row in found] == list(range(len(found)))
    return found


def name_of_path(path: Path) -> Any:
    from polonaise.fragments.protocol.names import FragmentName

    name = FragmentName.parse(f"{path.parent.name}/{path.name}")
    assert name is not None
    return name


def test_pyarrow(store: Path, rows: list[dict[str, Any]]) -> None:
    tables = [pq.read_table(path, columns=COLUMNS) for path in sorted(store.glob("7/*.parquet"))]
    assert [row for table in tables for row in table.to_pylist()] == rows


def test_pandas(store: Path, rows: list[dict[str, Any]]) -> None:
    frames = [pandas.read_parquet(path, columns=COLUMNS) for path in sorted(store.glob("7/*.parquet"))]
    frame = pandas.concat(frames)
    assert frame.to_dict("records") == [{**row, "timestamp": pandas.Timestamp(row["timestamp"])} for row in rows]


def test_duckdb(store: Path, rows: list[dict[str, Any]]) -> None:
    columns = COLUMNS.copy()
    columns[2] = "epoch_us(timestamp)"  # as a value of Python's, DuckDB would want pytz
    found = duckdb.sql(f"SELECT {', '.join(columns)} FROM '{store}/7/*.parquet' ORDER BY transaction_id").fetchall()
    expected = [{**row, "timestamp": round(row["timestamp"].timestamp() * 1e6)} for row in rows]
    assert found == [tuple(row[name] for name in COLUMNS) for row in expected]
    counted = f"SELECT count(*) FROM '{store}/7/*.parquet' WHERE transaction_id BETWEEN 100 AND 139 AND header = 4"
    wanted = [row for row in rows if 100 <= row["transaction_id"] <= 139 and row["header"] == 4]
    assert duckdb.sql(counted).fetchall() == [(len(wanted),)]
