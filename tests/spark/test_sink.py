"""The sink's faces, called as Spark calls them: tasks write, the driver commits or aborts."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

import polonaise.blocking
from polonaise.blocking.log import Log
from polonaise.errors import BadOption
from polonaise.fragments.store import ObstoreStore
from polonaise.spark import clusters
from polonaise.spark.options import write_options
from polonaise.spark.publishing import RealPublicationPort
from polonaise.spark.sink import BatchSink, Sink, StreamSink
from rigs.faults import raises_code

DATA = StructType([StructField("data", BinaryType())])


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Of a log that is there and that nobody has open."""
    address = f"embedded:{tmp_path / 'log'}"
    polonaise.blocking.connect(address).close()
    yield address
    log = clusters._logs.pop((address, None), None)
    if log is not None:
        log.close()


def opened(address: str, *, is_stream: bool = False, schema: StructType = DATA, **options: str) -> Sink:
    """As Spark's tasks have it."""
    sink = Sink.opened(write_options({"cluster": address, **options}, is_stream=is_stream), schema, overwrite=False)
    pickled: Sink = pickle.loads(pickle.dumps(sink))
    return pickled


def rows(*bodies: bytes) -> Iterator[pa.RecordBatch]:
    return iter([pa.RecordBatch.from_pydict({"data": pa.array(bodies, pa.binary())})])


def bodies(address: str) -> list[bytes]:
    log: Log = clusters.log_at(address)
    return [tx.data for tx in log.read(0)]


def files(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "log" / "staging").rglob("*") if path.is_file()]


def test_what_tasks_write_is_in_the_log_once_it_is_committed(address: str, tmp_path: Path) -> None:
    sink = BatchSink(opened(address, txnAppId="a", txnVersion="1", inlineBytesMax="1"))
    messages: list[Any] = [sink.write(rows(b"x", b"y")), sink.write(iter([]))]
    assert len(files(tmp_path)) == 1
    assert bodies(address) == []
    for _ in range(2):
        sink.commit(messages)
    assert bodies(address) == [b"x", b"y"]
    assert files(tmp_path) == []


def test_an_abort_after_a_commit_whose_answer_was_lost_changes_nothing(address: str, tmp_path: Path) -> None:
    sink = StreamSink(opened(address, is_stream=True, txnAppId="a", inlineBytesMax="1"))
    messages: list[Any] = [sink.write(rows(b"x"))]
    sink.commit(messages, 0)
    sink.abort(messages, 0)
    sink.commit(messages, 0)
    assert bodies(address) == [b"x"]


def test_an_abort_leaves_what_is_staged_to_a_commit_that_may_still_be_at_it(address: str, tmp_path: Path) -> None:
    sink = BatchSink(opened(address, inlineBytesMax="1"))
    messages = [None, sink.write(rows(b"x"))]
    sink.abort(messages)
    assert len(files(tmp_path)) == 1
    assert bodies(address) == []
    sink.commit(messages)
    assert bodies(address) == [b"x"]


def test_a_batch_without_tasks_is_over_at_once(address: str) -> None:
    sink = StreamSink(opened(address, is_stream=True))
    sink.commit([], 0)
    sink.abort([None], 0)
    assert bodies(address) == []


def test_a_stream_that_begins_again_under_its_name_adds_nothing_until_it_is_beyond_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever partitions its batches have rows for now; and one that only goes on asks no other partitions."""
    asked: list[int] = []

    async def register(port: RealPublicationPort, key: bytes, partition: int) -> bytes | None:
        asked.append(partition)
        return await ask(port, key, partition)

    ask = RealPublicationPort.register
    monkeypatch.setattr(RealPublicationPort, "register", register)
    address = f"embedded:{tmp_path / 'log'}?partitions=3"
    polonaise.blocking.connect(address).close()
    columns = StructType([*DATA.fields, StructField("partition", LongType())])

    def commit(sink: StreamSink, batch: int, body: bytes, partition: int) -> list[int]:
        asked.clear()
        row = {"data": pa.array([body], pa.binary()), "partition": pa.array([partition], pa.int64())}
        sink.commit([sink.write(iter([pa.RecordBatch.from_pydict(row)]))], batch)
        return asked[:]

    try:
        first = StreamSink(opened(address, is_stream=True, schema=columns, txnAppId="a"))
        assert sorted(commit(first, 0, b"0", 0)) == [0, 0, 1, 2]
        assert [commit(first, batch, b"%d" % batch, 0) for batch in (1, 2)] == [[0], [0]]
        again = StreamSink(opened(address, is_stream=True, schema=columns, txnAppId="a"))
        for batch in range(5):
            commit(again, batch, b"again %d" % batch, 1)
        log = clusters.log_at(address)
        found = [[tx.data for tx in log.read(partition)] for partition in range(3)]
        assert found == [[b"0", b"1", b"2"], [b"again 3", b"again 4"], []]
    finally:
        clusters._logs.pop((address, None)).close()


def test_a_stream_whose_query_has_no_id_asks_for_a_name(address: str) -> None:
    sink = StreamSink(opened(address, is_stream=True))
    with pytest.raises(BadOption, match="txnAppId"):
        sink.commit([sink.write(rows(b"x"))], 0)


def test_staging_may_be_elsewhere(address: str, tmp_path: Path) -> None:
    sink = BatchSink(opened(address, staging=str(tmp_path / "elsewhere"), inlineBytesMax="1"))
    message = sink.write(rows(b"x"))
    assert [path for path in (tmp_path / "elsewhere").rglob("*") if path.is_file()]
    sink.commit([message])
    assert bodies(address) == [b"x"]


@pytest.mark.slow
def test_a_store_that_does_not_tell_what_is_left_over_holds_no_commit_up(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def never(store: ObstoreStore, prefix: str = "") -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(ObstoreStore, "list", never)
    sink = BatchSink(opened(address, timeout="0.5"))
    sink.commit([sink.write(rows(b"x"))])
    assert bodies(address) == [b"x"]
    [told] = [message for message in caplog.messages if "are not collected" in message]
    assert "did not answer within 0.5 s" in told


def test_wrong_columns_and_names_are_refused_before_a_log_is_looked_for(tmp_path: Path) -> None:
    nowhere = f"embedded:{tmp_path / 'log'}"
    with raises_code("bad_columns"):
        opened(nowhere, schema=StructType([StructField("data", LongType())]))
    with pytest.raises(BadOption, match="txnAppId"):
        opened(nowhere, txnAppId="x" * 1_100, txnVersion="1")
    assert not (tmp_path / "log").exists()
