"""A task holds a part of its split at a time: its memory does not grow with the split, by the process's own account."""

from __future__ import annotations

from pathlib import Path

import pytest

import polonaise
from rigs.programs import output_of
from rigs.spark import filled
from rigs.sparkprocesses import SOURCE, run

pytestmark = pytest.mark.slow

MIB = 1024
"""Of what `getrusage` says, which is KiB."""
BODY = 500
SOME, ALL = 270_000, 540_000
"""Transactions of two splits: 135 MB, which is more than two row groups of a fragment, and 270 MB. While a row group is
read, the last batch of the one before is still in somebody's hands, and with it all of that one."""

GROUP = 4_000  # transactions that are appended together
DECODERS = """
import resource

kept = []

def peak(body):
    return {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}

def keeping(body):
    kept.append(body)
    return peak(body)
"""
MEASURE = """
import sys
from polonaise.spark.sessions import JAVA_OPTIONS, QUICK_START, session

spark = session("local[1]", conf={JAVA_OPTIONS: QUICK_START, "spark.python.worker.reuse": "false"})
for cluster, decoder in (("CLUSTER", "peak"), ("fragments:STORE", "peak"), ("CLUSTER", "keeping")):
    for end in (SOME, ALL):
        read = spark.read.format("polonaise").options(
            cluster=cluster, endingTransactions='{"0": %d}' % end, maxBytesPerSplit="1g",
            decoder=f"task_decoders:{decoder}", decoderSchema="peak long")
        frame = read.schema("data binary, peak long").load()
        assert frame.rdd.getNumPartitions() == 1, "one split"
        print("peak", *frame.selectExpr("sum(length(data))", "max(peak)").first())
"""


def test_a_tasks_memory_does_not_grow_with_its_split(tmp_path: Path) -> None:
    (tmp_path / "task_decoders.py").write_text(DECODERS)
    with filled(tmp_path, 0) as log:
        for first in range(0, ALL, GROUP):
            bodies = [b"%010d" % id * (BODY // 10) for id in range(first, first + GROUP)]
            log.log.append_group(polonaise.Group.of(bodies), 0).result(60)
        log.archive(fragment_bytes=1_000_000_000)
        assert len(list(Path(log.store).rglob("*.parquet"))) == 1
        script = MEASURE.replace("CLUSTER", log.address).replace("STORE", log.store)
        script = script.replace("SOME", str(SOME)).replace("ALL", str(ALL))
        done = run(script, tmp_path, PYTHONPATH=f"{SOURCE}:{tmp_path}")
    said = [line.split()[1:] for line in output_of(done).splitlines() if line.startswith("peak ")]
    read = [int(size) for size, _ in said]
    assert read == [BODY * SOME, BODY * ALL] * 3
    peaks = [int(peak) // MIB for _, peak in said]
    more = (read[1] - read[0]) // (MIB * 1024)
    grown = [peaks[place + 1] - peaks[place] for place in (0, 2, 4)]
    assert grown[0] < more / 2, f"from the servers: {peaks} MiB"
    assert grown[1] < more / 2, f"from a fragment: {peaks} MiB"
    assert grown[2] > more / 2, f"a task that keeps all it has read is told by this: {peaks} MiB"
