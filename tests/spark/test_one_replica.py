"""What one storage node's directory holds, read without its cluster: all that is there, and what that is worth."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StringType, StructType

import polonaise.blocking
import polonaise.spark
from polonaise.errors import (
    BadOption,
    BeyondLog,
    ControlFileDamaged,
    HistoryTrimmed,
    NotFound,
    SegmentDamaged,
    UnknownPartition,
    WrongClusterKey,
)
from polonaise.fragments.protocol.coverage import Span
from polonaise.log.batch import Batch
from polonaise.log.segment import REMOVED
from polonaise.spark.options import read_options, write_options
from polonaise.spark.protocol.conditions import Ranges
from polonaise.spark.query import _narrowed
from polonaise.spark.queryhistory import QueryHistory
from polonaise.spark.schemas import ddl_of
from polonaise.storage.files import find
from polonaise.storage.offline import bounds_in
from rigs.faults import raises_code
from rigs.fragments import named_fragment
from rigs.spark import COLUMNS, Row, batch_reader, filled, stream_reader, table
from rigs.spark import columns as columns_named
from rigs.spark import rows as rows_at
from rigs.storagefiles import KEY, batch, flip, make_storage, overwrite, promise, segments, work_on

pytestmark = pytest.mark.usefixtures("connections_closed")
if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALL = StructType([*COLUMNS.fields]).add("standing", StringType())
IDS = columns_named(partition=pa.int32(), transaction_id=pa.int64())


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Nine batches of two transactions, three to a segment, in each of two partitions."""
    return make_storage(tmp_path / "storage", partitions=2)


def rows(storage: Path, schema: StructType = ALL, **options: object) -> list[Row]:
    return rows_at(f"storage:{storage}", schema, **options)


def ids(storage: Path, partition: int = 0, **options: object) -> list[int]:
    """Of one partition."""
    return [row["transaction_id"] for row in rows(storage, IDS, partitions=partition, **options)]


def archived(store: Path, *, batches: int) -> str:
    """Put the first batches of partition 0 into a store, and return its address."""
    made: list[Batch] = []
    for number in range(batches):
        made.append(batch(2 * number, made[-1].crc if made else 0, 0, [], False, None))
    name, raw = named_fragment(made, KEY)
    path = store / name.path
    path.parent.mkdir(parents=True)
    path.write_bytes(raw)
    return str(store)


# ------------------------------------------------------------------ what is read


def test_a_task_reads_no_other_cluster_s_files_than_those_that_were_planned(storage: Path, tmp_path: Path) -> None:
    reader = batch_reader(f"storage:{storage}", IDS)
    planned = list(reader.partitions())
    storage.rename(tmp_path / "aside")
    make_storage(storage, partitions=2, batches=12, key=bytes(16))
    with pytest.raises(WrongClusterKey, match="another cluster than what was there when the query was planned"):
        table(reader, planned)


def test_all_that_a_replica_holds_is_read_with_what_it_knows_of_each(storage: Path) -> None:
    promise(storage, lambda slot: slot.save(replace(slot.promises, confirmed=13)))
    before = {path: path.read_bytes() for path in storage.rglob("*") if path.is_file()}
    found = rows(storage)
    assert {path: path.read_bytes() for path in storage.rglob("*") if path.is_file()} == before
    assert [(row["partition"], row["transaction_id"]) for row in found] == [(p, id) for p in (0, 1) for id in range(18)]
    assert [row["standing"] for row in found[:18]] == ["committed"] * 14 + ["unproved"] * 4
    assert {row["standing"] for row in found[18:]} == {"unproved"}
    assert [row["data"] for row in found[:18]] == [f"body {id}".encode() for id in range(18)]
    assert found[5]["timestamp"] == datetime.fromtimestamp(5, UTC)


def test_what_its_node_does_not_trust_is_told_so(storage: Path) -> None:
    promise(storage, lambda slot: slot.save(replace(slot.promises, confirmed=4)))
    promise(storage, lambda slot: slot.record_loss(9))
    bounds = bounds_in(find(str(storage))[0])
    found = rows(storage, partitions=0)
    assert [row["standing"] for row in found] == ["committed"] * 5 + ["unproved"] * 5 + ["untrusted"] * 8
    assert [row["standing"] for row in found] == [bounds.standing_of(id).value for id in range(18)]


