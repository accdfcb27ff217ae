"""Where copies of a partition are: a storage directory is read wherever the driver is."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from polonaise.errors import BadOption
from polonaise.fragments.protocol.coverage import Span
from polonaise.pipelines.logaudit import StorageCopy, audit_log
from rigs.storagefiles import make_storage


async def test_a_storage_directory_is_read_inside_an_event_loop(tmp_path: Path) -> None:
    """As the driver is in one in every notebook."""
    copy = StorageCopy(str(make_storage_beside(tmp_path)), 0)
    assert [batch.first for batch in copy.batches(Span(4, 9))] == [4, 6, 8]


def test_segments_that_do_not_say_their_partition_are_no_storage_to_audit(tmp_path: Path) -> None:
    storage, spark = make_storage_beside(tmp_path), _Unused()
    (segment, *_) = sorted((storage / "0").glob("*.seq"))
    copied = shutil.copytree(storage / "0", tmp_path / "copied")
    for path in (segment, copied):
        with pytest.raises(BadOption, match=f"which partition {path} belongs: name a storage directory"):
            audit_log(spark, f"file:{tmp_path}", storage=[str(storage), str(path)])


class _Unused:
    """Stands for a Spark session that nothing is asked of."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"Spark is asked for {name}")


def make_storage_beside(directory: Path) -> Path:
    """Its own event loop needs a thread of its own."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make_storage, directory / "storage").result()
