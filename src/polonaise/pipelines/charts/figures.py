"""The charts of a report: bars, lines and flows, each with a title, marks, remarks, and its figures as a table, too."""

from __future__ import annotations

import bisect
import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import date, datetime
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias

from polonaise.errors import BadOption
from polonaise.pipelines.charts import canvas
from polonaise.pipelines.charts.canvas import COLOUR, COLOURS, SMALL, TEXT, WIDTH, Axes, svg
from polonaise.pipelines.formatting import Number, Place, cut, finite, number, place, read, short, width_of
from polonaise.pipelines.markup import Markup, element
from polonaise.pipelines.tables import Table

_MARKS_MAX: Final = 20


class Mark(NamedTuple):
    """Something to point at, such as an anomaly."""

    at: Any
    """A label of `Bars`; (name of a series, place) of `Lines`; (from, to) of `Flows`."""
    text: str
    """The reason, which stands in a numbered list below the chart."""


class Drawing(NamedTuple):
    """A chart that is drawn."""

    axes: Axes
    summary: str
    """For a reader who can't see the chart."""
    remarks: Sequence[str]
    """Notes on values that are not drawn, or not named."""


@dataclass(frozen=True)
class Chart(ABC):
    """A figure that a page can show."""

    title: str
    _: KW_ONLY
    unit: str = ""
    note: str = ""
    marks: Sequence[Mark] = ()

    @abstractmethod
    def drawn(self) -> Drawing | None:
        """Draw the chart; None if it has nothing to draw."""

    @abstractmethod
    def table(self) -> Table:
        """Return the chart's figures as a table."""

    def check(self, condition: bool, message: str) -> None:
        """Raise `BadOption` with `message`, about the chart's values or marks, unless `condition` holds."""
        if not condition:
            raise BadOption(f"chart {self.title!r}: {message}")

    def shown_marks(self) -> Iterator[tuple[int, Mark]]:
        """Yield the first `_MARKS_MAX` marks, the only ones that are shown, each with its number: 1, 2, 3, …"""
        return enumerate(self.marks[:_MARKS_MAX], start=1)

    def figure(self, identity: str) -> Markup:
        """Return the chart with title, marks, notes and table, its id `identity`; without data, title and notes."""
        title, drawing = element("figcaption", self.title, id=identity), self.drawn()
        if drawing is None:
            return element("figure", title, element("p", "No data.", class_="nothing"), *self._notes([]))
        marks = [element("li", mark.text) for _, mark in self.shown_marks()]
        return element(
            "figure",
            title,
            element("div", svg(drawing.axes, identity, drawing.summary), class_="scrolls"),
            element("ol", *marks, class_="marks") if marks else Markup(),
            *self._notes(drawing.remarks),
            element("details", element("summary", "The figures"), self.table().html()),
        )

    def _notes(self, remarks: Sequence[str]) -> Iterator[Markup]:
        many = f"The first {_MARKS_MAX} of {number(len(self.marks))} marks are shown."
        for note in (self.note, *remarks, many if len(self.marks) > _MARKS_MAX else ""):
            if note:
                yield element("p", note, class_="note")


Label: TypeAlias = str | date

_BARS_MAX: Final = 30
_UPRIGHT_MAX: Final = 365
"""Largest number of upright bars: more would be too narrow."""
_LABELLED_MAX: Final = 14


@dataclass(frozen=True)
class Bars(Chart):
    """One bar for each value: upright over time where labels are dates, lying below each other where they are texts.
    Dates that are all the first of a month stand for months. Over more than 365 days or months, several share a bar. Of
    texts, the first thirty are drawn. Raises `BadOption` for labels of both kinds or with a time of day, for values
    that are no finite numbers, and for marks at no label."""

    values: Sequence[tuple[Label, Number]]

    def __post_init__(self) -> None:
        labels = {label: finite(value) for label, value in self.values}
        one_kind = len({isinstance(label, date) for label in labels}) < 2
        of_days = not any(isinstance(label, datetime) for label in labels)
        self.check(one_kind and of_days, "the labels must be all dates or all texts")
        for mark in self.marks:
            self.check(mark.at in labels, f"a mark is at {mark.at!r}, where nothing is drawn")

    def months(self) -> bool:
        return bool(self.values) and all(isinstance(label, date) and label.day == 1 for label, _ in self.values)

    def drawn(self) -> Drawing | None:
        """Draw the bars; None without values."""
        if not self.values:
            return None
        high, low = (choose(self.values, key=lambda each: finite(each[1])) for choose in (max, min))
        extremes = f"highest {read(high[0])} with {read(high[1])}, lowest {read(low[0])} with {read(low[1])}"
        axes, remarks = _upright(self) if isinstance(high[0], date) else _lying(self)
        return Drawing(axes, f"{number(len(self.values))} bars; {extremes} {self.unit}".rstrip(), remarks)

    def table(self) -> Table:
        """List every label with its value."""
        end = len("1993-01") if self.months() else None
        return Table(self.title, ("", self.unit or "value"), [(read(at)[:end], value) for at, value in self.values])


