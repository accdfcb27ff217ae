"""A batch query reads just what was asked for, from servers and fragments alike; an invalid option is refused."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

import polonaise.blocking
from polonaise.errors import (
    AccessDenied,
    BadOption,
    BeyondLog,
    FragmentMissing,
    NotFound,
    NotInitialized,
    PolonaiseError,
    UnknownPartition,
    WrongClusterKey,
)
from polonaise.fragments.protocol.coverage import Span
from polonaise.fragments.store import ObstoreStore
from polonaise.spark import query, taskreader
from polonaise.spark.options import microseconds
from polonaise.spark.protocol.splits import Split
from rigs.spark import COLUMNS, Filled, batch_reader, columns, filled, ids, rows, table

pytestmark = pytest.mark.usefixtures("connections_closed")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    """300 transactions in partition 0, the first 200 archived in several fragments; 5 in partition 1."""
    with filled(tmp_path_factory.mktemp("log"), 200, 5) as made:
        made.archive()
        made.append(100)
        yield made


# ------------------------------------------------------------------ what is read


def test_every_transaction_is_read_once_in_order_with_its_columns(log: Filled) -> None:
    found = rows(log.address)
    assert [(row["partition"], row["transaction_id"]) for row in found] == [
        *((0, id) for id in range(300)), *((1, id) for id in range(5)),
    ]  # fmt: skip
    expected = [tx for partition in (0, 1) for tx in log.log.read(partition)]
    assert [(row["data"], row["header"], microseconds(row["timestamp"])) for row in found] == [
        (tx.data, tx.header, tx.commit_time_us) for tx in expected
    ]
    assert [row["request"] for row in found] == [
        {"client_id": tx.client_id, "generation": tx.generation, "sequence": tx.sequence} for tx in expected
    ]


def test_fragments_and_servers_give_the_same_rows(log: Filled) -> None:
    hot = rows(log.address)
    assert rows(log.address, fragments=log.store) == hot
    assert rows(f"fragments:{log.store}") == [
        row for row in hot if row["partition"] == 0 and row["transaction_id"] < 200
    ]
    reader = batch_reader(log.address, fragments=log.store)
    places = {split.value.fragment is None for split in reader.partitions()}
    assert places == {True, False}, "archived history comes from fragments, the rest from the servers"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"startingTransactions": '{"0": 100}', "endingTransactions": '{"0": 103, "1": 2}'},
            [(0, 100), (0, 101), (0, 102), (1, 0), (1, 1)],
        ),
        ({"startingTransactions": '{"0": -1, "1": -2}', "endingTransactions": '{"1": 1}'}, [(1, 0)]),
        ({"startingOffsets": '{"0": 299, "1": 4}'}, [(0, 299), (1, 4)]),
        ({"startingTransactions": '{"0": 199, "1": 5}', "endingTransactions": '{"0": 201}'}, [(0, 199), (0, 200)]),
        ({"partitions": "1", "endingTransactions": '{"1": 2}'}, [(1, 0), (1, 1)]),
        ({"endingTransactions": "earliest"}, []),
        ({"startingTransactions": "latest"}, []),
    ],
)  # fmt: skip
@pytest.mark.parametrize("cold", [False, True])
def test_a_range_includes_its_start_and_not_its_end(log: Filled, options: Any, expected: Any, cold: bool) -> None:
    assert ids(log.address, **options, **({"fragments": log.store} if cold else {})) == expected


def test_a_range_without_transactions_is_read_by_one_task_that_does_nothing(log: Filled) -> None:
    """Spark would call `read` with a partition of its own making for an empty list."""
    reader = batch_reader(log.address, endingTransactions="earliest")
    (only,) = reader.partitions()
    assert only.value is None
    assert list(reader.read(only)) == []


def test_what_is_committed_after_planning_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taskreader, "_ROWS", 1)  # each of the log's batches by itself
    with filled(tmp_path, 10) as log:
        reader = batch_reader(log.address)
        planned = list(reader.partitions())
        log.append(50)
        assert table(reader, planned).num_rows == 10
        assert len(rows(log.address)) == 60


def test_times_divide_history_where_they_were_given(log: Filled) -> None:
    moments = [row["timestamp"] for row in rows(log.address, partitions="0")]
    middle = moments[150]
    before = sum(moment < middle for moment in moments)
    for options in ({}, {"fragments": log.store}):
        late = ids(log.address, partitions="0", startingTimestamp=middle.isoformat(), **options)
        early = ids(log.address, partitions="0", endingTimestamp=middle.isoformat(), **options)
        assert late == [(0, id) for id in range(before, 300)]
        assert early == [(0, id) for id in range(before)]


def test_times_of_a_store_alone_are_found_in_its_fragments(log: Filled) -> None:
    moments = [row["timestamp"] for row in rows(f"fragments:{log.store}")]
    for place in (0, 77, 199):
        start = sum(moment < moments[place] for moment in moments)
        found = ids(f"fragments:{log.store}", startingTimestamp=moments[place].isoformat())
        assert found == [(0, id) for id in range(start, 200)]
    after = datetime(2999, 1, 1, tzinfo=UTC)
    assert ids(f"fragments:{log.store}", startingTimestamp=after.isoformat()) == []
    assert len(ids(f"fragments:{log.store}", endingTimestamp=after.isoformat())) == 200


def test_only_the_headers_that_were_asked_for_come(log: Filled) -> None:
    wanted = columns(transaction_id=pa.int64())
    for options in ({}, {"fragments": log.store}):
        found = rows(log.address, wanted, partitions="0", headers="0,2", **options)
        assert [row["transaction_id"] for row in found] == [id for id in range(300) if id % 3 != 1]
    assert rows(log.address, wanted, headers="7") == []


def test_only_the_columns_that_were_asked_for_are_made(log: Filled) -> None:
    reader = batch_reader(log.address, columns(data=pa.binary(), partition=pa.int32()))
    assert reader._projection.needs == ("data", "partition")
    assert table(reader, list(reader.partitions())).column_names == ["data", "partition"]


def test_kafkas_columns_have_kafkas_names(log: Filled) -> None:
    wanted = columns(
        key=pa.binary(), value=pa.binary(), topic=pa.string(), partition=pa.int32(), offset=pa.int64(),
        timestamp=pa.timestamp("us", "UTC"), timestampType=pa.int32(),
    )  # fmt: skip
    first = rows(log.address, wanted, kafkaColumns=True)[0]
    assert first["offset"] == 0
    assert first["value"] == b"0"
    assert (first["key"], first["topic"], first["timestampType"]) == (None, None, 1)


# ------------------------------------------------------------------ how it is divided


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"minPartitions": 7}, {"maxBytesPerSplit": "1k"}, {"maxBytesPerSplit": 1}])
@pytest.mark.parametrize("cold", [False, True])
def test_splits_divide_what_is_read_and_change_nothing_of_it(log: Filled, options: Any, cold: bool) -> None:
    where = {"fragments": log.store} if cold else {}
    reader = batch_reader(log.address, **options, **where)
    planned = list(reader.partitions())
    assert len(planned) >= 7
    assert table(reader, planned).to_pylist() == rows(log.address)


def test_a_split_may_begin_and_end_inside_batches(log: Filled) -> None:
    """Splits begin and end inside batches as they come."""
    reader = batch_reader(log.address)
    for first, last in [(0, 0), (3, 7), (99, 201), (299, 299)]:
        split = InputPartition(Split(0, Span(first, last), None))
        assert [row["transaction_id"] for row in table(reader, [split]).to_pylist()] == list(range(first, last + 1))


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"startingTransactions": '{"0": 301}'}, BeyondLog, "partition 0, whose next transaction will be 300"),
        ({"endingTransactions": '{"1": 6}'}, BeyondLog, "write latest"),
        (
            {"startingTransactions": '{"0": 5}', "endingTransactions": '{"0": 4}'},
            BadOption,
            "ends at 4, before its start 5",
        ),
        ({"startingTransactions": '{"2": 5}'}, UnknownPartition, "partition 2"),
        ({"partitions": "0", "endingTransactions": '{"1": 5}'}, UnknownPartition, "which the query does not read"),
        ({"partitions": "9"}, UnknownPartition, "9"),
        ({"partitions": "x"}, BadOption, "partitions"),
    ],
)
def test_a_range_that_is_not_there_is_refused_when_the_query_is_planned(
    log: Filled, options: Any, error: type[PolonaiseError], said: str
) -> None:
    with pytest.raises(error, match=said):
        batch_reader(log.address, **options).partitions()


def test_a_log_that_is_not_there_is_said_to_be_missing_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(NotInitialized, match=r"no log at embedded:.*typo"):
        batch_reader(f"embedded:{tmp_path / 'typo'}").partitions()
    with pytest.raises(NotInitialized):
        batch_reader(f"file:{tmp_path / 'typo'}").partitions()
    assert not (tmp_path / "typo").exists()


def test_a_store_that_is_not_there_is_said_to_be_missing_and_not_made(tmp_path: Path, log: Filled) -> None:
    with pytest.raises(NotFound, match="no directory"):
        batch_reader(f"fragments:{tmp_path / 'typo'}").partitions()
    with pytest.raises(NotFound, match="no directory"):
        batch_reader(log.address, fragments=str(tmp_path / "typo")).partitions()
    assert not (tmp_path / "typo").exists()


def test_a_store_without_fragments_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="holds no fragments"):
        batch_reader(f"fragments:{tmp_path}").partitions()


def test_a_partition_without_fragments_is_unknown_to_a_store(log: Filled) -> None:
    with pytest.raises(UnknownPartition, match=r"has fragments of the partitions \[0\]"):
        batch_reader(f"fragments:{log.store}", partitions="0-1").partitions()


def test_a_store_without_permission_says_so(log: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(store: ObstoreStore, prefix: str = "") -> Any:
        raise store._translated(prefix, PermissionError("Permission denied"))

    monkeypatch.setattr(ObstoreStore, "list", refused)
    with pytest.raises(AccessDenied, match="let this user read"):
        batch_reader(log.address, fragments=log.store).partitions()


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (columns(transaction_id=pa.int32()), "transaction_id is bigint, and the schema has it as int"),
        (columns(data=pa.string()), "data is binary"),
        (columns(price=pa.int64()), "no column 'price'"),
        (columns(Data=pa.binary()), "there is no column Data: write data"),
        (columns(), "at least one column"),
        (columns(_corrupt=pa.binary()), "no column '_corrupt'"),
    ],
)
def test_a_column_that_is_not_there_or_of_another_type_is_refused(log: Filled, wanted: StructType, said: str) -> None:
    with pytest.raises(BadOption, match=said):
        batch_reader(log.address, wanted)


def test_a_split_that_the_log_does_not_fill_any_more_is_refused_by_its_task(log: Filled) -> None:
    """Fewer rows than were planned, and no word of it, would be a loss."""
    reader = batch_reader(log.address)
    for first in (290, 300, 310):
        split = InputPartition(Split(0, Span(first, 310), None))
        with pytest.raises(BeyondLog, match=rf"ends before {max(first, 300)}, .* planned up to 310: .* older copy"):
            table(reader, [split])


def test_a_split_of_another_log_is_refused_by_its_task(log: Filled) -> None:
    reader = batch_reader(log.address, fragments=log.store, minPartitions=2)
    planned = [each.value for each in reader.partitions()]
    assert {split.cluster_key for split in planned} == {log.log.cluster_key}, "each knows whose it is"
    for split in (planned[0], planned[-1]):
        foreign = InputPartition(split._replace(cluster_key=bytes(16)))
        with pytest.raises(WrongClusterKey, match="another"):
            table(reader, [foreign])
    assert [split.fragment is None for split in (planned[0], planned[-1])] == [False, True]


# ------------------------------------------------------------------ fragments that are not right


def copied(log: Filled, to: Path) -> Path:
    for path in Path(log.store).rglob("*.parquet"):
        target = to / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    return to


def test_a_hole_is_refused_with_its_ids_or_read_around(log: Filled, tmp_path: Path) -> None:
    store = copied(log, tmp_path)
    second = sorted(store.rglob("*.parquet"))[1]
    first, last = (int(part) for part in second.name.split("-")[:2])
    second.unlink()
    with pytest.raises(FragmentMissing, match=rf"{first} to {last} of partition 0.*failOnDataLoss"):
        batch_reader(f"fragments:{store}").partitions()
    around = ids(f"fragments:{store}", failOnDataLoss=False)
    assert around == [(0, id) for id in range(200) if not first <= id <= last]
    assert len(ids(log.address, fragments=str(store))) == 305, "the servers have what the fragments lack"


def test_a_time_that_may_lie_in_a_hole_is_refused_or_read_around(log: Filled, tmp_path: Path) -> None:
    """What the hole held since that time would be missing without a word."""
    store = copied(log, tmp_path)
    moments = [row["timestamp"] for row in rows(f"fragments:{log.store}")]
    second = sorted(store.rglob("*.parquet"))[1]
    first, last = (int(part) for part in second.name.split("-")[:2])
    second.unlink()
    hole = rf"{first} to {last} of partition 0.*failOnDataLoss"
    within = moments[last].isoformat()
    for side in ("startingTimestamp", "endingTimestamp"):
        with pytest.raises(FragmentMissing, match=hole):
            batch_reader(f"fragments:{store}", **{side: within}).partitions()
    with pytest.raises(FragmentMissing, match=hole):
        query.read(None, f"fragments:{store}", where=f"timestamp >= '{within}'")
    with pytest.raises(FragmentMissing, match=rf"{first} to {first} of partition 0"):
        query.read(None, f"fragments:{store}", where=f"timestamp >= '{within}' and transaction_id <= {first}")
    around = ids(f"fragments:{store}", startingTimestamp=within, failOnDataLoss=False)
    assert around == [(0, id) for id in range(last + 1, 200)]
    later = next(id for id in range(last + 1, 200) if moments[id] > moments[last + 1])
    found = ids(f"fragments:{store}", startingTimestamp=moments[later].isoformat())
    assert found == [(0, id) for id in range(later, 200)], "this time is not in the hole"


def test_a_fragment_of_another_cluster_is_refused_before_a_job_starts(log: Filled, tmp_path: Path) -> None:
    with filled(tmp_path, 50) as other:
        other.archive()
        with pytest.raises(WrongClusterKey, match="another cluster's log"):
            batch_reader(log.address, fragments=other.store).partitions()


@pytest.mark.slow
def test_a_fragment_of_another_cluster_among_others_is_refused_by_its_task(log: Filled, tmp_path: Path) -> None:
    store = copied(log, tmp_path / "mixed")
    with filled(tmp_path, 400) as other:
        other.archive(fragment_bytes=20_000)
        foreign = sorted(Path(other.store).rglob("*.parquet"))[-1]
        (store / "0" / foreign.name).write_bytes(foreign.read_bytes())
    reader = batch_reader(f"fragments:{store}", failOnDataLoss=False)
    with pytest.raises(WrongClusterKey, match=foreign.name):
        table(reader, list(reader.partitions()))


def test_overlapping_fragments_are_read_once(log: Filled, tmp_path: Path) -> None:
    store = copied(log, tmp_path)
    with polonaise.blocking.connect(log.address):
        twice = Filled(tmp_path, log.log)
        twice.address, twice.store = log.address, str(tmp_path / "other")
        twice.archive(fragment_bytes=5_000)
    for path in Path(twice.store).rglob("*.parquet"):
        raw = path.read_bytes()
        assert hashlib.sha256(raw).hexdigest() in path.name
        (store / "0" / path.name).write_bytes(raw)
    assert [id for _, id in ids(f"fragments:{store}")] == list(range(300))


def test_a_reader_travels_to_the_tasks(log: Filled) -> None:

    reader = batch_reader(log.address, COLUMNS, fragments=log.store, decoder="json", decoderSchema="x long")
    planned = pickle.loads(pickle.dumps(list(reader.partitions())))
    assert table(pickle.loads(pickle.dumps(reader)), planned).num_rows == 305


# ------------------------------------------------------------------ what the library wrote for itself


def test_rows_are_the_applications_alone_from_servers_and_fragments(tmp_path: Path) -> None:
    with filled(tmp_path, 0) as made:
        for name in ("archived", "hot"):
            producer = made.log.producer(name)
            producer.append(0, b'{"number": 1}', header=3)
            if name == "archived":
                made.archive()
        assert made.log.high_water_mark(0) == 3
        assert ids(made.address, fragments=made.store) == [(0, 1), (0, 3)]
        assert ids(made.address) == [(0, 1), (0, 3)]
        assert ids(f"fragments:{made.store}", partitions="all") == [(0, 1)]
        assert ids(made.address, headers="0") == []
        decoding = {"decoder": "json", "decoderSchema": "number long"}
        found = rows(made.address, columns(number=pa.int64()), fragments=made.store, **decoding)
        assert [row["number"] for row in found] == [1, 1]
