"""Frames that are read several times, and computed once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark import StorageLevel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@contextmanager
def kept_on_disk(frame: DataFrame) -> Iterator[DataFrame]:
    """Keep the frame's rows on disk from when they are first read until the `with` statement ends."""
    kept = frame.persist(StorageLevel.DISK_ONLY)
    try:
        yield kept
    finally:
        kept.unpersist()
