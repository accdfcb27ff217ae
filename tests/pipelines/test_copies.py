"""Where copies of a partition are: a storage directory is read wherever the driver is."""

from __future__ import annotations

from pathlib import Path

from polonaise.fragments.protocol.coverage import Span
from polonaise.pipelines.copies import StorageCopy
from rigs.storagefiles import make_storage


async def test_a_storage_directory_is_read_inside_an_event_loop(tmp_path: Path) -> None:
    """As the driver is in one in every notebook."""
    copy = StorageCopy(str(make_storage_beside(tmp_path)), 0)
    assert [batch.first for batch in copy.batches(Span(4, 9))] == [4, 6, 8]


def make_storage_beside(directory: Path) -> Path:
    """Its own event loop needs a thread of its own."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make_storage, directory / "storage").result()