@pytest.mark.parametrize("options", [{}, {"kafkaColumns": True}, {"decoder": "json", "decoderSchema": "a int"}])
def test_the_standing_is_a_column_of_a_replica_and_of_nothing_else(options: dict[str, object]) -> None:
    said = {name: str(value).lower() for name, value in options.items()}
    assert "`standing` string" in ddl_of(read_options({"cluster": "storage:x", **said}))
    for other in ("embedded:x", "file:x", "fragments:x"):
        assert "standing" not in ddl_of(read_options({"cluster": other, **said}))


def test_the_standing_alone_can_be_asked_for(storage: Path) -> None:
    assert rows(storage, columns_named(standing=pa.string()), partitions=1) == [{"standing": "unproved"}] * 18


@pytest.mark.parametrize("minimum", [1, 20])
def test_a_range_is_read_and_a_task_reads_one_segment(storage: Path, minimum: int) -> None:
    options = {"startingTransactions": '{"0": 4}', "endingTransactions": '{"0": 13}', "minPartitions": minimum}
    assert ids(storage, **options) == list(range(4, 13))
    reader = batch_reader(f"storage:{storage}", IDS, partitions=0, **options)
    assert [each.value.span for each in reader.partitions()] == [(4, 5), (6, 11), (12, 12)]


