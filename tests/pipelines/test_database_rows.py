"""Rows on their way from Spark into a SQL database: moments are the same wherever the driver runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.types import IntegerType, StructField, StructType, TimestampNTZType, TimestampType

from polonaise.pipelines.sqltarget import _chunks

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture(params=["UTC", "Asia/Tokyo", "America/New_York"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where this process believes to be."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


class Rows:
    """A DataFrame, as far as it is read here: Spark hands on moments without a zone, as they are where Python is."""

    schema = StructType(
        [StructField("at", TimestampType()), StructField("local", TimestampNTZType()), StructField("n", IntegerType())]
    )

    def toLocalIterator(self, prefetchPartitions: bool) -> Iterator[Row]:  # noqa: N802, N803 - Spark's names
        moment = TimestampType().fromInternal(round(NOON.timestamp() * 1_000_000))
        yield Row(at=moment, local=NOON.replace(tzinfo=None), n=1)
        yield Row(at=None, local=None, n=2)


def test_a_moment_gets_its_zone_and_what_has_none_stays_without(zone: str) -> None:
    rows: Any = Rows()
    ((first, second),) = _chunks(rows)
    assert (first["at"], first["at"].tzinfo) == (NOON, UTC)
    assert first["local"] == NOON.replace(tzinfo=None)
    assert second == {"at": None, "local": None, "n": 2}
