"""Logs, clusters, archives and views of every version are read as they were written, and gone on with."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession

import polonaise.blocking
from polonaise.blocking.log import Log
from polonaise.node.local import ChildNode
from rigs import keptlog
from rigs.programs import output_of, run_polonaise
from rigs.shell import Shell
from rigs.spark import forget

SECONDS = 30
PARTITIONS = range(keptlog.PARTITIONS)


def assert_holds(log: Log, kept: dict[str, Any], more: list[bytes]) -> None:
    """Check that a log has what the manifest says, row for row, and then these bodies in partition 0."""
    assert log.cluster_key.hex() == kept["cluster_key"]
    for partition in PARTITIONS:
        there = kept["transactions"][partition]
        read = [keptlog.row_of(tx) for tx in log.read(partition, timeout=SECONDS)]
        assert read[: len(there)] == there
        assert [row[2].encode() for row in read[len(there) :]] == ([] if partition else more)
        registers = log.list_registers(partition=partition, timeout=SECONDS)
        kept_registers = {
            bytes.fromhex(key): bytes.fromhex(value) for key, value in kept["registers"][partition].items()
        }
        assert {key: registers.get(key) for key in kept_registers} == kept_registers


@pytest.mark.slow
def test_an_embedded_log_reads_as_it_was_written_is_appended_to_and_opened_again(version: str, tmp_path: Path) -> None:
    kept = keptlog.unpack(version, tmp_path)["embedded"]
    address = f"embedded:{tmp_path / 'embedded'}"
    more: list[bytes] = []
    for body in (b"1 1", b"2 2"):
        with polonaise.blocking.connect(address) as log:
            assert_holds(log, kept, more)
            assert log.client_id > kept["own_client"]
            mark = log.high_water_mark(0, timeout=SECONDS)
            lock = polonaise.Lock("account", 1)
            log.append(body, 0, locks=[lock], high_water_mark=mark).result(timeout=SECONDS)
            more.append(body)
    with polonaise.blocking.connect(address) as log:
        assert_holds(log, kept, more)


def test_a_producer_goes_on_with_its_numbers(version: str, tmp_path: Path) -> None:
    kept = keptlog.unpack(version, tmp_path)["embedded"]
    with polonaise.blocking.connect(f"embedded:{tmp_path / 'embedded'}") as log:
        before = log.high_water_mark(0, timeout=SECONDS)
        producer = log.producer(keptlog.PRODUCER, partition=0, timeout=SECONDS)
        assert producer.last_sequence == 2
        again = producer.append(2, keptlog.body(2), timeout=SECONDS)
        (first,) = [row for row in kept["transactions"][0] if row[0] == again]
        assert first[2] == keptlog.body(2).decode(), "the id that it was given then"
        assert producer.append(3, b"3 3", timeout=SECONDS) > before


def test_what_was_archived_is_whole_and_makes_the_log_again(version: str, tmp_path: Path, shell: Shell) -> None:
    kept = keptlog.unpack(version, tmp_path)
    store, directory = tmp_path / "fragments", tmp_path / "restored"
    assert shell.run("archive", "verify", store).status == 0
    said = shell.run("archive", "restore", store, directory)
    assert said.status == 0, said.errors
    with polonaise.blocking.connect(f"embedded:{directory}?fragments={store}") as log:
        assert_holds(log, kept, [])


@pytest.mark.slow
def test_a_restored_log_is_archived_into_the_store_of_that_version(version: str, tmp_path: Path, shell: Shell) -> None:
    keptlog.unpack(version, tmp_path)
    store, directory = tmp_path / "fragments", tmp_path / "restored"
    before = {path: path.read_bytes() for path in store.rglob("*.parquet")}
    assert shell.run("archive", "restore", store, directory).status == 0
    address = f"embedded:{directory}?fragments={store}"
    with polonaise.blocking.connect(address) as log:
        log.append(b"1 1", 0).result(timeout=SECONDS)
    said = shell.run("archive", "run", address, store, "--rest")
    assert said.status == 0, said.errors
    after = {path: path.read_bytes() for path in store.rglob("*.parquet")}
    assert before.items() < after.items()
    assert shell.run("archive", "verify", store).status == 0


def test_segments_of_every_version_are_verified_offline(version: str, tmp_path: Path, shell: Shell) -> None:
    keptlog.unpack(version, tmp_path)
    for storage in range(keptlog.STORAGE):
        said = shell.run("segment", "verify", tmp_path / f"storage-{storage}")
        assert said.status == 0, said


def test_a_view_goes_on_at_its_marks(version: str, tmp_path: Path, shell: Shell) -> None:
    kept = keptlog.unpack(version, tmp_path)
    store, directory, table = tmp_path / "fragments", tmp_path / "restored", tmp_path / "view.sqlite"
    assert shell.run("archive", "restore", store, directory).status == 0

    def rows(statement: str) -> list[list[int]]:
        with sqlite3.connect(table) as database:
            return [list(row) for row in database.execute(statement)]

    balances = "SELECT account, balance FROM balances ORDER BY 1"
    marks = "SELECT partition, high_water_mark FROM polonaise_marks ORDER BY 1"
    assert rows(balances) == kept["balances"]
    assert rows(marks) == sorted(kept["marks"])
    address = f"embedded:{directory}?fragments={store}"
    for _ in range(2):
        before = dict(map(tuple, rows(balances)))
        with polonaise.blocking.connect(address, view=keptlog.KeptView(f"sqlite:///{table}")) as log:
            receipt = log.append(b"3 1000", 1).result(timeout=SECONDS)
            log.wait_applied(receipt.id, 1, timeout=SECONDS)
        assert dict(map(tuple, rows(balances))) == {**before, 3: before[3] + 1000}, "nothing is applied again"


OPEN_S = 60


class Running(NamedTuple):
    """A cluster of an earlier version that today's nodes run."""

    address: str
    kept: dict[str, Any]
    directory: Path


