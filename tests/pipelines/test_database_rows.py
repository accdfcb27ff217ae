"""Rows on their way from Spark into a SQL database: moments are the same wherever the driver runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, date, datetime

import pytest

from polonaise.pipelines.moments import moment_of, with_times

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture(params=["UTC", "Asia/Tokyo", "America/New_York"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where this process believes to be."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("microseconds", "moment"),
    [
        (round(NOON.timestamp()) * 1_000_000 + 1, NOON.replace(microsecond=1)),
        (-62_135_596_800_000_000, datetime(1, 1, 1, tzinfo=UTC)),
        (253_402_300_799_999_999, datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
        (1_793_511_000_000_000, datetime(2026, 11, 1, 5, 30, tzinfo=UTC)),  # 01:30 in New York, for the first time
        (1_793_514_600_000_000, datetime(2026, 11, 1, 6, 30, tzinfo=UTC)),
        (None, None),
    ],
)
def test_a_moment_is_the_same_in_every_zone_and_year(zone: str, microseconds: int | None, moment: datetime) -> None:
    assert moment_of(microseconds) == moment


def test_what_python_does_not_have_is_told_as_spark_tells_it() -> None:
    made = {"at": moment_of, "local": datetime.fromisoformat, "day": date.fromisoformat}
    row = {"at": 1, "local": "0001-01-01 00:00:00", "day": "9999-12-31", "n": 7}
    assert with_times(row, made) == {
        "at": datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
        "local": datetime(1, 1, 1),  # noqa: DTZ001 - without a zone
        "day": date(9999, 12, 31),
        "n": 7,
    }
    far = {"at": 2**62, "local": "+10000-01-01 00:00:00", "day": None}
    assert with_times(far, made) == far
