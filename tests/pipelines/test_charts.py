"""Charts draw what they are given, also when that is nothing, very much, or nonsense."""

from __future__ import annotations

import importlib
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import matplotlib.style
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.errors import BadOption, ExtraMissing
from polonaise.pipelines.charts import Bars, Chart, Flows, Lines, Mark, Series
from polonaise.pipelines.charts.canvas import upright_area
from polonaise.pipelines.charts.figures import spread
from rigs.pages import HOSTILE, box, check_inside, drawn, labels, points, titled
from rigs.programs import output_of, run_python

pytestmark = pytest.mark.slow  # each draws, some thousands of times

MONTHS = [(date(1993, month, 1), 100 * month) for month in range(1, 13) if month != 10]
NOON = datetime(1993, 1, 5, 12, tzinfo=UTC)


def remarks(chart: Chart) -> list[str]:
    drawing = chart.drawn()
    return [] if drawing is None else list(drawing.remarks)


# ------------------------------------------------------------------ bars


def test_each_month_has_its_place_and_one_without_a_value_is_left_free() -> None:
    svg = drawn(Bars("Volumes", MONTHS, unit="payments"))
    check_inside(svg)
    places = [box(bar).middle for bar in titled(svg).values()]
    steps = [round(right - left) for left, right in pairwise(places)]
    assert len(places) == 11
    assert steps[8] == pytest.approx(2 * steps[0], abs=1), "October is left free"
    assert {"Jan", "1993", "Oct", "1,200", "payments"} <= set(labels(svg))
    assert "1993-03-01: 300" in titled(svg), "a bar tells its value where it is pointed at"


def test_bars_are_as_high_as_their_values() -> None:
    heights = [box(bar).height for bar in titled(drawn(Bars("Volumes", MONTHS))).values()]
    assert heights[1] == pytest.approx(2 * heights[0], rel=0.02)
    assert heights[-1] == pytest.approx(12 * heights[0], rel=0.02)


def test_bars_below_zero_hang() -> None:
    svg = drawn(Bars("Net", [(date(1993, 1, 1), -50), (date(1993, 2, 1), 100)]))
    check_inside(svg)
    negative, positive = (box(bar) for bar in titled(svg).values())
    assert negative.top == pytest.approx(positive.bottom, abs=0.2)
    assert "−50" in labels(svg)