def names_in(directory: Path) -> list[str]:
    """The names of the storage nodes as the coordinator has them, in the order of their directories."""
    _, _, description = (directory / "coordinator" / "description").read_bytes().partition(b"\n")
    names: list[str] = json.loads(description)["storage"]
    return names


@contextlib.contextmanager
def running(directory: Path, kept: dict[str, Any]) -> Iterator[Running]:
    """Run the nodes as docs/upgrading.md says for nodes that are at other addresses from now on."""
    coordinator = f"file:{directory / 'coordinator'}"
    nodes = []
    try:
        for number, name in enumerate(names_in(directory)):
            command = ["storage", "run", "--directory", str(directory / f"storage-{number}"), "--name", name]
            nodes.append(ChildNode(name, command, directory / f"{number}.log"))
            nodes[-1].start()
            moved = run_polonaise("storage", "move", name, nodes[-1].address, "--coordinator", coordinator)
            assert "it answers there" in output_of(moved)
        server = ["server", "run", "--coordinator", coordinator]
        nodes.append(ChildNode("server", server, directory / "server.log"))
        nodes[-1].start()
        yield Running(coordinator, kept, directory)
    finally:
        for node in reversed(nodes):
            node.stop()
    assert [node.exit_status for node in nodes] == [0] * len(nodes)


@pytest.mark.slow
def test_a_cluster_reads_as_it_was_written_and_goes_on(version: str, tmp_path: Path) -> None:
    kept = keptlog.unpack(version, tmp_path)
    for round_ in range(2):
        with running(tmp_path, kept) as cluster, polonaise.blocking.connect(cluster.address) as log:
            for partition, rows in enumerate(kept["transactions"]):
                read = [keptlog.row_of(tx) for tx in log.read(partition, timeout=OPEN_S)]
                assert read[: len(rows)] == rows
                assert [row[2] for row in read[len(rows) :]] == ["1 1"] * round_
                log.append(b"1 1", partition).result(timeout=OPEN_S)
    for storage in range(keptlog.STORAGE):
        assert run_polonaise("segment", "verify", tmp_path / f"storage-{storage}").returncode == 0


@pytest.mark.slow
def test_a_stream_goes_on_at_its_checkpoint_and_the_sink_knows_what_it_has_written(
    spark: SparkSession, version: str, tmp_path: Path
) -> None:
    kept = keptlog.unpack(version, tmp_path)
    with running(tmp_path, kept) as cluster:
        try:
            with polonaise.blocking.connect(cluster.address) as log:
                ids = [log.append(b"4 4", partition).result(timeout=OPEN_S).id for partition in range(2)]
            sink = {"cluster": cluster.address, "txnAppId": keptlog.SINK, "staging": str(tmp_path / "staging")}
            rows = spark.createDataFrame([(0, b"6 6")], "partition int, data binary")
            for batch in ("1", "2", "2"):  # the first was written by that version
                rows.write.format("polonaise").mode("append").options(**sink, txnVersion=batch).save()
            found: list[tuple[int, int, bytes]] = []

            def take(frame: DataFrame, _: int) -> None:
                found.extend((row.partition, row.transaction_id, bytes(row.data)) for row in frame.collect())

            stream = spark.readStream.format("polonaise").option("cluster", cluster.address).load()
            writing = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
            query = writing.trigger(availableNow=True).start()
            query.awaitTermination()
            assert sorted(found) == [(0, ids[0], b"4 4"), (0, ids[0] + 1, b"6 6"), (1, ids[1], b"4 4")]
        finally:
            forget()
