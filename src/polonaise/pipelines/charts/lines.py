"""Lines: one or several values over time, or along numbers."""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import date
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias

from polonaise.pipelines.charts import canvas
from polonaise.pipelines.charts.canvas import COLOUR, COLOURS, TEXT, Axes
from polonaise.pipelines.charts.figure import Chart, Drawing, Mark
from polonaise.pipelines.formatting import Number, Place, cut, finite, number, place, read, width_of
from polonaise.pipelines.tables import Table

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
    kinds, for values that are no finite numbers, for two series of one name, and for marks that are at no line.
    """

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
