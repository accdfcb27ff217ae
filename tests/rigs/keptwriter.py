"""Writes what `tests/upgrades` reads, with the sources of one version: a program.

    git archive COMMIT | tar x -C OLD
    PYTHONPATH=OLD/src:tests python -m rigs.keptwriter VERSION COMMIT

It makes a cluster of three storage nodes, fills it by every way into the log, lets a view, a stream of Spark's and an
archive follow it, and packs what is on disk then into `tests/upgrades/kept/VERSION`, with a manifest of what a reader
must find. Nothing of it is written again: what a version has left behind stays as it is.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

import polonaise
import polonaise.blocking
from polonaise.node.local import LocalCluster
from polonaise.spark.sessions import session
from rigs import keptlog
from rigs.programs import output_of, run_polonaise

SECONDS = 60


def fill(log: polonaise.blocking.Log) -> None:
    """Append by every way that an application has."""
    for partition in range(keptlog.PARTITIONS):
        for number in range(keptlog.ROUNDS):
            receipt = log.append(keptlog.body(number), partition, header=number)
            if number % 8 == 0:
                receipt.result(timeout=SECONDS)
        log.flush(partition, timeout=SECONDS)
        lock = polonaise.Lock("account", 1)
        log.append(keptlog.body(1), partition, locks=[lock]).result(timeout=SECONDS)
        group = polonaise.Group.of([keptlog.body(number) for number in range(9)], headers=list(range(9)))
        log.append_group(group, partition).result(timeout=SECONDS)
        producer = log.producer(keptlog.PRODUCER, partition=partition, timeout=SECONDS)
        for sequence in range(3):
            producer.append(sequence, keptlog.body(sequence), timeout=SECONDS)
        for value in (b"1", b"2"):
            change = polonaise.Change.set(keptlog.REGISTER, value)
            log.append(keptlog.body(1), partition, changes=[change]).result(timeout=SECONDS)


def followed(cluster: LocalCluster, directory: Path) -> dict[str, Any]:
    """Let a view, the sink and a stream of Spark's, and an archive follow the log; return what they must hold."""
    spark = session("local[1]", name="kept", conf={"spark.ui.enabled": "false"})
    try:
        rows = spark.createDataFrame([(0, b"1 5"), (1, b"2 7")], "partition int, data binary")
        sink = {"cluster": cluster.coordinator, "txnAppId": keptlog.SINK, "txnVersion": "1"}
        sink["staging"] = str(directory / "staging")
        rows.write.format("polonaise").mode("append").options(**sink).save()
        stream = spark.readStream.format("polonaise").option("cluster", cluster.coordinator).load()
        writing = stream.writeStream.format("noop").option("checkpointLocation", str(directory / "checkpoint"))
        query = writing.trigger(availableNow=True).start()
        query.awaitTermination()
        read = query.lastProgress["numInputRows"]
    finally:
        spark.stop()
    view = keptlog.KeptView(f"sqlite:///{directory / 'view.sqlite'}")
    with polonaise.blocking.connect(cluster.coordinator, view=view) as log:
        for partition in range(keptlog.PARTITIONS):
            log.wait_applied(log.high_water_mark(partition, timeout=SECONDS), partition, timeout=SECONDS)
        document = manifest_of(log)
    with sqlite3.connect(directory / "view.sqlite") as database:
        document["balances"] = database.execute("SELECT account, balance FROM balances ORDER BY 1").fetchall()
        document["marks"] = database.execute("SELECT partition, high_water_mark FROM polonaise_marks").fetchall()
    output_of(run_polonaise("archive", "run", cluster.coordinator, directory / "fragments", "--rest"))
    document["stream_rows"] = read
    return document


def manifest_of(log: polonaise.blocking.Log) -> dict[str, Any]:
    """Return what a reader must find in the log."""
    parts = range(keptlog.PARTITIONS)
    return {
        "cluster_key": log.cluster_key.hex(),
        "transactions": [[keptlog.row_of(tx) for tx in log.read(part, timeout=SECONDS)] for part in parts],
        "high_water_marks": [log.high_water_mark(part, timeout=SECONDS) for part in parts],
        "registers": [
            {key.hex(): value.hex() for key, value in log.list_registers(partition=part, timeout=SECONDS).items()}
            for part in parts
        ],
        "own_client": log.client_id,
    }


def main(version: str, commit: str) -> None:
    """Write the directory of this version. Raises FileExistsError if it is there."""
    target = keptlog.KEPT / version
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "kept"
        cluster = LocalCluster(directory, partitions=keptlog.PARTITIONS, segment_bytes=keptlog.SEGMENT_BYTES)
        with cluster:
            with polonaise.blocking.connect(cluster.coordinator) as log:
                fill(log)
            document = followed(cluster, directory)
            document["addresses"] = [node.address for node in cluster.storage]
        with polonaise.blocking.connect(f"embedded:{directory / 'embedded'}?partitions={keptlog.PARTITIONS}") as log:
            fill(log)
            document["embedded"] = manifest_of(log)
        for left in [*directory.glob("*.log"), *directory.glob("**/*.lock"), *directory.glob("**/*.crc")]:
            left.unlink()
        shutil.rmtree(directory / "staging", ignore_errors=True)
        keptlog.pack(directory, target / "files.tar.xz")
    document = {"version": version, "commit": commit, "source": sys.version.split()[0], **document}
    document["frames"] = list(keptlog.frames())
    (target / "manifest.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    main(*sys.argv[1:])
