"""Lines: how one or several values went, over time or along numbers."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final, NamedTuple

from polonaise.errors import BadOption
from polonaise.pipelines.charts.figure import (
    COLOURS,
    MARKS_MAX,
    TEXT,
    WIDTH,
    Mark,
    no_such_place,
    number_mark,
    svg,
    text,
)
from polonaise.pipelines.charts.plot import Plot
from polonaise.pipelines.charts.ticks import Tick, number_scale, time_ticks
from polonaise.pipelines.markup import Markup, element, joined
from polonaise.pipelines.tables import Table
from polonaise.pipelines.values import Number, Place, cut, finite, number, place, read, width_of

_LABEL_MAX: Final = 170.0
_GAP: Final = 15.0
"""Between the base lines of labels."""
_ROWS_MAX: Final = 200


class Series(NamedTuple):
    """One line: places and values, in any order; None as a value interrupts it."""

    name: str
    points: Sequence[tuple[Place, Number | None]]


class Point(NamedTuple):
    """Of a line, as places on both axes; `y` is None where there is no value."""

    x: float
    y: float | None


@dataclass(frozen=True)
class Lines:
    """A line for each series, with its name at its end. The first seven are coloured, others grey in the background.

    Places are all times or all numbers. `stepped` for values that stay until the next one, such as balances. A mark
    is at (name of the series, place): on the line, at the last point up to that place. Raises `BadOption` for places
    of both kinds, for values that are no finite numbers, for two series of one name, and for marks that are at no line.
    """

    title: str
    series: Sequence[Series]
    unit: str = ""
    note: str = ""
    marks: Sequence[Mark] = ()
    stepped: bool = False
    across: str = ""
    """What the places are, where they are numbers."""

    def __post_init__(self) -> None:
        if len({series.name for series in self.series}) < len(self.series):
            raise BadOption(f"chart {self.title!r}: two series have the same name")
        if len({isinstance(at, date) for series in self.series for at, _ in series.points}) > 1:
            raise BadOption(f"chart {self.title!r}: the places of points are all times, or all numbers")
        points = {series.name: _points(series) for series in self.series}
        for mark in self.marks:
            if _marked(points, mark) is None:
                raise no_such_place(self.title, mark.at)

    def drawing(self, label: str) -> Markup:
        """The lines; empty without a point."""
        points = {series.name: _points(series) for series in self.series}
        if not any(point.y is not None for line in points.values() for point in line):
            return Markup()
        return _drawn(self, points, label)

    def remarks(self) -> list[str]:
        """Which lines are not named."""
        others = len(self.series) - COLOURS
        return [f"{number(others)} more, without names, are grey."] if others > 0 else []

    def table(self) -> Table:
        """A row for each place, a column for each series; not of every place where there are many."""
        values: dict[Any, dict[int, Number | None]] = {}
        for column, series in enumerate(self.series):
            for at, value in series.points:
                values.setdefault(at, {})[column] = value
        places = sorted(values, key=place)
        every = -(-len(places) // _ROWS_MAX)
        rows = [
            (at, *(values[at].get(column) for column in range(len(self.series)))) for at in places[:: max(1, every)]
        ]
        note = f"Each {every}th of {number(len(places))} places." if every > 1 else ""
        return Table(self.title, (self.across, *(series.name for series in self.series)), rows, note)


def _points(series: Series) -> list[Point]:
    made = (Point(place(at), None if value is None else finite(value)) for at, value in series.points)
    return sorted(made, key=lambda point: point.x)


def _marked(points: dict[str, list[Point]], mark: Mark) -> Point | None:
    """Where on which line a mark is."""
    if not isinstance(mark.at, tuple) or len(mark.at) != 2 or mark.at[0] not in points:
        return None
    name, at = mark.at
    line = [point for point in points[name] if point.y is not None]
    found = bisect.bisect_right(line, place(at), key=lambda point: point.x)
    return Point(place(at), line[found - 1].y) if found else None


def _drawn(chart: Lines, points: dict[str, list[Point]], label: str) -> Markup:
    named = list(points)[:COLOURS]
    room = 24 + min(_LABEL_MAX, max(width_of(name, TEXT) for name in named))
    plot = _plot(chart, points, room)
    is_time = any(isinstance(at, date) for series in chart.series for at, _ in series.points)
    ticks = time_ticks(plot.low, plot.high) if is_time else _number_ticks(plot)
    drawn = [plot.axes(ticks)]
    if chart.across:
        drawn.append(text(chart.across, WIDTH - plot.right, plot.bottom + 33, anchor="end", class_="axis"))
    for name in [*list(points)[COLOURS:], *reversed(named)]:  # the first ones on top
        style = f"line s{named.index(name)}" if name in named else "line other"
        path = _path(plot, thinned(points[name], plot.low, plot.high, int(plot.width)), chart.stepped)
        drawn.append(element("path", element("title", name), d=path, class_=style))
    drawn.append(_labels(plot, {name: points[name] for name in named}))
    for position, mark in enumerate(chart.marks[:MARKS_MAX], start=1):
        at = _marked(points, mark)
        if at is not None and at.y is not None:
            x, y = plot.x(at.x), plot.y(at.y)
            drawn.append(element("circle", cx=x, cy=y, r=3.5, class_="spot"))
            drawn.append(number_mark(position, x, y - 16 if y - 28 > plot.top else y + 16, mark.text))
    return svg(plot.height, label, _summary(chart, points), *drawn)


def _plot(chart: Lines, points: dict[str, list[Point]], room: float) -> Plot:
    drawable = [point for line in points.values() for point in line if point.y is not None]
    values = [point.y for point in drawable if point.y is not None]
    low, high = min(values), max(values)
    if 0 < low < high * 0.6 or (high > 0 and low == high):
        low = 0.0
    elif low * 0.6 < high < 0:
        high = 0.0
    whole = all(isinstance(value, int) for series in chart.series for _, value in series.points if value is not None)
    first, last = min(point.x for point in drawable), max(point.x for point in drawable)
    if first == last:
        first, last = first - 1, last + 1
    return Plot(number_scale(low, high, whole=whole), first, last, chart.unit, right=room)


def _number_ticks(plot: Plot) -> list[Tick]:
    scale = number_scale(plot.low, plot.high, about=7)
    return [
        Tick(tick.at, f"{tick.label} {scale.factor}".rstrip())
        for tick in scale.ticks
        if plot.low <= tick.at <= plot.high
    ]


def thinned(points: Sequence[Point], low: float, high: float, columns: int) -> list[Point]:
    """Points of which no more than four are in each of so many columns: the first, the last, and both extremes.

    What is drawn is the same to the eye: a column is a pixel wide. Gaps stay.
    """
    if len(points) <= 2 * columns:
        return list(points)
    width = (high - low) / columns
    kept: list[Point] = []
    column: list[Point] = []

    def flush() -> None:
        values = sorted(range(len(column)), key=lambda index: column[index].y or 0.0)
        kept.extend(column[index] for index in sorted({0, values[0], values[-1], len(column) - 1}))
        column.clear()

    for point in points:
        if column and (point.y is None or int((point.x - low) / width) != int((column[0].x - low) / width)):
            flush()
        if point.y is not None:
            column.append(point)
        elif kept and kept[-1].y is not None:
            kept.append(point)
    if column:
        flush()
    return kept


def _path(plot: Plot, points: Sequence[Point], stepped: bool) -> str:
    return " ".join(_strokes(plot, points, stepped))


def _strokes(plot: Plot, points: Sequence[Point], stepped: bool) -> Iterator[str]:
    drawing = False
    for point in points:
        if point.y is None:
            drawing = False
            continue
        x, y = f"{plot.x(point.x):.1f}", f"{plot.y(point.y):.1f}"
        if not drawing:
            yield f"M{x} {y}h0"  # a single point is a dot, by its round ends
        else:
            yield f"H{x}V{y}" if stepped else f"L{x} {y}"
        drawing = True


def _labels(plot: Plot, points: dict[str, list[Point]]) -> Markup:
    """The names, each beside the end of its line as near as the others let it."""
    ends = {name: _end(line) for name, line in points.items()}
    wanted = sorted((plot.y(end.y or 0.0), name) for name, end in ends.items() if end is not None)
    heights = spread([height for height, _ in wanted], plot.top, plot.bottom)
    drawn: list[Markup] = []
    order = list(points)
    for (height, name), at in zip(wanted, heights, strict=True):
        end = ends[name]
        style = f"s{order.index(name)}"
        left = WIDTH - plot.right
        if end is not None and (abs(at - height) > 1 or plot.x(end.x) < left - 1):
            drawn.append(
                element("path", d=f"M{plot.x(end.x):.1f} {height:.1f}L{left + 12} {at:.1f}", class_=f"leader {style}")
            )
        drawn.append(
            element("g", element("title", name), text(cut(name, TEXT, _LABEL_MAX), left + 16, at + 4), class_=style)
        )
    return joined(*drawn)


def _end(line: Sequence[Point]) -> Point | None:
    return next((point for point in reversed(line) if point.y is not None), None)


def spread(wanted: Sequence[float], top: float, bottom: float) -> list[float]:
    """Places for labels, given in ascending order, so that none covers another, each as near as that lets it."""
    placed: list[float] = []
    for height in wanted:
        placed.append(max(height, placed[-1] + _GAP if placed else top))
    below = placed[-1] - bottom if placed else 0.0
    if below > 0:
        placed[-1] = bottom
        for index in range(len(placed) - 2, -1, -1):
            placed[index] = min(placed[index], placed[index + 1] - _GAP)
    return placed


def _summary(chart: Lines, points: dict[str, list[Point]]) -> str:
    said = []
    for name, line in list(points.items())[:COLOURS]:
        values = [point.y for point in line if point.y is not None]
        if values:
            said.append(f"{name}: from {read(values[0])} to {read(values[-1])}, at most {read(max(values))}")
    turns = f"{len(chart.series)} lines" if len(chart.series) > 1 else "A line"
    return f"{turns}. {'; '.join(said)} {chart.unit}".rstrip()
