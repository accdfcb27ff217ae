"""An invalid option is refused by name, before anything runs."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from polonaise.errors import BadOption
from polonaise.node.embedded import parse_embedded
from polonaise.spark.options import EARLIEST, LATEST, MIB, ReadOptions, microseconds, read_options, write_options

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