@pytest.mark.parametrize("second", [0, 1, 2, 6, 7, 12, 13, 17, 18, 19])
def test_times_divide_a_replica_as_they_do_a_log(storage: Path, second: int) -> None:
    moment = datetime.fromtimestamp(second, UTC).isoformat()
    late = [id for id in range(18) if 2 * (id // 2) + 1 >= second]
    assert ids(storage, startingTimestamp=moment) == late
    assert ids(storage, endingTimestamp=moment) == [id for id in range(18) if id not in late]


def test_the_caution_is_told_once_for_each_partition_of_a_query(
    storage: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history = QueryHistory(read_options({"cluster": f"storage:{storage}"}))
    for span in (Span(0, 5), Span(6, 17)):
        history.splits({0: span, 1: span})
    told = [record.getMessage() for record in caplog.records if "CAUTION" in record.getMessage()]
    assert [text.split(",")[0] for text in told] == [f"CAUTION: this is one replica of partition {p}" for p in (0, 1)]


def test_one_partitions_directory_is_read_as_well(storage: Path, tmp_path: Path) -> None:
    promise(storage, lambda slot: slot.save(replace(slot.promises, confirmed=13)))
    assert [row["standing"] for row in rows(storage / "0")] == ["committed"] * 14 + ["unproved"] * 4
    shutil.copytree(storage / "1", tmp_path / "copy")
    found = rows(tmp_path / "copy")
    assert [(row["partition"], row["standing"]) for row in found] == [(1, "unproved")] * 18


@pytest.mark.slow
def test_a_running_node_is_read_beside_and_what_it_writes_meanwhile_is_left(tmp_path: Path) -> None:
    with filled(tmp_path, 40, 3) as log:
        storage = tmp_path / "log" / "storage-0"
        hot = rows_at(log.address)
        reader = batch_reader(f"storage:{storage}", ALL)
        planned = list(reader.partitions())
        log.append(30)
        found = table(reader, planned).to_pylist()
        assert [{key: row[key] for key in row if key != "standing"} for row in found] == hot
        assert len(ids(storage)) == 70


def test_what_was_trimmed_is_read_from_fragments(tmp_path: Path) -> None:
    with filled(tmp_path, 60) as log:
        log.archive()
        log.append(5)
        storage = tmp_path / "log" / "storage-0"
        whole = [(row["transaction_id"], row["data"]) for row in rows_at(log.address)]
        found = rows(storage, fragments=log.store)
        assert [(row["transaction_id"], row["data"]) for row in found] == whole
        assert [row["standing"] for row in found[:60]] == ["committed"] * 60, "what is archived is committed"
        early = ids(storage, fragments=log.store, endingTimestamp=found[30]["timestamp"].isoformat())
        assert early == [row["transaction_id"] for row in found if row["timestamp"] < found[30]["timestamp"]]


# ------------------------------------------------------------------ what is refused


def test_what_is_below_a_trim_is_refused_with_what_to_say(storage: Path) -> None:
    work_on(storage, lambda log: log.trim(6))
    with pytest.raises(HistoryTrimmed, match=r'below 6 of partition 0.*startingTransactions=\{"0": 6\}'):
        rows(storage)
    with pytest.raises(HistoryTrimmed):
        rows(storage, failOnDataLoss=False)
    assert ids(storage, startingTransactions='{"0": 6}') == list(range(6, 18))


def test_a_time_before_a_trim_is_refused_as_its_ids_are(storage: Path) -> None:
    """Ids 6 and 7 are of second 7: what was trimmed may be of that second, too, and of none after it."""
    work_on(storage, lambda log: log.trim(6))
    for second in (0, 6, 7):
        moment = datetime.fromtimestamp(second, UTC).isoformat()
        for both in ({}, {"endingTimestamp": moment}):
            with pytest.raises(HistoryTrimmed, match=r"below 6 of partition 0"):
                rows(storage, partitions=0, startingTimestamp=moment, **both)
        with pytest.raises(HistoryTrimmed):
            rows(storage, partitions=0, endingTimestamp=moment)
        assert ids(storage, startingTransactions='{"0": 6}', endingTimestamp=moment) == []
    assert ids(storage, startingTimestamp=datetime.fromtimestamp(8, UTC).isoformat()) == list(range(8, 18))


def test_a_conditions_time_before_a_trim_leaves_the_range_where_its_ids_begin(storage: Path) -> None:
    work_on(storage, lambda log: log.trim(6))
    history = QueryHistory(read_options({"cluster": f"storage:{storage}"}))
    early = Ranges(since=datetime.fromtimestamp(0, UTC))
    assert _narrowed(history, 0, Span(0, 17), early) == (0, 17), "which is refused"
    assert _narrowed(history, 0, Span(6, 17), early) == (6, 17)


def test_a_time_that_neither_the_archive_nor_the_replica_holds_is_refused(storage: Path, tmp_path: Path) -> None:
    work_on(storage, lambda log: log.trim(6))
    store = archived(tmp_path / "store", batches=2)
    for second in (4, 6, 7):
        with pytest.raises(
            HistoryTrimmed, match=r"below 6 of partition 0: .* names .*store, which lacks 4 to 5: restore"
        ):
            ids(storage, fragments=store, startingTimestamp=datetime.fromtimestamp(second, UTC).isoformat())
    assert ids(storage, fragments=store, startingTimestamp=datetime.fromtimestamp(8, UTC).isoformat())[0] == 8


@pytest.mark.parametrize("second", [1, 7, 17, 18, 19, 20, 21, 24, 30])
def test_times_divide_also_what_only_the_archive_has(storage: Path, tmp_path: Path, second: int) -> None:
    """The replica is behind: it ends with id 17, of second 17, and the archive with id 23."""
    store = archived(tmp_path / "store", batches=12)
    moment = datetime.fromtimestamp(second, UTC).isoformat()
    assert ids(storage, fragments=store) == list(range(24))
    late = ids(storage, fragments=store, startingTimestamp=moment)
    assert late == [id for id in range(24) if 2 * (id // 2) + 1 >= second]
    assert ids(storage, fragments=store, endingTimestamp=moment) == [id for id in range(24) if id not in late]


@pytest.mark.parametrize(("segment", "missing"), [(0, (0, 5)), (1, (6, 11)), (2, (12, 17))])
def test_a_missing_segment_is_told_and_can_be_read_around(
    storage: Path, segment: int, missing: tuple[int, int]
) -> None:
    segments(storage)[segment].unlink()
    with pytest.raises(SegmentDamaged, match=f"does not hold {missing[0]} to {missing[1]} of partition 0"):
        rows(storage)
    left = [id for id in range(18) if not missing[0] <= id <= missing[1]]
    assert ids(storage, failOnDataLoss=False) == left
    assert len(ids(storage, 1)) == 18, "the other partition is whole"


@pytest.mark.parametrize("place", [3, 130, 400])
@pytest.mark.parametrize("segment", [0, 1, 2])
def test_damage_is_told_and_what_is_around_it_can_be_read(storage: Path, segment: int, place: int) -> None:
    """In a header, in the registers before the first batch, in a batch."""
    whole = {"startingTransactions": '{"0": 6}'} if segment == 0 else {"endingTransactions": f'{{"0": {6 * segment}}}'}
    flip(segments(storage)[segment], place)
    with pytest.raises(SegmentDamaged) as refused:
        rows(storage)
    assert "failOnDataLoss=false" in refused.value.text
    outside = [id for id in range(18) if id // 6 != segment]
    left = ids(storage, failOnDataLoss=False)
    assert [id for id in left if id // 6 != segment] == outside
    assert [id for id in left if id // 6 == segment] == list(range(6 * segment, 6 * segment + len(left) - 12))
    assert len(left) < 18
    assert ids(storage, **whole) == [id for id in outside if id >= 6 or segment][: 12 if not segment else 6 * segment]


def seconds(first: int) -> str:
    """The time at which the batch that begins with this id was committed."""
    return datetime.fromtimestamp(first + 1, UTC).isoformat()


@pytest.mark.parametrize("segment", [0, 1, 2])
def test_a_time_in_or_around_a_segment_that_cannot_be_read_leaves_nothing_out_in_silence(
    storage: Path, segment: int
) -> None:
    """What can't be read has unknown times, so a range that begins or ends with it has all of it."""
    first, last = 6 * segment, 6 * segment + 5
    overwrite(segments(storage)[segment], 8, b"\xff" * 4)
    for since in (datetime.fromtimestamp(0, UTC).isoformat(), seconds(first), seconds(last + 1)):
        with pytest.raises(SegmentDamaged, match=f"does not hold {first} to "):
            ids(storage, startingTimestamp=since)
    for until in (seconds(first), seconds(last + 1)):
        with pytest.raises(SegmentDamaged, match=f"does not hold {first} to "):
            ids(storage, endingTimestamp=until)
    left = [id for id in range(18) if not first <= id <= last]
    assert ids(storage, startingTimestamp=seconds(0), failOnDataLoss=False) == left
    assert ids(storage, startingTimestamp=seconds(first), failOnDataLoss=False) == [id for id in left if id > last]
    assert ids(storage, endingTimestamp=seconds(last + 1), failOnDataLoss=False) == [id for id in left if id < first]


def test_a_partition_whose_only_segment_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    storage = make_storage(tmp_path / "storage", batches=3)
    overwrite(segments(storage)[0], 8, b"\xff" * 4)
    for side in ("startingTimestamp", "endingTimestamp"):
        with pytest.raises(SegmentDamaged, match="does not hold 0 to"):
            ids(storage, **{side: seconds(3)})


@pytest.mark.parametrize("segment", [0, 1])
def test_times_in_a_segment_that_cannot_be_read_are_sought_in_the_archive(
    storage: Path, tmp_path: Path, segment: int
) -> None:
    store = archived(tmp_path / "store", batches=9)
    overwrite(segments(storage)[segment], 8, b"\xff" * 4)
    for first in range(0, 18, 2):
        assert ids(storage, fragments=store, startingTimestamp=seconds(first)) == list(range(first, 18))
        assert ids(storage, fragments=store, endingTimestamp=seconds(first)) == list(range(first))


def test_an_end_that_was_synced_and_is_cut_off_is_told(storage: Path) -> None:
    path = segments(storage)[2]
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(SegmentDamaged, match="does not hold 16 to 17"):
        rows(storage)
    assert ids(storage, endingTransactions='{"0": 16}') == list(range(16))


@pytest.mark.parametrize("behind", [b"torn", bytes(5_000), bytes(100) + b"torn"])
def test_an_unfinished_write_and_room_at_the_end_are_no_damage(storage: Path, behind: bytes) -> None:
    with segments(storage)[2].open("ab") as file:
        file.write(behind)
    assert ids(storage) == list(range(18))


def test_synced_batches_that_became_zeros_are_told(storage: Path) -> None:
    path = segments(storage)[2]
    raw = path.read_bytes()
    path.write_bytes(raw[:-100] + bytes(100))
    with pytest.raises(SegmentDamaged, match="does not hold 16 to 17"):
        rows(storage)


def test_what_the_node_has_cut_since_the_query_was_planned_is_told(storage: Path) -> None:
    reader = batch_reader(f"storage:{storage}", IDS, partitions=0)
    planned = list(reader.partitions())
    path = segments(storage)[2]
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(BeyondLog, match=r"does not hold 16 to 17 of partition 0 any more.*make the query again"):
        table(reader, planned)


def test_what_the_node_has_trimmed_since_the_query_was_planned_is_told(storage: Path) -> None:
    reader = batch_reader(f"storage:{storage}", IDS, partitions=0)
    planned = list(reader.partitions())
    work_on(storage, lambda log: log.trim(6))
    with pytest.raises(BeyondLog, match=r"does not hold 0 to 5 of partition 0 any more.*make the query again"):
        table(reader, planned)
    assert [row["transaction_id"] for row in table(reader, planned[1:]).to_pylist()] == list(range(6, 18))


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_a_segment_that_its_node_is_about_to_remove_is_told_as_trimmed_and_not_as_damaged(
    storage: Path, fail_on_data_loss: bool
) -> None:
    """The node overwrites the header before it removes the file, and the task comes between the two."""
    reader = batch_reader(f"storage:{storage}", IDS, partitions=0, failOnDataLoss=fail_on_data_loss)
    planned = list(reader.partitions())
    overwrite(segments(storage)[0], 0, REMOVED)
    with pytest.raises(BeyondLog, match=r"does not hold 0 to 5 of partition 0 any more.*make the query again"):
        table(reader, planned)


def test_only_the_partitions_that_a_query_names_are_looked_at(storage: Path, tmp_path: Path) -> None:
    other = make_storage(tmp_path / "other", partitions=2, key=bytes(16))
    shutil.copy(segments(other, 1)[2], segments(storage, 1)[2])
    assert ids(storage) == list(range(18))
    with pytest.raises(WrongClusterKey, match="another cluster"):
        ids(storage, 1)


def test_what_is_no_storage_directory_is_refused(storage: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        rows(tmp_path / "nowhere")
    with pytest.raises(BadOption, match="not a storage directory"):
        rows(tmp_path)
    with pytest.raises(BadOption, match="is a file: name the storage directory"):
        rows(segments(storage)[0])
    for named in ("7", "0-2"):
        with pytest.raises(UnknownPartition, match=r"has the partitions \[0, 1\]"):
            rows(storage, partitions=named)
    with pytest.raises(BadOption, match="invalid partitions"):
        rows(storage, partitions="x")
    with pytest.raises(BeyondLog, match="whose next transaction will be 18"):
        rows(storage, startingTransactions='{"0": 99}')
    with pytest.raises(BadOption, match="no partitions yet"):
        rows(make_storage(tmp_path / "empty", partitions=0))
    control = storage / "polonaise-storage.ctl"
    flip(control, 40)
    with pytest.raises(ControlFileDamaged):
        rows(storage)
    control.unlink()
    with raises_code("control_file_missing", match="one partition's directory"):
        rows(storage)


def test_an_empty_partition_has_no_rows(tmp_path: Path) -> None:
    assert rows(make_storage(tmp_path / "empty", batches=0)) == []


def test_a_replica_is_neither_followed_nor_written_to(storage: Path) -> None:
    with pytest.raises(BadOption, match="can't be followed"):
        stream_reader(f"storage:{storage}", ALL)
    with pytest.raises(BadOption, match="can't be appended to"):
        write_options({"cluster": f"storage:{storage}"}, is_stream=False)


# ------------------------------------------------------------------ in Spark


@pytest.mark.slow
def test_a_replica_in_spark(spark: SparkSession, storage: Path) -> None:
    promise(storage, lambda slot: slot.save(replace(slot.promises, confirmed=13)))
    address = f"storage:{storage}"
    frame = spark.read.format("polonaise").option("cluster", address).load()
    assert frame.columns == [*COLUMNS.names, "standing"]
    counted = {
        (row.partition, row.standing): row["count"] for row in frame.groupBy("partition", "standing").count().collect()
    }
    assert counted == {(0, "committed"): 14, (0, "unproved"): 4, (1, "unproved"): 18}
    some = polonaise.spark.read(
        spark, address, where="partition = 0 and transaction_id >= 12 and standing = 'unproved'"
    )
    assert sorted(row.transaction_id for row in some.collect()) == [14, 15, 16, 17]
    segments(storage)[1].unlink()
    with pytest.raises(PySparkException, match=r"segment_damaged.*does not hold 6 to 11 of partition 0"):
        spark.read.format("polonaise").option("cluster", address).load().count()
    with pytest.raises(SegmentDamaged):
        polonaise.spark.read(spark, address)


@pytest.mark.slow
def test_what_a_replica_holds_is_saved_into_a_new_log_in_its_order(
    spark: SparkSession, storage: Path, tmp_path: Path
) -> None:
    promise(storage, lambda slot: slot.save(replace(slot.promises, confirmed=13)))
    address = f"embedded:{tmp_path / 'saved'}"
    left = spark.read.format("polonaise").option("cluster", f"storage:{storage}").load()
    with polonaise.blocking.connect(f"{address}?partitions=2") as saved:
        kept = left.where("standing = 'committed'").select("partition", "header", "data")
        kept.write.format("polonaise").option("cluster", address).mode("append").save()
        assert [tx.data for tx in saved.read(0)] == [f"body {id}".encode() for id in range(14)]
        assert {tx.header for tx in saved.read(0)} == {5}
        assert list(saved.read(1)) == []


@pytest.mark.slow
def test_a_stream_of_a_replica_is_refused_in_spark(spark: SparkSession, storage: Path, tmp_path: Path) -> None:
    stream = spark.readStream.format("polonaise").option("cluster", f"storage:{storage}").load()
    with pytest.raises(PySparkException, match=r"bad_option.*one replica can't be followed"):
        stream.writeStream.format("noop").option(
            "checkpointLocation", str(tmp_path / "c")
        ).start().processAllAvailable()
