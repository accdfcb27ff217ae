"""Times on their way from Spark to Python as numbers: Spark's own way leads through the calendar of this process, in
which a time may be beyond what Python has, and an hour of each autumn is two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - the name that everybody gives it
from pyspark.sql.types import DateType, TimestampNTZType, TimestampType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def with_numbers(frame: DataFrame) -> tuple[DataFrame, list[str]]:
    """Return the frame with microseconds since 1970 in place of each `timestamp`, and the names of these columns."""
    names = [each.name for each in frame.schema.fields if isinstance(each.dataType, TimestampType)]
    return frame.withColumns({name: F.unix_micros(F.col(f"`{name}`")) for name in names}) if names else frame, names


def moment_of(microseconds: int | None) -> datetime | None:
    """Return the moment, in UTC, of microseconds since 1970. Raises `OverflowError` for a year that Python has not."""
    return None if microseconds is None else _EPOCH + timedelta(microseconds=microseconds)


def for_python(frame: DataFrame) -> tuple[DataFrame, Mapping[str, Callable[[Any], Any]]]:
    """Return a frame that can be collected whatever its times and dates are, and what makes them of its columns."""
    numbered, names = with_numbers(frame)
    texts = {
        each.name: each.dataType
        for each in frame.schema.fields
        if isinstance(each.dataType, DateType | TimestampNTZType)
    }
    told = numbered.withColumns({name: F.col(f"`{name}`").cast("string") for name in texts}) if texts else numbered
    made: dict[str, Callable[[Any], Any]] = dict.fromkeys(names, moment_of)
    made |= {
        name: date.fromisoformat if isinstance(kind, DateType) else datetime.fromisoformat
        for name, kind in texts.items()
    }
    return told, made


def with_times(row: Mapping[str, Any], made: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """Return a collected row of `for_python` with its times and dates; one that Python does not have stays as it is."""
    times: dict[str, Any] = {}
    for name, make in made.items():
        try:
            times[name] = None if row[name] is None else make(row[name])
        except (ValueError, OverflowError):
            times[name] = row[name]
    return {**row, **times}
