"""Where axes are marked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.pipelines.charts.ticks import number_scale, time_ticks


@pytest.mark.parametrize(
    ("low", "high", "labels", "factor"),
    [
        (0, 97, "0 20 40 60 80 100", ""),
        (0, 4722, "0 1,000 2,000 3,000 4,000 5,000", ""),
        (-35_000, 118_000, "−50,000 0 50,000 100,000 150,000", ""),
        (0, 0.3, "0.0 0.1 0.2 0.3", ""),
        (0, 1_400_000, "0 500,000 1,000,000 1,500,000", ""),
        (0, 1_850_000, "0.0 0.5 1.0 1.5 2.0", "millions"),
        (0, 9_000_000, "0 2 4 6 8 10", "millions"),
        (0, 2_100_000, "0.0 0.5 1.0 1.5 2.0 2.5", "millions"),
        (0, 4.2e12, "0 1 2 3 4 5", "trillions"),
        (0, 0, "0.0 0.2 0.4 0.6 0.8 1.0", ""),
        (1e-9, 3e-9, "0.0000000010 0.0000000015 0.0000000020 0.0000000025 0.0000000030", ""),
    ],
)
def test_numbers_are_round(low: float, high: float, labels: str, factor: str) -> None:
    scale = number_scale(low, high)
    assert " ".join(tick.label for tick in scale.ticks) == labels
    assert scale.factor == factor
    assert scale.low <= low
    assert scale.high >= high


def test_what_there_are_no_halves_of() -> None:
    assert [tick.label for tick in number_scale(0, 2, whole=True).ticks] == ["0", "1", "2"]


@given(st.floats(-1e15, 1e15), st.floats(1e-6, 1e15))
def test_an_axis_holds_all_and_has_a_few_ticks(low: float, span: float) -> None:
    high = low + span
    scale = number_scale(low, high)
    slack = abs(scale.high - scale.low) * 1e-6 + abs(low) * 1e-12
    assert scale.low <= low + slack
    assert scale.high >= high - slack
    assert 2 <= len(scale.ticks) <= 9


START = datetime(1993, 1, 5, 14, 2, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("span", "first"),
    [
        (timedelta(seconds=8), ("14:02:00", "5 Jan 1993")),
        (timedelta(minutes=5), ("14:02", "5 Jan 1993")),
        (timedelta(hours=5), ("15:00", "5 Jan 1993")),
        (timedelta(days=6), ("6 Jan", "1993")),
        (timedelta(days=50), ("11 Jan", "1993")),
        (timedelta(days=200), ("Feb", "1993")),
        (timedelta(days=600), ("Apr", "1993")),
        (timedelta(days=4000), ("1994", "")),
        (timedelta(days=400_000), ("2000", "")),
    ],
)
def test_times_begin_with_a_period(span: timedelta, first: tuple[str, str]) -> None:
    ticks = time_ticks(START, START + span.total_seconds())
    assert (ticks[0].label, ticks[0].below) == first
    assert 2 <= len(ticks) <= 10
    assert all(START <= tick.at <= START + span.total_seconds() for tick in ticks)


def test_a_year_is_said_where_it_changes() -> None:
    ticks = time_ticks(START, START + 400 * 86400)
    assert [tick.below for tick in ticks if tick.below] == ["1993", "1994"]


def test_no_period_is_shorter_than_asked_for() -> None:
    at = datetime(1993, 1, 1, tzinfo=UTC).timestamp()
    assert [tick.label for tick in time_ticks(at, at, least_s=30 * 86400)] == ["Jan"]
