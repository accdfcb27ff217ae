"""Percentiles, the best of runs, and what a noisy sitting is."""

from __future__ import annotations

import pytest
from benchmarks.loads import Load, Missing, best, percentile
from benchmarks.peers.figures import Configuration, Floor, Sitting

DIFFER = "its floors differ by more than twice"


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([7.0], 50, 7.0),
        ([7.0], 99, 7.0),
        ([1.0, 2.0], 50, 1.0),
        ([3.0, 1.0, 2.0], 50, 2.0),
        ([float(number) for number in range(1, 101)], 99, 99.0),
        ([float(number) for number in range(1, 102)], 99, 100.0),
        ([float(number) for number in range(1, 11)], 99, 10.0),
        ([float(number) for number in range(1, 11)], 0, 1.0),
        ([float(number) for number in range(1, 11)], 100, 10.0),
    ],
)
def test_a_percentile_is_one_of_the_values(values: list[float], percent: float, expected: float) -> None:
    assert percentile(values, percent) == expected


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_a_load_is_its_throughput_and_its_latencies() -> None:
    assert Load.measured(4, 2.0, [1.0, 4.0, 2.0, 3.0]) == Load(2.0, 2.0, 4.0)


@pytest.mark.parametrize(("count", "took_s"), [(0, 1.0), (5, 0.0)])
def test_a_load_that_acknowledged_nothing_is_no_figure(count: int, took_s: float) -> None:
    with pytest.raises(Missing, match="no transaction was acknowledged"):
        Load.measured(count, took_s, [1.0])


def test_the_best_run_is_the_quickest_for_one_outstanding_and_the_fullest_for_many() -> None:
    quick, full = Load(900, p50_ms=1.0, p99_ms=9.0), Load(1_000, p50_ms=1.1, p99_ms=2.0)
    assert best(1, [full, quick, full]) is quick
    assert best(64, [quick, full, quick]) is full


@pytest.mark.parametrize(
    ("before", "after", "noise"),
    [
        (Floor(0.2, 0.04), Floor(0.2, 0.04), []),
        (Floor(0.2, 0.04), Floor(0.4, 0.02), []),
        (Floor(0.2, 0.04), Floor(0.41, 0.04), [DIFFER]),
        (Floor(0.41, 0.04), Floor(0.2, 0.04), [DIFFER]),
        (Floor(0.2, 0.04), Floor(0.2, 0.081), [DIFFER]),
        (Floor(0.2, 0.04, 0.2), Floor(0.2, 0.04, 0.1), []),
        (Floor(0.2, 0.04, 0.1), Floor(0.2, 0.04, 0.55), ["other programs had 55% of the processors"]),
        (Floor(0.2, 0.04, 0.3), Floor(0.5, 0.04), [DIFFER, "other programs had 30% of the processors"]),
    ],
)
def test_a_sitting_is_noisy_when_its_floors_differ_or_others_are_at_work(
    before: Floor, after: Floor, noise: list[str]
) -> None:
    sitting = Sitting(Configuration("a", "A", "it is there", durable=True, client="C"), before=before, after=after)
    assert sitting.noise == noise


def test_a_sitting_is_compared_with_the_mean_of_its_floors() -> None:
    configuration = Configuration("a", "A", "it is there", durable=True, client="C")
    sitting = Sitting(configuration, before=Floor(0.2, 0.04), after=Floor(0.4, 0.04))
    assert sitting.fdatasync_ms == pytest.approx(0.3)