@pytest.mark.parametrize("days", [1, 2, 40, 300, 4000, 100_000])
def test_any_number_of_days_can_be_read(days: int) -> None:
    values = [(date(1993, 1, 2) + timedelta(days=day), day % 97) for day in range(0, days, max(1, days // 5000))]
    chart = Bars("Days", values)
    svg = drawn(chart)
    check_inside(svg)
    assert 1 <= len(titled(svg)) <= 365
    assert len(labels(svg)) <= 40
    assert bool(remarks(chart)) == (days > 365)


@pytest.mark.parametrize("years", [1, 3, 20, 900])
def test_any_number_of_months_can_be_read(years: int) -> None:
    values = [(date(1000 + month // 12, month % 12 + 1, 1), month) for month in range(12 * years)]
    svg = drawn(Bars("Months", values))
    check_inside(svg)
    assert 1 <= len(titled(svg)) <= 365
    assert 5 <= len(labels(svg)) <= 40


def test_texts_lie_below_each_other_and_long_ones_are_cut() -> None:
    svg = drawn(Bars("Kinds", [("a kind of payment " * 10, 5), ("b", -3), ("", 0)], unit="CZK"))
    check_inside(svg)
    assert any(label.endswith("…") for label in labels(svg))
    assert {"5", "−3", "0", "CZK"} <= set(labels(svg))


def test_of_many_texts_the_first_are_drawn_and_all_are_in_the_table() -> None:
    chart = Bars("Kinds", [(f"kind {each}", each) for each in range(100)])
    assert len(titled(drawn(chart))) == 30
    assert remarks(chart) == ["The first 30 of 100 are drawn."]
    assert len(chart.table().rows) == 100


@pytest.mark.parametrize("name", ["March", date(1993, 3, 1)])
def test_a_marked_bar_has_its_number_and_another_colour(name: Any) -> None:
    values: list[Any] = [("January", 1000), ("March", 3000)] if name == "March" else MONTHS
    svg = drawn(Bars("Volumes", values, marks=[Mark(name, "few"), Mark(values[-1][0], "many")]))
    check_inside(svg)
    coloured = [title for title, bar in titled(svg).items() if "var(--s1)" in bar.attrib["style"]]
    assert len(coloured) == len({name, values[-1][0]})
    assert "2" in labels(svg)
    assert {"few", "many"} & {title.text for title in svg.iter("title")}


@pytest.mark.parametrize("most", [0, 1, 2**63, 1e-12, 1e18])
def test_bars_of_any_size_stay_inside_the_drawing(most: float) -> None:
    check_inside(drawn(Bars("Upright", [(date(1993, 1, 1), most)])))
    check_inside(drawn(Bars("Lying", [("a", most), ("b", -most)])))


# ------------------------------------------------------------------ lines


def test_a_line_has_its_name_at_its_end() -> None:
    values = [(NOON + timedelta(hours=hour), hour * 10) for hour in range(50)]
    chart = Lines("Balances", [Series("up", values), Series("flat", [(at, 5) for at, _ in values])], unit="CZK")
    svg = drawn(chart)
    check_inside(svg)
    assert {"up", "flat", "CZK", "500"} <= set(labels(svg))
    end = box(titled(svg)["up"]).right
    (name,) = (text for text in svg.iter("text") if text.text == "up")
    assert end < float(name.attrib["x"]) < end + 30
    assert len(chart.table().rows) == 50


def test_points_are_drawn_in_the_order_of_their_places() -> None:
    forth = Lines("a", [Series("s", [(1, 1), (2, 5), (3, 2)])]).figure("f").partition("<details>")[0]
    assert Lines("a", [Series("s", [(3, 2), (1, 1), (2, 5)])]).figure("f").partition("<details>")[0] == forth


def test_a_balance_stays_until_the_next_payment() -> None:
    line = points(titled(drawn(Lines("a", [Series("s", [(1, 1), (2, 5), (3, 2)])], stepped=True)))["s"])
    assert len(line) >= 5
    assert all(before[0] == after[0] or before[1] == after[1] for before, after in pairwise(line))
    assert line[0][1] == line[1][1], "it stays first, and then steps"


def test_a_value_that_is_not_there_interrupts_the_line() -> None:
    svg = drawn(Lines("a", [Series("s", [(1, 1), (2, 2), (3, None), (4, 4), (5, 5)])]))
    assert titled(svg)["s"].attrib["d"].count("M") == 2


def test_a_value_between_two_gaps_is_a_dot() -> None:
    svg = drawn(Lines("a", [Series("s", [(1, 1), (2, None), (3, 3), (4, None), (5, 5)])]))
    dots = [path for path in svg.iter("path") if "C" in path.attrib["d"]]
    assert len(dots) == 3


def test_very_many_points_become_fewer_with_all_extremes() -> None:
    generator = random.Random(1)
    values: list[Any] = [(place, generator.random()) for place in range(40_000)]
    values[7_777], values[12_345] = (7_777, 99.0), (12_345, -99.0)
    svg = drawn(Lines("a", [Series("s", values)]))
    line = titled(svg)["s"]
    assert len(points(line)) < 8_000
    lowest, highest = box(line).bottom, box(line).top
    ticks = {label: float(text.attrib["y"]) for text, label in zip(svg.iter("text"), labels(svg), strict=True)}
    assert highest == pytest.approx(ticks["100"], abs=8)
    assert lowest == pytest.approx(ticks["−100"], abs=8)


@given(st.lists(st.floats(30, 280), max_size=12).map(sorted))
def test_names_never_cover_each_other(wanted: list[float]) -> None:
    heights = spread(wanted, 30, 280)
    assert all(after - before >= 14.9 for before, after in pairwise(heights))
    assert all(height <= 280 for height in heights)


def test_a_name_has_the_colour_of_its_line_also_behind_a_line_without_values() -> None:
    svg = drawn(Lines("Two", [Series("none", [(0, None)]), Series("some", [(0, 1), (9, 2)])]))
    (name,) = (text for text in svg.iter("text") if text.text == "some")
    assert "var(--s1)" in ElementTree.tostring(titled(svg)["some"], encoding="unicode")
    assert "var(--s1)" in name.attrib["style"]


def test_of_many_places_the_table_says_how_many_it_lists() -> None:
    table = Lines("Many", [Series("s", [(place, 1) for place in range(399)])]).table()
    assert (len(table.rows), table.note) == (200, "One of every 2 places, 399 in all.")


def test_the_first_lines_are_named_and_the_others_grey() -> None:
    chart = Lines("Many", [Series(f"line {each}", [(0, each), (9, each)]) for each in range(30)])
    svg = drawn(chart)
    check_inside(svg)
    assert sorted(label for label in labels(svg) if label.startswith("line")) == [f"line {each}" for each in range(7)]
    assert sum("var(--other)" in path.attrib["style"] for path in svg.iter("path")) == 23
    assert remarks(chart) == ["23 more, without names, are grey."]


def test_a_mark_is_on_its_line() -> None:
    series = [Series("s", [(NOON, 10), (NOON + timedelta(days=10), 20)])]
    svg = drawn(Lines("a", series, marks=[Mark(("s", NOON + timedelta(days=5)), "odd")]))
    check_inside(svg)
    (ring,) = (box(path) for path in svg.iter("path") if "stroke: var(--bad)" in path.attrib["style"])
    line = box(titled(svg)["s"])
    assert ring.middle == pytest.approx(line.middle, abs=1)
    assert (ring.top + ring.bottom) / 2 == pytest.approx(line.bottom, abs=1), "at the last point up to that place"
    assert "1" in labels(svg)


def test_lines_of_one_point_or_equal_values_stay_inside_the_drawing() -> None:
    for values in ([(NOON, 5)], [(NOON, 0), (NOON + timedelta(days=1), 0)], [(NOON, -3), (NOON, -3)]):
        check_inside(drawn(Lines("a", [Series("s", values)])))


# ------------------------------------------------------------------ axes


@pytest.mark.parametrize(
    ("low", "high", "said", "unit"),
    [
        (0, 97, "0 20 40 60 80 100", "CZK"),
        (0, 4722, "0 1,000 2,000 3,000 4,000 5,000", "CZK"),
        (-35_000, 118_000, "−50,000 0 50,000 100,000 150,000", "CZK"),
        (0, 0.3, "0 0.1 0.2 0.3", "CZK"),
        (0, 1_400_000, "0 500,000 1,000,000 1,500,000", "CZK"),
        (0, 1_850_000, "0 0.5 1 1.5 2", "CZK, millions"),
        (0, 9_000_000, "0 2 4 6 8 10", "CZK, millions"),
        (0, 4.2e12, "0 1 2 3 4 5", "CZK, trillions"),
        (0, 2, "0 1 2", "CZK"),  # for what there are no halves of
        (90, 100, "90 92 94 96 98 100", "CZK"),
    ],
)
def test_numbers_are_round(low: float, high: float, said: str, unit: str) -> None:
    found = labels(drawn(Lines("a", [Series("s", [(NOON, low), (NOON + timedelta(days=3000), high)])], unit="CZK")))
    assert [label for label in found if label[-1].isdigit() and len(label) != len("1993")] == said.split()
    assert unit in found


@given(st.floats(-1e15, 1e15), st.floats(1e-6, 1e15))
def test_an_axis_holds_all_and_has_a_few_ticks(low: float, span: float) -> None:
    high = low + span
    axes = upright_area([low, high], "")
    slack = span * 1e-6 + abs(low) * 1e-12
    assert axes.get_ylim()[0] <= low + slack
    assert axes.get_ylim()[1] >= high - slack
    assert 2 <= len(axes.get_yticks()) <= 9


@pytest.mark.parametrize(
    ("span", "first"),
    [
        (timedelta(seconds=8), ("14:02:00", "5 Jan 1993")),
        (timedelta(minutes=5), ("14:02", "5 Jan 1993")),
        (timedelta(hours=5), ("15:00", "5 Jan 1993")),
        (timedelta(days=6), ("6 Jan", "1993")),
        (timedelta(days=50), ("8 Jan", "1993")),
        (timedelta(days=200), ("Feb", "1993")),
        (timedelta(days=600), ("Apr", "1993")),
        (timedelta(days=4000), ("1994", "1996")),
        (timedelta(days=400_000), ("2000", "2200")),
    ],
)
def test_times_begin_with_a_period(span: timedelta, first: tuple[str, str]) -> None:
    begin = datetime(1993, 1, 5, 14, 2, tzinfo=UTC)
    svg = drawn(Lines("a", [Series("line", [(begin, 100), (begin + span, 200)])]))
    check_inside(svg)
    below = [label for label in labels(svg) if label not in ("0", "50", "100", "150", "200", "line")]
    assert tuple(below[:2]) == first
    assert 3 <= len(below) <= 14


def test_a_year_is_said_where_it_changes() -> None:
    months = [(date(1993 + month // 12, month % 12 + 1, 1), 5) for month in range(3, 14)]
    assert [label for label in labels(drawn(Bars("a", months))) if label.startswith("199")] == ["1993", "1994"]


# ------------------------------------------------------------------ flows


def test_a_cell_is_the_fuller_the_more_flows() -> None:
    svg = drawn(Flows("Flows", {("A", "B"): 100, ("B", "A"): 25, ("A", "C"): 0}, unit="CZK"))
    check_inside(svg)
    cells = titled(svg)
    assert "opacity" not in cells["A → B: 100 CZK"].attrib["style"]
    assert "opacity: 0.25" in cells["B → A: 25 CZK"].attrib["style"]
    assert "var(--heat)" not in cells["A → C: 0 CZK"].attrib["style"]
    assert {"A", "B", "C", "100", "25", "125", "in all"} <= set(labels(svg))


def test_the_smallest_of_many_flows_are_drawn_as_one() -> None:
    values = {(f"from {source}", f"to {target}"): source + 1 for source in range(40) for target in range(40)}
    chart = Flows("Flows", values)
    svg = drawn(chart)
    check_inside(svg)
    assert "25 others" in labels(svg)
    assert remarks(chart) == ["The 25 smallest rows are taken together.", "The 25 smallest columns are taken together."]
    assert len(chart.table().rows) == 1600
    assert "33 k" in labels(svg), "the sum of all is still the sum of all"


def test_a_marked_flow_is_outlined() -> None:
    svg = drawn(Flows("Flows", {("A", "B"): 1}, marks=[Mark(("A", "B"), "new")]))
    assert any("stroke: var(--bad)" in path.attrib["style"] for path in svg.iter("path"))


# ------------------------------------------------------------------ all of them


@pytest.mark.parametrize("chart", [Bars("a", []), Lines("a", []), Lines("a", [Series("s", [])]), Flows("a", {})])
def test_a_chart_without_values_draws_nothing(chart: Any) -> None:
    assert chart.drawn() is None
    assert "<svg" not in chart.figure("f")
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
        svg = drawn(chart)
        assert {each.tag for each in svg.iter()} <= {"svg", "desc", "title", "g", "path", "text"}
        assert not any("url(" in value for each in svg.iter() for value in each.attrib.values())


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda: Bars("b", [("a", 1), (date(1993, 1, 1), 2)]), "all dates or all texts"),
        (lambda: Bars("b", [(NOON, 1)]), "all dates or all texts"),
        (lambda: Bars("b", [("a", float("nan"))]), "nan can't be drawn"),
        (lambda: Bars("b", [("a", 1)], marks=[Mark("c", "")]), "a mark is at 'c', where nothing is drawn"),
        (lambda: Lines("l", [Series("s", [(NOON, 1), (1, 2)])]), "all at times or all at numbers"),
        (lambda: Lines("l", [Series("s", [(1, float("inf"))])]), "inf can't be drawn"),
        (lambda: Lines("l", [Series("s", []), Series("s", [])]), "same name"),
        (lambda: Lines("l", [Series("s", [(5, 1)])], marks=[Mark(("s", 4), "")]), "nothing is drawn"),
        (lambda: Lines("l", [Series("s", [(5, 1)])], marks=[Mark("s", "")]), "nothing is drawn"),
        (lambda: Flows("f", {("a", "b"): -1}), "can't be negative"),
        (lambda: Flows("f", {("a", "b"): 1}, marks=[Mark(("b", "a"), "")]), "nothing is drawn"),
    ],
)
def test_invalid_arguments_are_refused(make: Any, hint: str) -> None:
    with pytest.raises(BadOption, match=hint):
        make()


def test_a_dollar_is_a_dollar() -> None:
    assert "$x^2$ \\$5" in labels(drawn(Bars("a", [("$x^2$ \\$5", 1)])))


def test_every_colour_is_one_of_the_page() -> None:
    charts: list[Chart] = [
        Bars("a", MONTHS, marks=[Mark(date(1993, 3, 1), "")]),
        Lines("a", [Series(f"s{each}", [(1, each), (2, 3)]) for each in range(9)], marks=[Mark(("s1", 1), "")]),
        Flows("a", {("A", "B"): 1}, marks=[Mark(("A", "B"), "")]),
    ]
    for chart in charts:
        assert "#" not in ElementTree.tostring(drawn(chart), encoding="unicode")


def test_threads_draw_at_the_same_time() -> None:
    charts = [Bars(f"chart {each}", [(name, each) for name in "abc"], unit="CZK") for each in range(1, 9)]
    alone = [chart.figure("f") for chart in charts]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda chart: chart.figure("f"), charts)) == alone


def test_settings_of_a_process_stay_as_they_are_and_change_nothing() -> None:
    chart = Lines("a", [Series("s", [(1, 1), (2, 3)])])
    with mpl.style.context(["ggplot", {"text.usetex": True}]):
        before = dict(mpl.rcParams)
        svg = drawn(chart)
        assert dict(mpl.rcParams) == before
    assert labels(svg) == labels(drawn(chart))
    assert "#" not in ElementTree.tostring(svg, encoding="unicode"), "no colour but the page's"


def test_matplotlib_is_for_reports_only_and_without_its_windows() -> None:
    loaded = "import sys; {}; print(*(name for name in ('matplotlib', 'matplotlib.pyplot') if name in sys.modules))"
    for imported, found in (
        ("import polonaise, polonaise.pipelines", ""),
        ("import polonaise.pipelines.charts", "matplotlib"),
    ):
        assert output_of(run_python("-c", loaded.format(imported))).strip() == found


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "polonaise.pipelines.charts.canvas")
    with pytest.raises(ExtraMissing, match=r"charts need matplotlib: pip install 'polonaise\[spark\]'"):
        importlib.import_module("polonaise.pipelines.charts.canvas")
