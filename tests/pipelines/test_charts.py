"""Charts draw what they are given, also when that is nothing, very much, or nonsense."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagerig import HOSTILE, drawn, inside, labels

from polonaise.errors import BadOption
from polonaise.pipelines.charts import Bars, Flows, Lines, Mark, Series
from polonaise.pipelines.charts.lines import Point, spread, thinned

MONTHS = [(date(1993, month, 1), 100 * month) for month in range(1, 13) if month != 10]
NOON = datetime(1993, 1, 5, 12, tzinfo=UTC)


def bars(svg: str) -> list[Any]:
    return [each for each in drawn(svg).iter("rect") if each.get("class", "").startswith("bar")]


# ------------------------------------------------------------------ bars


def test_each_month_has_its_place_and_one_without_a_value_is_left_free() -> None:
    svg = Bars("Volumes", MONTHS, unit="payments").drawing("f")
    inside(svg)
    places = [float(each.attrib["x"]) for each in bars(svg)]
    steps = [round(right - left) for left, right in pairwise(places)]
    assert len(places) == 11
    assert steps[8] == pytest.approx(2 * steps[0], abs=1), "October is left free"
    assert {"Jan", "1993", "Oct", "1,200", "payments"} <= set(labels(svg))


def test_bars_are_as_high_as_their_values() -> None:
    heights = [float(each.attrib["height"]) for each in bars(Bars("Volumes", MONTHS).drawing("f"))]
    assert heights[1] == pytest.approx(2 * heights[0], rel=0.01)
    assert heights[-1] == pytest.approx(12 * heights[0], rel=0.01)


def test_bars_below_zero_hang() -> None:
    svg = Bars("Net", [(date(1993, 1, 1), -50), (date(1993, 2, 1), 100)]).drawing("f")
    inside(svg)
    negative, positive = bars(svg)
    assert float(negative.attrib["y"]) == pytest.approx(
        float(positive.attrib["y"]) + float(positive.attrib["height"]), abs=0.1
    )
    assert "−50" in labels(svg)


@pytest.mark.parametrize("days", [1, 2, 40, 300, 4000, 100_000])
def test_any_number_of_days_can_be_read(days: int) -> None:
    values = [(date(1993, 1, 2) + timedelta(days=day), day % 97) for day in range(0, days, max(1, days // 5000))]
    chart = Bars("Days", values)
    svg = chart.drawing("f")
    inside(svg)
    assert 1 <= len(bars(svg)) <= 365
    assert len(labels(svg)) <= 40
    assert bool(chart.remarks()) == (days > 365)


def test_texts_lie_below_each_other_and_long_ones_are_cut() -> None:
    svg = Bars("Kinds", [("a kind of payment " * 10, 5), ("b", -3), ("", 0)], unit="CZK").drawing("f")
    inside(svg)
    assert any(label.endswith("…") for label in labels(svg))
    assert {"5", "−3", "0", "CZK"} <= set(labels(svg))


def test_of_many_texts_the_first_are_drawn_and_all_are_in_the_table() -> None:
    chart = Bars("Kinds", [(f"kind {each}", each) for each in range(100)])
    assert len(bars(chart.drawing("f"))) == 30
    assert chart.remarks() == ["The first 30 of 100 are drawn."]
    assert len(chart.table().rows) == 100


def test_a_marked_bar_has_its_number() -> None:
    chart = Bars("Volumes", MONTHS, marks=[Mark(date(1993, 3, 1), "few"), Mark(date(1993, 12, 1), "many")])
    svg = chart.drawing("f")
    inside(svg)
    assert [each.attrib["class"] for each in bars(svg)].count("bar marked") == 2
    assert [label for label in labels(svg) if len(label) == 1 and label != "0"] == ["1", "2"]


@pytest.mark.parametrize("most", [0, 1, 2**63, 1e-12, 1e18])
def test_values_of_any_size(most: float) -> None:
    inside(Bars("Upright", [(date(1993, 1, 1), most)]).drawing("f"))
    inside(Bars("Lying", [("a", most), ("b", -most)]).drawing("f"))


# ------------------------------------------------------------------ lines


def paths(svg: str) -> list[str]:
    return [each.attrib["d"] for each in drawn(svg).iter("path") if each.get("class", "").startswith("line")]


def test_a_line_has_its_name_at_its_end() -> None:
    points = [(NOON + timedelta(hours=hour), hour * 10) for hour in range(50)]
    chart = Lines("Balances", [Series("up", points), Series("flat", [(at, 5) for at, _ in points])], unit="CZK")
    svg = chart.drawing("f")
    inside(svg)
    assert {"up", "flat", "CZK", "500"} <= set(labels(svg))
    assert len(paths(svg)) == 2
    assert len(chart.table().rows) == 50


def test_points_are_drawn_in_the_order_of_their_places() -> None:
    forth = Lines("a", [Series("s", [(1, 1), (2, 5), (3, 2)])]).drawing("f")
    assert Lines("a", [Series("s", [(3, 2), (1, 1), (2, 5)])]).drawing("f") == forth


def test_a_balance_stays_until_the_next_payment() -> None:
    stepped = Lines("a", [Series("s", [(1, 1), (2, 5)])], stepped=True).drawing("f")
    assert "H" in paths(stepped)[0]
    assert "L" not in paths(stepped)[0]


def test_a_value_that_is_not_there_interrupts_the_line() -> None:
    svg = Lines("a", [Series("s", [(1, 1), (2, 2), (3, None), (4, 4), (5, 5)])]).drawing("f")
    assert paths(svg)[0].count("M") == 2


def test_very_many_points_become_a_few_with_all_extremes() -> None:
    generator = random.Random(1)
    points = [Point(float(place), generator.random()) for place in range(40_000)]
    points[7_777] = Point(7_777.0, 99.0)
    points[12_345] = Point(12_345.0, -99.0)
    kept = thinned(points, 0, 39_999, 600)
    assert len(kept) <= 4 * 601
    assert {99.0, -99.0} <= {point.y for point in kept}
    assert kept == sorted(kept, key=lambda point: point.x)
    assert (kept[0], kept[-1]) == (points[0], points[-1])


def test_thinning_keeps_gaps() -> None:
    points = [Point(float(place), None if place % 1000 == 0 else 1.0) for place in range(1, 10_000)]
    kept = thinned(points, 0, 10_000, 100)
    assert sum(point.y is None for point in kept) == 9


@given(st.lists(st.floats(30, 280), max_size=12).map(sorted))
def test_labels_never_cover_each_other(wanted: list[float]) -> None:
    heights = spread(wanted, 30, 280)
    assert all(after - before >= 14.9 for before, after in pairwise(heights))
    assert all(height <= 280 for height in heights)


def test_the_first_lines_are_named_and_the_others_grey() -> None:
    chart = Lines("Many", [Series(f"line {each}", [(0, each), (9, each)]) for each in range(30)])
    svg = chart.drawing("f")
    inside(svg)
    assert [label for label in labels(svg) if label.startswith("line")] == sorted(
        (f"line {each}" for each in range(7)), reverse=True
    )
    assert chart.remarks() == ["23 more, without names, are grey."]


def test_a_mark_is_on_its_line() -> None:
    series = [Series("s", [(NOON, 10), (NOON + timedelta(days=10), 20)])]
    svg = Lines("a", series, marks=[Mark(("s", NOON + timedelta(days=5)), "odd")]).drawing("f")
    inside(svg)
    assert "1" in labels(svg)


def test_one_point_and_equal_values() -> None:
    for points in ([(NOON, 5)], [(NOON, 0), (NOON + timedelta(days=1), 0)], [(NOON, -3), (NOON, -3)]):
        inside(Lines("a", [Series("s", points)]).drawing("f"))


# ------------------------------------------------------------------ flows


def test_a_cell_is_the_fuller_the_more_flows() -> None:
    svg = Flows("Flows", {("A", "B"): 100, ("B", "A"): 25, ("A", "C"): 0}, unit="CZK").drawing("f")
    inside(svg)
    shares = [float(each.attrib["fill-opacity"]) for each in drawn(svg).iter("rect") if "fill-opacity" in each.attrib]
    assert sorted(shares) == [0.0, 0.25, 1.0]
    assert {"A", "B", "C", "100", "25", "125", "in all"} <= set(labels(svg))


def test_of_many_the_smallest_are_taken_together() -> None:
    values = {(f"from {source}", f"to {target}"): source + 1 for source in range(40) for target in range(40)}
    chart = Flows("Flows", values)
    svg = chart.drawing("f")
    inside(svg)
    assert "25 others" in labels(svg)
    assert chart.remarks() == [
        "The 25 smallest rows are taken together.",
        "The 25 smallest columns are taken together.",
    ]
    assert len(chart.table().rows) == 1600
    assert [label for label in labels(svg) if label == "33 k"], "the sum of all is still the sum of all"


def test_a_marked_flow_is_outlined() -> None:
    svg = Flows("Flows", {("A", "B"): 1}, marks=[Mark(("A", "B"), "new")]).drawing("f")
    assert [each for each in drawn(svg).iter("rect") if each.get("class") == "outline"]


# ------------------------------------------------------------------ all of them


@pytest.mark.parametrize("chart", [Bars("a", []), Lines("a", []), Lines("a", [Series("s", [])]), Flows("a", {})])
def test_of_nothing_nothing_is_drawn(chart: Any) -> None:
    assert chart.drawing("f") == ""
    assert chart.remarks() == []
    assert chart.table().rows == []


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_is_taken_for_markup(text: str) -> None:
    charts: list[Any] = [
        Bars(text, [(text, 1)], unit=text, marks=[Mark(text, text)]),
        Bars(text, [(date(1993, 1, 1), 1)], unit=text, marks=[Mark(date(1993, 1, 1), text)]),
        Lines(text, [Series(text, [(1, 1)])], unit=text, across=text, marks=[Mark((text, 1), text)]),
        Flows(text, {(text, text): 1}, unit=text, down=text, across=text, marks=[Mark((text, text), text)]),
    ]
    for chart in charts:
        svg = chart.drawing("f")
        kinds = {each.tag for each in drawn(svg).iter()}
        assert kinds <= {"svg", "desc", "title", "g", "rect", "circle", "line", "path", "text"}


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda: Bars("b", [("a", 1), (date(1993, 1, 1), 2)]), "all dates, or all texts"),
        (lambda: Bars("b", [(NOON, 1)]), "all dates, or all texts"),
        (lambda: Bars("b", [("a", float("nan"))]), "nan can't be drawn"),
        (lambda: Bars("b", [("a", 1)], marks=[Mark("c", "")]), "nothing at 'c'"),
        (lambda: Lines("l", [Series("s", [(NOON, 1), (1, 2)])]), "all times, or all numbers"),
        (lambda: Lines("l", [Series("s", [(1, float("inf"))])]), "inf can't be drawn"),
        (lambda: Lines("l", [Series("s", []), Series("s", [])]), "same name"),
        (lambda: Lines("l", [Series("s", [(5, 1)])], marks=[Mark(("s", 4), "")]), "nothing at"),
        (lambda: Lines("l", [Series("s", [(5, 1)])], marks=[Mark("s", "")]), "nothing at"),
        (lambda: Flows("f", {("a", "b"): -1}), "never negative"),
        (lambda: Flows("f", {("a", "b"): 1}, marks=[Mark(("b", "a"), "")]), "nothing at"),
    ],
)
def test_what_can_not_be_meant_is_refused(make: Any, hint: str) -> None:
    with pytest.raises(BadOption, match=hint):
        make()