def _upright(chart: Bars) -> tuple[Axes, list[str]]:
    months, values = chart.months(), [(day, value) for day, value in chart.values if isinstance(day, date)]
    counts = {day: day.year * 12 + day.month - 1 if months else round(place(day) / 86400) for day, _ in values}
    first, last = min(counts.values()), max(counts.values())
    each = -(-(last - first + 1) // _UPRIGHT_MAX)  # so many days or months share a bar
    middle = {day: first + (count - first) // each * each + (each - 1) / 2 for day, count in counts.items()}
    far_last = sorted(values, key=lambda pair: abs(finite(pair[1])))
    shown = dict(sorted({middle[day]: (day, value) for day, value in far_last}.items()))

    axes = canvas.upright_area([0, *(value for _, value in values)], chart.unit, top=46)
    low, high = first - 0.5, max(shown) + each / 2
    if months:
        canvas.month_axis(axes, low, high)
    else:
        canvas.time_axis(axes, low, high, least=min(5, last - first + 1))
    room = axes.bbox.width * each / (high - low)
    width = min(0.74, 52 / room) if room > 6 else 1.0
    labelled = len(shown) <= _LABELLED_MAX
    write = read if max(width_of(read(value), SMALL) for _, value in shown.values()) < room else short
    marks = {mark.at: (position, mark.text) for position, mark in chart.shown_marks()}
    colours = [COLOUR["s1" if day in marks else "s0"] for day, _ in shown.values()]
    bars = axes.bar(list(shown), [finite(value) for _, value in shown.values()], width * each, color=colours)
    for bar, (day, value) in zip(bars, shown.values(), strict=True):
        bar.set_gid(f"{read(day)}: {read(value)}")
    if labelled:
        texts = [write(value) for _, value in shown.values()]
        axes.bar_label(bars, texts, padding=4, size=SMALL, color=COLOUR["soft"])
    for day, (position, why) in marks.items():
        top = max(finite(shown[middle[day]][1]), 0.0)
        canvas.number_mark(axes, position, (middle[day], top), (0, 26 if labelled and top else 13), why)
    several = f"Each bar stands for {each} {'months' if months else 'days'}"
    return axes, [f"{several} and shows the one of them that is farthest from zero."] if each > 1 else []


def _lying(chart: Bars) -> tuple[Axes, list[str]]:
    shown, count = chart.values[:_BARS_MAX], len(chart.values)
    names, texts = [read(name) for name, _ in shown], [read(value) for _, value in shown]
    sizes = [finite(value) for _, value in shown]
    low, high = min(0.0, *sizes), max(0.0, *sizes)
    left = min(240.0, 12 + max(width_of(name, TEXT) for name in names))
    room = 16 + max(width_of(text, SMALL) for text in texts)
    below = room if low < 0 else 0.0  # for the texts of bars to the left
    axes = canvas.area(28 + len(shown) * 25.0, left + below, room + 20, 24, 4, chart.unit)
    axes.set(xlim=(low, high if high > low else low + 1), ylim=(len(shown) - 0.5, -0.5), xticks=[])
    axes.set_yticks(range(len(shown)), [cut(name, TEXT, left - 10) for name in names])
    axes.tick_params("y", pad=10 + below)
    axes.axvline(0, color=COLOUR["zero"], linewidth=1)
    marks = {mark.at: (position, mark.text) for position, mark in chart.shown_marks()}
    colours = [COLOUR["s1" if label in marks else "s0"] for label, _ in shown]
    bars = axes.barh(range(len(shown)), sizes, 0.64, color=colours)
    axes.bar_label(bars, texts, padding=6, size=SMALL, color=COLOUR["soft"])
    for row, (label, _) in enumerate(shown):
        bars[row].set_gid(f"{names[row]}: {texts[row]}")
        if label in marks:
            position, why = marks[label]
            aside = width_of(texts[row], SMALL) + 22 if sizes[row] >= 0 else 14
            canvas.number_mark(axes, position, (max(sizes[row], 0.0), row), (aside, 0), why)
    return axes, [f"The first {_BARS_MAX} of {number(count)} are drawn."] if count > _BARS_MAX else []


_NAME_MAX: Final = 170.0
_GAP: Final = 15.0
"""Least distance between the base lines of two names, in the units of a drawing."""
_ROWS_MAX: Final = 200

_Points: TypeAlias = list[tuple[float, float]]


class Series(NamedTuple):
    """One line: places and values, in any order; None as a value interrupts it."""

    name: str
    points: Sequence[tuple[Place, Number | None]]


@dataclass(frozen=True)
class Lines(Chart):
    """A line for each series. The first seven are coloured, with their names at their ends; others are grey, unnamed.
    Places are all times or all numbers. A mark is at (name of the series, place). Raises `BadOption` for places of both
    kinds, for values that are no finite numbers, for two series of one name, and for marks that are at no line."""

    series: Sequence[Series]
    _: KW_ONLY
    stepped: bool = False
    """Whether each value stays until the next one, as balances do."""
    across: str = ""
    """Name of the horizontal axis, and of the table's first column."""

    def __post_init__(self) -> None:
        self.check(len(self.lines) == len(self.series), "two series have the same name")
        one_kind = len({isinstance(at, date) for series in self.series for at, _ in series.points}) < 2
        self.check(one_kind, "the points must be all at times or all at numbers")
        for mark in self.marks:
            self.check(self.marked(mark) is not None, f"a mark is at {mark.at!r}, where nothing is drawn")

    @cached_property
    def lines(self) -> dict[str, _Points]:
        """For each series, by name, its points that have a value, from left to right."""
        return {series.name: [(x, y) for x, y in _points(series) if not math.isnan(y)] for series in self.series}

    def marked(self, mark: Mark) -> tuple[float, float] | None:
        """Return where to draw a mark, as high as its series' last point up to there; None if there is none."""
        if not isinstance(mark.at, tuple) or len(mark.at) != 2 or mark.at[0] not in self.lines:
            return None
        line, x = self.lines[mark.at[0]], _across(mark.at[1])
        count = bisect.bisect_right(line, x, key=lambda point: point[0])
        return (x, line[count - 1][1]) if count else None

    def drawn(self) -> Drawing | None:
        """Draw the lines; None if no point has a value."""
        if not any(self.lines.values()):
            return None
        said = [
            f"{name}: from {read(line[0][1])} to {read(line[-1][1])}, at most {read(max(y for _, y in line))}"
            for name, line in list(self.lines.items())[:COLOURS]
            if line
        ]
        lines = f"{len(self.lines)} lines" if len(self.lines) > 1 else "A line"
        grey = len(self.lines) - COLOURS
        remarks = [f"{number(grey)} more, without names, are grey."] if grey > 0 else []
        return Drawing(_draw(self), f"{lines}. {'; '.join(said)} {self.unit}".rstrip(), remarks)

    def table(self) -> Table:
        """List each place with the values of all series. Of more than `_ROWS_MAX` places, one of every few."""
        values: dict[Any, dict[str, Number | None]] = defaultdict(dict)
        for series in self.series:
            for at, value in series.points:
                values[at][series.name] = value
        places = sorted(values, key=place)
        every = max(1, -(-len(places) // _ROWS_MAX))
        rows = [(at, *(values[at].get(series.name) for series in self.series)) for at in places[::every]]
        note = f"One of every {every} places, {number(len(places))} in all." if every > 1 else ""
        return Table(self.title, (self.across, *(series.name for series in self.series)), rows, note)


def _across(at: Place) -> float:
    """Return a place as a horizontal coordinate: a number, or a time as days since 1970."""
    return place(at) / 86400 if isinstance(at, date) else place(at)


def _points(series: Series) -> _Points:
    """Return the points of a series from left to right; a missing value is NaN."""
    points = ((_across(at), math.nan if value is None else finite(value)) for at, value in series.points)
    return sorted(points, key=lambda point: point[0])


def _draw(chart: Lines) -> Axes:
    names = list(chart.lines)[:COLOURS]
    colours = {name: COLOUR[f"s{order}"] for order, name in enumerate(names)}
    values = [value for series in chart.series for _, value in series.points if value is not None]
    room = 24 + min(_NAME_MAX, max(width_of(name, TEXT) for name in names))
    axes = canvas.upright_area(values, chart.unit, right=room)
    xs = [x for line in chart.lines.values() for x, _ in line]
    around = 0.5 if min(xs) == max(xs) else 0.0
    is_time = any(isinstance(at, date) for series in chart.series for at, _ in series.points)
    (canvas.time_axis if is_time else canvas.number_axis)(axes, min(xs) - around, max(xs) + around)
    axes.set_xlabel(chart.across, loc="right", size=TEXT, color=COLOUR["soft"])
    axes.tick_params("x", length=5, pad=4)
    for order, series in enumerate(chart.series):
        points = _points(series)
        gaps = [True, *(math.isnan(y) for _, y in points), True]
        alone = [at for at in range(len(points)) if gaps[at] and gaps[at + 2]]  # no line leads there: it becomes a dot
        axes.plot(
            *zip(*points, strict=True), color=colours.get(series.name, COLOUR["other"]), gid=series.name,
            linewidth=1.8 if order < COLOURS else 1.2, drawstyle="steps-post" if chart.stepped else "default",
            marker="o" if alone else "", markevery=alone, markersize=3, zorder=3 - order / len(chart.series),
        )  # fmt: skip
    _name(axes, {name: chart.lines[name][-1] for name in names if chart.lines[name]}, colours)
    for position, mark in chart.shown_marks():
        if at := chart.marked(mark):
            axes.plot(*at, "o", color=COLOUR["page"], mec=COLOUR["bad"], mew=2, markersize=7, zorder=4)
            above = axes.transData.transform(at)[1] + 28 < axes.bbox.y1
            canvas.number_mark(axes, position, at, (0, 16 if above else -16), mark.text)
    return axes


def _name(axes: Axes, ends: Mapping[str, tuple[float, float]], colours: Mapping[str, str]) -> None:
    """Write the names of lines in their colours, each beside its line's end, as near as the other names let it be."""
    left, places = axes.bbox.x1, {name: axes.transData.transform(end) for name, end in ends.items()}
    wanted = sorted(places, key=lambda name: places[name][1])
    heights = spread([places[name][1] for name in wanted], axes.bbox.y0, axes.bbox.y1)
    for name, height in zip(wanted, heights, strict=True):
        colour, (x, y) = colours[name], places[name]
        if abs(height - y) > 1 or x < left - 1:
            leader = {"arrowstyle": "-", "linestyle": (0, (1, 3)), "color": colour, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", (x, y), (left + 12, height), "figure points", "figure points", arrowprops=leader)
        text = cut(name, TEXT, _NAME_MAX)
        axes.annotate(text, (left + 16, height - 4), xycoords="figure points", size=TEXT, color=colour, gid=name)


def spread(wanted: Sequence[float], low: float, high: float) -> list[float]:
    """Move ascending heights of names apart so that no name covers another, and none is above `high`."""
    placed: list[float] = []
    for height in wanted:  # first all of them upwards, then those that are too high back down
        placed.append(max(height, placed[-1] + _GAP if placed else low))
    for index in reversed(range(len(placed))):
        placed[index] = min(placed[index], placed[index + 1] - _GAP if index + 1 < len(placed) else high)
    return placed


_SIDE_MAX: Final = 16
"""The most rows of the chart, and the most columns, without sums: smaller cells hold no number."""
_ROW: Final = 30.0
_HEADING_MAX: Final = 150.0


@dataclass(frozen=True)
class Flows(Chart):
    """Values by (from, to), none of them negative; the cells of other pairs are left empty. Rows and columns are
    ordered by the sum of all that goes out from a name and comes in to it. If there are more than sixteen, the smallest
    are taken together as `others`. Raises `BadOption` for negative values, for values that are no finite numbers, and
    for marks at pairs without a value."""

    values: Mapping[tuple[str, str], Number]
    _: KW_ONLY
    down: str = "from"
    """Name of the rows."""
    across: str = "to"
    """Name of the columns."""

    def __post_init__(self) -> None:
        for pair, value in self.values.items():
            self.check(finite(value) >= 0, f"{pair} has {read(value)}: a flow can't be negative")
        for mark in self.marks:
            self.check(mark.at in self.values, f"a mark is at {mark.at!r}, where nothing is drawn")

    def drawn(self) -> Drawing | None:
        """Draw the matrix; None without values."""
        if not self.values:
            return None
        rows, columns = _places(self.values, 0), _places(self.values, 1)
        (source, target), value = max(self.values.items(), key=lambda each: finite(each[1]))
        most = f"most from {source} to {target}: {read(value)}"
        remarks = [
            f"The {number(len(places) - _SIDE_MAX + 1)} smallest {what} are taken together."
            for places, what in ((rows, "rows"), (columns, "columns"))
            if len(places) > _SIDE_MAX
        ]
        summary = f"{len(_names(rows))} by {len(_names(columns))}; {most}"
        return Drawing(_matrix(self, rows, columns), summary, remarks)

    def table(self) -> Table:
        """List every pair with its value, largest first."""
        rows = sorted(((*pair, value) for pair, value in self.values.items()), key=lambda row: -finite(row[2]))
        return Table(self.title, (self.down, self.across, self.unit or "value"), rows)


def _places(values: Mapping[tuple[str, str], Number], side: int) -> dict[str, int]:
    """Return the row (`side` 0) or column (1) of each name, from 0, the largest first, all small ones in the last."""
    sizes: dict[str, float] = defaultdict(float)
    for pair, value in values.items():
        for name in pair:
            sizes[name] += finite(value)
    order = sorted({pair[side] for pair in values}, key=lambda name: (-sizes[name], name))
    return {name: min(index, _SIDE_MAX - 1) for index, name in enumerate(order)}


def _names(places: Mapping[str, int]) -> list[str]:
    """Return the labels of the rows, or columns: the names, and one label for all that are in the last together."""
    others = len(places) - _SIDE_MAX + 1
    return list(places) if others <= 1 else [*list(places)[: _SIDE_MAX - 1], f"{others} others"]


def _matrix(chart: Flows, row_of: Mapping[str, int], column_of: Mapping[str, int]) -> Axes:
    """Draw the cells and their sums, given in which row and column each name is."""
    rows, columns = _names(row_of), _names(column_of)
    cells: dict[tuple[int, int], float] = defaultdict(float)
    sums: dict[tuple[int, int], float] = defaultdict(float)
    last_row, last_column = len(rows), len(columns)  # a row and a column beyond the names, for the sums
    for (source, target), value in chart.values.items():
        row, column = row_of[source], column_of[target]
        cells[row, column] += finite(value)
        for at in ((row, last_column), (last_row, column), (last_row, last_column)):
            sums[at] += finite(value)
    most = max(cells.values()) or 1.0
    axes = _grid(chart, [*rows, "in all"], [*columns, "in all"])
    room = axes.bbox.width / (last_column + 1) / 3.3  # the longest text, 123 M, is about as wide as its size times this
    centred: dict[str, Any] = {"ha": "center", "va": "center_baseline"}
    for (row, column), value in cells.items():
        about = f"{rows[row]} → {columns[column]}: {read(value)} {chart.unit}".rstrip()
        axes.bar(column, 0.93, 0.97, row - 0.465, color=COLOUR["heat"], alpha=value / most, gid=about)
        axes.text(column, row, short(value), size=min(TEXT, room), color=COLOUR["text"], **centred)
    for (row, column), value in sums.items():
        axes.text(column, row, short(value), size=min(SMALL, room), color=COLOUR["soft"], **centred)
    for position, mark in chart.shown_marks():
        row, column = row_of[mark.at[0]], column_of[mark.at[1]]
        axes.bar(column, 0.93, 0.97, row - 0.465, color="none", edgecolor=COLOUR["bad"], linewidth=2)
        canvas.number_mark(axes, position, (column + 0.45, row - 0.4), (0, 0), mark.text)
    return axes


def _grid(chart: Flows, rows: Sequence[str], columns: Sequence[str]) -> Axes:
    """Make an area for the cells, with names on the left and above. Those above are slanted if they are too wide."""
    left = 14 + min(200.0, max(width_of(name, TEXT) for name in rows))
    widest = min(_HEADING_MAX, max(width_of(name, TEXT) for name in columns))
    room = (WIDTH - left) / len(columns)
    slanted = widest + 8 > room
    width = min(74.0, room - 60 / len(columns)) if slanted else max(74.0, widest + 8)
    top = 34 + (widest * 0.72 if slanted else 18)
    heading = " · ".join(part for part in (f"{chart.down} ↓", f"{chart.across} →", chart.unit) if part)
    axes = canvas.area(top + len(rows) * _ROW + 4, left, WIDTH - left - len(columns) * width, top, 4, heading)
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.set_yticks(range(len(rows)), [cut(name, TEXT, left - 12) for name in rows])
    axes.xaxis.tick_top()
    turned: dict[str, Any] = {"rotation": 45, "rotation_mode": "anchor", "ha": "left"} if slanted else {}
    axes.set_xticks(range(len(columns)), [cut(name, TEXT, _HEADING_MAX) for name in columns], **turned)
    return axes
