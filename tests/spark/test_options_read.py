"""Options, conditions and columns as they are read: an invalid one is refused by name, before anything runs."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import polonaise.testing
from polonaise.client.log import partitions_of
from polonaise.errors import BadOption
from polonaise.fragments.protocol.coverage import Span
from polonaise.node.embedded import parse_embedded
from polonaise.spark.options import EARLIEST, LATEST, MIB, ReadOptions, microseconds, read_options, write_options
from polonaise.spark.protocol.conditions import Ranges, ranges_in
from polonaise.spark.protocol.ddl import checked_columns
from polonaise.spark.sink import AgreedCounts, agreed_count, counts_key
from rigs.faults import raises_code

DOCUMENT = Path(__file__).parents[2] / "docs" / "spark.md"


def said(**options: str) -> ReadOptions:
    return read_options({"cluster": "embedded:/x", **options})


def test_what_is_said_is_what_is_meant() -> None:
    read = said(
        fragments="s3://b/p", partitions="0-3", startingTransactions='{"0": 5, "1": -2}', endingOffsets='{"0": -1}',
        headers="1, -2", kafkacolumns="TRUE", failondataloss="false", maxOffsetsPerTrigger="10", minPartitions="4",
        maxBytesPerSplit="2m", timeout="1.5s",
    )  # fmt: skip
    assert (read.cluster, read.fragments, read.partitions) == ("embedded:/x", "s3://b/p", "0-3")
    assert [read.starting.of(partition) for partition in range(3)] == [5, EARLIEST, EARLIEST]
    assert [read.ending.of(partition) for partition in range(2)] == [LATEST, LATEST]
    assert read.headers == {1, -2}
    assert (read.kafka_columns, read.fail_on_data_loss) == (True, False)
    assert (read.transactions_per_trigger_max, read.partitions_min) == (10, 4)
    assert (read.split_bytes_max, read.timeout_s) == (2 * MIB, 1.5)


def test_times_are_read_with_their_zone_or_as_milliseconds() -> None:
    noon = microseconds(datetime(2026, 1, 31, 12, tzinfo=UTC))
    assert said(startingTimestamp="2026-01-31T13:00:00+01:00").starting_time_us == noon
    assert said(endingTimestamp=str(noon // 1000)).ending_time_us == noon


def test_places_are_made_absolute_because_workers_run_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_options({"cluster": "embedded:log?partitions=2"}).cluster == f"embedded:{tmp_path}/log?partitions=2"
    with_store = parse_embedded(read_options({"cluster": "embedded:log?fragments=a%20store&partitions=2"}).cluster)
    monkeypatch.chdir("/")
    assert (with_store.fragments, with_store.partitions) == (f"{tmp_path}/a store", 2)
    monkeypatch.chdir(tmp_path)
    assert read_options({"cluster": "fragments:store"}).fragments == os.path.join(tmp_path, "store")


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"startingTransactins": "latest"}, "did you mean startingTransactions"),
        ({"subscribe": "x"}, "there are cluster"),
        ({"topic": "x"}, "has no topics that could be read by name"),
        ({"cluster": "file:/c", "topic": "a b"}, "invalid name of a topic 'a b'"),
        ({"cluster": "file:/c?topic=y", "topic": "x"}, "names topic 'y': name one topic"),
        ({"cluster": "polonaise://a:1/x", "fragments": "store"}, "names partitions by their ids in the cluster"),
        ({"cluster": "embedded:/c?topic=x"}, "an embedded log has no topics"),
        ({"cluster": "zookeeper://a:1/r?topic=x&topic=y"}, "names two topics"),
        ({"path": "/x"}, "name it with"),
        ({"startingTransactions": "first"}, "write earliest, latest, or"),
        ({"startingTransactions": "{}"}, "write earliest"),
        ({"startingTransactions": '{"0": 1.5}'}, "1.5 is no transaction"),
        ({"startingTransactions": '{"0": -3}'}, "-3 is no transaction"),
        ({"startingTransactions": '{"a": 1}'}, "'a' is no partition"),
        ({"startingTransactions": '{"0": true}'}, "True is no transaction"),
        ({"startingTransactions": "latest", "startingOffsets": "latest"}, "given twice"),
        ({"startingTransactions": "latest", "startingTimestamp": "5"}, "give one of them"),
        ({"endingTransactions": "latest", "endingTimestamp": "5"}, "give one of them"),
        ({"startingTimestamp": "6", "endingTimestamp": "5"}, "later than endingTimestamp"),
        ({"startingTimestamp": "9" * 20}, "beyond the range of times: write"),
        ({"startingTimestamp": "yesterday"}, "write a time as"),
        ({"startingTimestamp": "--5"}, "write a time as"),
        ({"startingTimestamp": "2026-01-31T12:00:00"}, "without a time zone"),
        ({"headers": "red"}, "32 bits"),
        ({"headers": "99999999999"}, "32 bits"),
        ({"kafkaColumns": "yes"}, "write true or false"),
        ({"failOnDataLoss": ""}, "is empty"),
        ({"maxTransactionsPerTrigger": "0"}, "above 0"),
        ({"maxTransactionsPerTrigger": "many"}, "whole number above 0"),
        ({"minPartitions": "-1"}, "whole number above 0"),
        ({"maxBytesPerSplit": "lots"}, "with k, m or g, such as 128m"),
        ({"maxBytesPerSplit": "128x"}, "with k, m or g, such as 128m"),
        ({"maxBytesPerSplit": "0m"}, "whole number above 0"),
        ({"timeout": "0"}, "seconds above 0"),
        ({"timeout": "nan"}, "seconds above 0"),
        ({"timeout": "soon"}, "timeout='soon'"),
        ({"decoderSchema": "id long"}, "without a decoder"),
        ({"cluster": "bank"}, "write embedded:PATH"),
        ({"cluster": "kafka:bank"}, "write embedded:PATH"),
        ({"cluster": "embedded:"}, "write embedded:PATH"),
        ({"cluster": "fragments:/x", "fragments": "/y"}, "given twice"),
    ],
)
def test_an_invalid_option_is_refused_with_what_to_write(options: dict[str, str], hint: str) -> None:
    with pytest.raises(BadOption) as refused:
        said(**options)
    assert hint in str(refused.value)


@pytest.mark.parametrize("name", ["queryName", "checkpointLocation", "__partition_columns"])
def test_what_spark_says_beside_the_user_is_passed_over(name: str) -> None:
    assert said(**{name: "x"}) == said()
    there = {"cluster": "embedded:/x"}
    assert write_options({**there, name: "x"}, is_stream=True) == write_options(there, is_stream=True)


def test_a_write_refuses_what_only_a_decoder_would_read() -> None:
    with pytest.raises(BadOption, match=r"no option is named 'decoder\.schemafile'"):
        write_options({"cluster": "embedded:/x", "decoder.schemaFile": "a.avsc"}, is_stream=False)


def test_a_query_of_no_log_asks_for_one() -> None:
    with pytest.raises(BadOption, match=r"no option cluster.*fragments:URL.*storage:PATH"):
        read_options({})


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({}, "no option cluster"),
        ({"cluster": "bank"}, "write embedded:PATH"),
        ({"cluster": "fragments:/x"}, "a fragment store can't be appended to"),
        ({"cluster": "storage:/x"}, "one replica can't be appended to"),
        ({"cluster": "storage://x"}, "one replica can't be appended to"),
        ({"cluster": "fragments:/x", "topic": "orders"}, "a fragment store can't be appended to"),
    ],
)
def test_a_write_is_only_offered_logs(options: dict[str, str], hint: str) -> None:
    with pytest.raises(BadOption) as refused:
        write_options(options, is_stream=False)
    assert hint in str(refused.value)
    assert "embedded:PATH" in str(refused.value)
    assert "fragments:URL" not in str(refused.value)
    assert "storage:PATH" not in str(refused.value)


MOMENT = datetime(2026, 1, 31, 12, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("partition = 3", Ranges(frozenset({3}))),
        ("PARTITION in (1, 2) AND partition IN (2,3)", Ranges(frozenset({2}))),
        ("header = 1 and header = 2", Ranges(headers=frozenset())),
        ("header = 99999999999", Ranges(headers=frozenset())),
        ("transaction_id >= 10 and transaction_id < 20", Ranges(ids=Span(10, 19))),
        ("transaction_id > 10 and transaction_id <= 20 and data is null", Ranges(ids=Span(11, 20))),
        ("transaction_id = 7", Ranges(ids=Span(7, 7))),
        ("transaction_id < -5", Ranges(ids=Span(0, -6))),
        ("timestamp >= '2026-01-31T12:00:00Z'", Ranges(since=MOMENT)),
        ("timestamp < timestamp '2026-01-31 13:00:00+01:00'", Ranges(until=MOMENT + MICROSECOND)),
        ("timestamp <= '9999-12-31T23:59:59.999999Z' and partition = 1", Ranges(frozenset({1}))),
        ("upper(text) = 'A' and partition = 1", Ranges(frozenset({1}))),
        ("text = 'x and partition = 3' and partition = 1", Ranges(frozenset({1}))),
        ("(partition = 3) and header = 2", Ranges(headers=frozenset({2}))),
    ],
)
def test_bounds_joined_by_and_are_taken(where: str, expected: Ranges) -> None:
    assert ranges_in(where) == expected


@pytest.mark.parametrize(
    "where",
    [
        "partition = 1 or header = 2", "not partition = 1", "text = 'x and partition = 3 and y'",
        'text = "x and partition = 3 and y"', "if(header = 1 and partition = 2 and header = 3, true, false)",
        "(header = 1 and partition = 2 and header = 3) = false", "! (a and partition = 2 and b)",
        "a -- and partition = 2 and b", "a /* and partition = 2 and b */",
        r"text = 'it\'s and partition = 2 and so on'", "case when a and partition = 2 and b then 1 end = 1",
        "transaction_id = 'seven'", "transaction_id > 5.5", "partition = '3'", "timestamp > '2026-01-31'",
        "timestamp > '2026-01-31T12:00:00'", "timestamp > '2026-W05-6T12:00:00Z'", "a) and partition = 2 and (b",
        "x.partition = 2", "partition = 1 = false", "partition + 1 = 2", "", "nonsense '",
    ],
)  # fmt: skip
def test_what_is_not_certain_is_left_to_spark(where: str) -> None:
    assert ranges_in(where) == Ranges()


columns = st.sampled_from(["partition", "transaction_id", "header", "other"])
operators = st.sampled_from(["=", "<", ">", "<=", ">=", "=="])
term = st.tuples(columns, operators, st.integers(-3, 6)).map(lambda each: "{} {} {}".format(*each))
conditions = st.recursive(
    term,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "AND", "or"]), inner).map(" ".join),
        inner.map(lambda each: f"({each})"),
        inner.map(lambda each: f"not ({each})"),
        inner.map(lambda each: f"({each}) = false"),
    ),
    max_leaves=6,
)


def holds(where: str, row: dict[str, Any]) -> bool:
    """Python reads these conditions as SQL does, once `=` is written `==`; but for chains, which none has."""
    spelled = where.replace(" AND ", " and ").replace("false", "False").replace(" = ", " == ")
    return bool(eval(spelled, {}, row))


@given(conditions, st.integers(0, 4), st.integers(0, 5), st.integers(-3, 4), st.integers(0, 3))
def test_no_row_that_a_condition_leaves_is_outside_its_ranges(
    where: str, partition: int, id: int, header: int, other: int
) -> None:
    ranges = ranges_in(where)
    inside = (
        (ranges.partitions is None or partition in ranges.partitions)
        and (ranges.headers is None or header in ranges.headers)
        and ranges.ids.first <= id <= ranges.ids.last
    )
    if not inside:
        assert not holds(where, {"partition": partition, "transaction_id": id, "header": header, "other": other})


@pytest.mark.parametrize(
    "text",
    [
        "id long, name string",
        "id LONG NOT NULL COMMENT 'a, b', amount decimal(12,2), `a, b` int",
        "a array<struct<b: int, c: map<string, array<timestamp_ntz>>>>, d interval day to second",
        "a struct<>, n varchar(3), t time(6), `x``y` string collate UTF8_BINARY",
    ],
)
def test_columns_that_spark_takes_are_taken(text: str) -> None:
    assert checked_columns(text) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("account lomg, amount long", "column account is lomg, which is no type: did you mean long"),
        ("account long, amount decimel(12,2)", "column amount is decimel, which is no type: did you mean decimal"),
        ("id long, name", "column name has no type"),
        ("id long,, name string", "a column is missing"),
        ("id long,", "a column is missing"),
        ("id whole", "column id is whole, which is no type: there are boolean, "),
        ("a array<strnig>", "column a is strnig, which is no type: did you mean string"),
        ("a array", "column a is array without the types in it"),
        ("a map<string>", "column a is map of 1 types"),
        ("a struct<b int, c lnog>", "column a: field c is lnog, which is no type: did you mean long"),
        ("a array<int", "column a: a < has no >"),
        ("- int", "'-' is no name of a column"),
    ],
)
def test_a_column_that_is_none_is_named(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        checked_columns(text)
    with pytest.raises(BadOption, match=f"decoderSchema=.*{said}"):
        read_options({"cluster": "embedded:x", "decoder": "json", "decoderSchema": text})


def test_numbers_of_batches() -> None:
    counts = AgreedCounts(-1, ()).with_batch(3, 2).with_batch(4, 2).with_batch(7, 5)
    assert counts == AgreedCounts(7, ((3, 2), (7, 5)))
    assert [counts.of(batch) for batch in (0, 3, 4, 6, 7)] == [2, 2, 2, 2, 5]
    assert AgreedCounts.parse(counts.pack(), "app") == counts
    for value in (b"", b"x", counts.pack()[:-1], AgreedCounts(3, ()).pack(), AgreedCounts(3, ((1, 0),)).pack()):
        with raises_code("sink_state_damaged", match="how the batches of 'app' are divided"):
            AgreedCounts.parse(value, "app")


def test_few_changes_are_remembered() -> None:
    counts = AgreedCounts(-1, ())
    for batch in range(200):
        counts = counts.with_batch(batch, batch + 1)
    assert len(counts.runs) == 64
    assert counts.of(199) == 200


async def test_a_repetition_and_all_tasks_of_a_batch_take_what_was_agreed() -> None:
    async with polonaise.testing.log(partitions=4) as log:
        partitions = partitions_of(log)
        partitions.count = 2  # before the topic grows
        assert await asyncio.gather(*(agreed_count(log, "app", 1, 10.0) for _ in range(5))) == [2] * 5
        partitions.count = 4
        assert await agreed_count(log, "app", 1, 10.0) == 2
        assert await agreed_count(log, "app", 2, 10.0) == 4
        assert await agreed_count(log, "app", 1, 10.0) == 2
        assert await agreed_count(log, "other", 1, 10.0) == 4
        assert list(await log.list_registers(b"spark/", 0)) == sorted([counts_key("app"), counts_key("other")])
