"""A cluster of every version goes on with today's nodes, at other addresses, with its streams and its sink."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession

import polonaise.blocking
from polonaise.node.local import ChildNode
from rigs import keptlog
from rigs.programs import output_of, run_polonaise
from rigs.spark import forget

pytestmark = pytest.mark.slow

SECONDS = 60


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


def test_a_cluster_reads_as_it_was_written_and_goes_on(version: str, tmp_path: Path) -> None:
    kept = keptlog.unpack(version, tmp_path)
    for round_ in range(2):
        with running(tmp_path, kept) as cluster, polonaise.blocking.connect(cluster.address) as log:
            for partition, rows in enumerate(kept["transactions"]):
                read = [keptlog.row_of(tx) for tx in log.read(partition, timeout=SECONDS)]
                assert read[: len(rows)] == rows
                assert [row[2] for row in read[len(rows) :]] == ["1 1"] * round_
                log.append(b"1 1", partition).result(timeout=SECONDS)
    for storage in range(keptlog.STORAGE):
        assert run_polonaise("segment", "verify", tmp_path / f"storage-{storage}").returncode == 0


def test_a_stream_goes_on_at_its_checkpoint_and_the_sink_knows_what_it_has_written(
    spark: SparkSession, version: str, tmp_path: Path
) -> None:
    kept = keptlog.unpack(version, tmp_path)
    with running(tmp_path, kept) as cluster:
        try:
            with polonaise.blocking.connect(cluster.address) as log:
                ids = [log.append(b"4 4", partition).result(timeout=SECONDS).id for partition in range(2)]
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
