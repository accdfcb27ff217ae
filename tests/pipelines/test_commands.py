"""Jobs as programs: `python -m polonaise.pipelines.…`, what they print, and one that is killed on the way."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import polonaise
from polonaise.admin.archive import verify
from polonaise.fragments.store import open_store
from polonaise.pipelines.archive import HowToArchive, archive
from rigs.quickspark import without_spark
from rigs.waiting import block_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

STARTED_S = 120.0
SOURCE = str(Path(polonaise.__file__).parents[1])


@contextmanager
def program(job: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A job in a process of its own; whatever it started is gone at the end."""
    with subprocess.Popen(
        [sys.executable, "-m", f"polonaise.pipelines.{job}", *arguments],
        env={**without_spark(), "PYTHONPATH": SOURCE},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def ended(job: str, *arguments: str) -> tuple[int, str, str]:
    with program(job, *arguments) as process:
        output, errors = process.communicate(timeout=STARTED_S)
        return process.returncode, output, errors


def filled(address: str, count: int, at_once: int = 10) -> list[bytes]:
    """A log; the batches of partition 0."""
    with polonaise.blocking.connect(address) as log:
        for start in range(0, count, at_once):
            receipts = [log.append(b"%d" % n * 10, 0) for n in range(start, start + at_once)]
            receipts[-1].result(timeout=30)
        return [bytes(batch.view) for batch in log.read_batches(0)]


def test_an_archive_as_a_program(tmp_path: Path) -> None:
    address, store, run = f"embedded:{tmp_path / 'log'}", str(tmp_path / "store"), tmp_path / "run.json"
    filled(address, 100)
    status, output, errors = ended("archive", address, store, "--rest", "--json", "--report", str(run))
    assert status == 0, errors
    told: dict[str, Any] = json.loads(output)
    assert told == json.loads(run.read_text())
    assert (told["job"], told["outcome"]) == ("archive", "well")
    (partition,) = told["report"]["partitions"]
    assert (partition["last"], partition["transactions"]) == (99, 100)

    status, _, errors = ended("archive", "embedded:nowhere", store)
    assert (status, len(errors.splitlines())) == (1, 1)
    assert errors.startswith("polonaise: [not_initialized]")


def test_an_archive_that_is_killed_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    address, store = f"embedded:{tmp_path / 'log'}", tmp_path / "store"
    batches = filled(address, 60_000, at_once=1_000)
    with program("archive", address, str(store), "--fragment-mib", "1", "--rest") as process:
        block_until(lambda: list(store.glob("0/*.parquet")) or process.poll() is not None, within_s=STARTED_S)
        assert process.poll() is None, process.communicate()
        process.kill()
        process.wait()
    report = archive(spark, address, str(store), HowToArchive(fragment_bytes=2**20, rest=True))
    assert report.partitions[0].last == polonaise.Batch.parse(batches[-1]).last
    found = asyncio.run(verify(open_store(str(store)), 0))
    assert found.troubles == []
    assert found.transactions == 60_000
