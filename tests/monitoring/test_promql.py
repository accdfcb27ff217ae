"""The evaluator of the alert rules: each operator and function that a rule uses means what it means to Prometheus."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from rigs import alerts
from rigs.alerts import Prometheus, rules
from rigs.promql import _FUNCTIONS, _TOGETHER, Evaluation, Labels, Series, Vector

NOW_S = 10_000.0
MINUTE = 60.0


def labels(text: str = "") -> Labels:
    return frozenset((name, value) for name, _, value in (each.partition("=") for each in text.split(",") if each))


def scraped(**values: Any) -> Series:
    """Return series that were scraped once a minute, until now: a number, or a list whose last is the one of now.

    Labels are given as `{"a=1": …}`; None stands for a scrape that lacked the series.
    """
    series = Series()
    for name, given in values.items():
        for at, told in (given if isinstance(given, dict) else {"": given}).items():
            each = told if isinstance(told, list) else [told]
            for number, value in enumerate(reversed(each)):
                points = series._points.setdefault(name, {}).setdefault(labels(at), [])
                points.insert(0, (NOW_S - number * MINUTE, value))
    return series


def at(expression: str, now_s: float = NOW_S, **values: Any) -> Vector:
    return Evaluation(expression, scraped(**values), now_s).vector()


def value(expression: str, now_s: float = NOW_S, **values: Any) -> float | None:
    """Return the one value of a result without labels; None if it is empty."""
    found = at(expression, now_s, **values)
    assert set(found) <= {labels()}
    return found.get(labels())


# ---------------------------------------------------------------------- which samples count


def test_a_series_that_a_scrape_lacked_is_gone_at_once() -> None:
    assert at("a", a=[3.0, None]) == {}
    assert at("a", a=[3.0, None, 4.0]) == {labels(): 4.0}


def test_a_series_of_which_nothing_more_comes_counts_for_less_than_five_minutes() -> None:
    assert value("a", NOW_S + 299, a=3.0) == 3.0
    assert value("a", NOW_S + 300, a=3.0) is None


def test_a_window_has_its_end_and_not_its_beginning() -> None:
    assert value("max_over_time(a[2m])", a=[9.0, 1.0, 2.0]) == 2.0
    assert value("max_over_time(a[3m])", a=[9.0, 1.0, 2.0]) == 9.0


def test_in_a_window_what_was_there_counts_though_it_is_gone_by_now() -> None:
    assert value("max_over_time(a[3m])", a=[9.0, None, None]) == 9.0


def test_a_label_that_is_not_there_is_an_empty_one_and_patterns_are_of_the_whole() -> None:
    series = {"state=ready": 1.0, "state=unready": 2.0, "": 3.0}
    assert at('a{state!="ready"}', a=series) == {labels("state=unready"): 2.0, labels(): 3.0}
    assert at('a{state=~"ready"}', a=series) == {labels("state=ready"): 1.0}
    assert at('a{state=~".*ready"}', a=series).keys() == {labels("state=ready"), labels("state=unready")}
    assert at('a{state!~"unr.+|ready"}', a=series) == {labels(): 3.0}


# ---------------------------------------------------------------------- operators


def test_a_comparison_keeps_the_series_for_which_it_holds_and_their_values() -> None:
    series = {"n=1": 1.0, "n=2": 2.0}
    assert at("a > 1", a=series) == {labels("n=2"): 2.0}
    assert at("1 < a", a=series) == {labels("n=2"): 2.0}
    assert at("a == 3", a=series) == {}


def test_two_vectors_are_compared_where_all_labels_are_the_same_and_the_left_value_is_kept() -> None:
    left, right = {"n=1": 1.0, "n=2": 2.0, "n=3": 3.0}, {"n=1": 0.0, "n=2": 5.0, "n=4": 0.0}
    assert at("a > b", a=left, b=right) == {labels("n=1"): 1.0}


def test_comparisons_one_after_the_other_are_filters_of_the_first() -> None:
    series = {"n=1": 1.0, "n=2": 3.0, "n=3": 9.0}
    assert at("a > 0.5 * b > 2", a=series, b={"n=1": 1.0, "n=2": 4.0, "n=3": 99.0}) == {labels("n=2"): 3.0}


def test_multiplication_binds_more_than_sums_these_more_than_comparisons_and_or_least() -> None:
    assert value("a + 2 * a - 1", a=3.0) == 8.0
    assert value("a - 1 - 1", a=3.0) == 1.0
    assert value("a > 5 or a", a=3.0) == 3.0
    assert value("a or b and c", a=3.0, b=4.0) == 3.0
    assert value("(a or b) and c", a=3.0, b=4.0) is None


def test_and_unless_and_or_look_at_labels_and_not_at_values() -> None:
    left, right = {"n=1": 0.0, "n=2": 2.0}, {"n=2": 0.0, "n=3": 3.0}
    assert at("a and b", a=left, b=right) == {labels("n=2"): 2.0}
    assert at("a unless b", a=left, b=right) == {labels("n=1"): 0.0}
    assert at("a or b", a=left, b=right) == {labels("n=1"): 0.0, labels("n=2"): 2.0, labels("n=3"): 3.0}


def test_with_a_side_that_is_not_there_nothing_is_compared_or_computed() -> None:
    assert at("a > b", a=1.0) == at("a * b", a=1.0) == at("a and b", a=1.0) == {}
    assert at("a unless b", a=1.0) == at("a or b", a=1.0) == {labels(): 1.0}


def test_groups_are_by_labels_or_without_them_and_there_is_none_of_nothing() -> None:
    series = {"n=1,s=x": 1.0, "n=1,s=y": 2.0, "n=2,s=x": 5.0}
    assert at("sum by (n) (a)", a=series) == {labels("n=1"): 3.0, labels("n=2"): 5.0}
    assert at("max without (s) (a)", a=series) == {labels("n=1"): 2.0, labels("n=2"): 5.0}
    assert at("min(a)", a=series) == {labels(): 1.0}
    assert at("sum(b) < 1", a=series) == {}, "no 0 for what is not there"
    assert at("max by (other) (a)", a=series) == {labels(): 5.0}


def test_what_is_no_number_is_a_greatest_or_least_only_alone_and_no_comparison_holds_of_it() -> None:
    for values in ([math.nan, 1.0], [1.0, math.nan]):
        series = {f"n={number}": each for number, each in enumerate(values)}
        assert value("max(a)", a=series) == value("min(a)", a=series) == value("max_over_time(a[5m])", a=values) == 1.0
    assert at("max(a) > 0 or max(a) <= 0", a=math.nan) == {}


# ---------------------------------------------------------------------- functions


def test_an_increase_covers_the_whole_window_where_its_samples_do_nearly() -> None:
    # Four samples lie in it, 3 minutes apart; the one at the beginning would have been the next.
    assert value("increase(a[4m])", a=[100.0, 110.0, 120.0, 130.0, 140.0]) == pytest.approx(40.0)
    assert value("rate(a[4m])", a=[100.0, 110.0, 120.0, 130.0, 140.0]) == pytest.approx(10.0 / MINUTE)


def test_an_increase_is_guessed_for_half_a_scrape_before_a_series_that_begins_in_the_window() -> None:
    assert value("increase(a[10m])", a=[100.0, 110.0, 120.0]) == pytest.approx(25.0)


def test_an_increase_is_guessed_for_half_a_scrape_after_a_series_that_ends_in_the_window() -> None:
    assert value("increase(a[5m])", a=[100.0, 110.0, 120.0, 130.0, None, None]) == pytest.approx(20.0 + 5.0 + 10.0)


def test_an_increase_is_guessed_to_begin_with_0_at_the_earliest() -> None:
    assert value("increase(a[10m])", a=[1.0, 11.0, 21.0]) == pytest.approx(21.0)
    assert value("increase(a[10m])", a=[0.0, 10.0, 20.0]) == pytest.approx(20.0)


def test_a_counter_that_begins_anew_has_grown_by_all_that_it_has() -> None:
    assert value("increase(a[4m])", a=[0.0, 100.0, 105.0, 2.0, 4.0]) == pytest.approx(9.0 * 4 / 3)


def test_of_one_sample_there_is_no_rate() -> None:
    for function in ("rate", "increase", "deriv"):
        assert at(f"{function}(a[5m])", a=[None, None, 7.0]) == {}
    assert at("predict_linear(a[5m], 60)", a=7.0) == {}


def test_a_counter_that_comes_with_a_value_has_not_grown_by_it() -> None:
    assert value("increase(a[5m])", a=[None, 7.0, 7.0]) == 0.0


def test_changes_are_counted_between_samples_that_differ() -> None:
    assert value("changes(a[10m])", a=[1.0, 1.0, 2.0, 1.0]) == 2.0
    assert value("changes(a[10m])", a=[math.nan, math.nan, 1.0]) == 1.0
    assert value("changes(a[10m])", a=7.0) == 0.0


def test_a_line_is_fitted_to_all_samples_and_followed_from_now() -> None:
    assert value("deriv(a[10m])", a=[0.0, 60.0, 120.0]) == pytest.approx(1.0)
    assert value("deriv(a[10m])", a=[0.0, 90.0, 60.0, 150.0]) == pytest.approx(0.7)
    assert value("deriv(a[10m])", a=[0.1, 0.1, 0.1]) == 0.0
    assert value("predict_linear(a[10m], 3600)", a=[7_200.0, 7_140.0, 7_080.0]) == pytest.approx(3_480.0)
    assert value("predict_linear(a[10m], 60)", NOW_S + MINUTE, a=[0.0, 60.0]) == pytest.approx(180.0)


def test_absence_has_the_labels_that_were_asked_for_exactly() -> None:
    assert at('absent_over_time(a{job="x",n!="1",m=~"2"}[5m])') == {labels("job=x"): 1.0}
    assert at('absent_over_time(a{job="x",job=~".+"}[5m])') == {labels(): 1.0}
    assert at("absent_over_time(a[5m])", a=[1.0, None, None]) == {}
    assert at("absent_over_time(a[2m])", a=[1.0, None, None]) == {labels(): 1.0}


def buckets(**counts: float) -> dict[str, float]:
    return {f"le={bound[1:].replace('_', '.')}": count for bound, count in counts.items()} | {
        "le=+Inf": max(counts.values())
    }


def test_a_quantile_lies_in_its_bucket_as_if_that_were_filled_evenly() -> None:
    told = buckets(b1=50.0, b2=90.0, b4=100.0)
    assert value("histogram_quantile(0.5, a)", a=told) == pytest.approx(1.0)
    assert value("histogram_quantile(0.25, a)", a=told) == pytest.approx(0.5)
    assert value("histogram_quantile(0.95, a)", a=told) == pytest.approx(3.0)


def test_a_quantile_above_all_bounds_is_the_highest_of_them() -> None:
    assert value("histogram_quantile(0.99, a)", a={**buckets(b1=50.0, b2=90.0), "le=+Inf": 100.0}) == 2.0


def test_a_bucket_with_less_than_the_one_below_has_as_much() -> None:
    assert value("histogram_quantile(0.6, a)", a=buckets(b1=50.0, b2=40.0, b4=100.0)) == pytest.approx(2.4)


def test_there_is_no_quantile_of_nothing_or_without_the_last_bucket() -> None:
    for told in (buckets(b1=0.0), {"le=1": 5.0, "le=2": 5.0}, {"le=+Inf": 5.0}):
        found = value("histogram_quantile(0.5, a)", a=told)
        assert found is not None
        assert math.isnan(found)


def test_quantiles_are_of_each_group_of_labels() -> None:
    told = {"n=1,le=1": 1.0, "n=1,le=+Inf": 1.0, "n=2,le=2": 1.0, "n=2,le=+Inf": 1.0}
    assert at("histogram_quantile(1, a)", a=told) == {labels("n=1"): 1.0, labels("n=2"): 2.0}


def test_time_is_that_of_the_evaluation_and_the_others_take_each_value() -> None:
    assert value("time() - a", a=9_000.0) == 1_000.0
    assert value("abs(a)", a=-2.0) == 2.0
    assert at("clamp_min(a, 1)", a={"n=1": 0.0, "n=2": 5.0}) == {labels("n=1"): 1.0, labels("n=2"): 5.0}


def test_what_the_evaluator_has_is_what_the_rules_use() -> None:
    """Else it would have no reason to be right."""
    words = {word for rule in rules() for word in re.findall(r"[a-z_]+(?= *\(| +by| +without)", rule["expr"])}
    assert set(_FUNCTIONS) | set(_TOGETHER) | {"absent_over_time"} == words - {"by", "without", "and", "or"}


# ---------------------------------------------------------------------- how long it holds


def firing(monkeypatch: pytest.MonkeyPatch, values: list[float], for_: str) -> list[bool]:
    """Return at which evaluations a rule of a metric above 0 fires; a value below 0 is a scrape that fails."""
    rule = {"alert": "Test", "expr": "a > 0", "for": for_}
    monkeypatch.setattr(alerts, "rules_parsed", lambda: (rule,))
    prometheus = Prometheus()
    found = []
    for each in values:
        told = None if each < 0 else {("a", labels()): each}
        found.append("Test" in prometheus.lasts({"polonaise/n": told}, for_s=0.0))
    return found


def test_an_alert_fires_once_its_condition_has_held_for_so_long_at_each_evaluation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert firing(monkeypatch, [0, 1, 1, 1, 0, 1], "2m") == [False, False, False, True, False, False]
    assert firing(monkeypatch, [1, 2, 3], "2m") == [False, False, True], "whatever its value"
    assert firing(monkeypatch, [1, 1, -1, 1, 1], "2m") == [False] * 5, "what can't be scraped is not there"
    assert firing(monkeypatch, [1], "0s") == [True]
