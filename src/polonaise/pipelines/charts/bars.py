"""Bars: one value for each of several labels, or for each day or month."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final, TypeAlias

from polonaise.errors import BadOption
from polonaise.pipelines.charts.figure import MARKS_MAX, TEXT, WIDTH, Mark, no_such_place, number_mark, svg, text
from polonaise.pipelines.charts.plot import Plot
from polonaise.pipelines.charts.ticks import DAY, MONTH, Tick, number_scale, time_ticks
from polonaise.pipelines.markup import Markup, element
from polonaise.pipelines.tables import Table
from polonaise.pipelines.values import Number, cut, finite, number, place, read, short, time_at, width_of

Label: TypeAlias = str | date

_ROWS_MAX: Final = 30
_SLOTS_MAX: Final = 365
"""Narrower ones could not be told apart."""
_LABELLED_MAX: Final = 14
_ROW: Final = 25.0


@dataclass(frozen=True)
class Bars:
    """One bar for each value: upright over time where labels are dates, lying below each other where they are texts.

    Dates that are all the first of a month stand for months. Days and months without a value are left free. Raises
    `BadOption` for labels of both kinds, for values that are no finite numbers, and for marks at no label.
    """

    title: str
    values: Sequence[tuple[Label, Number]]
    unit: str = ""
    note: str = ""
    marks: Sequence[Mark] = ()

    def __post_init__(self) -> None:
        kinds = {isinstance(label, date) for label, _ in self.values}
        if len(kinds) > 1 or any(isinstance(label, datetime) for label, _ in self.values):
            raise BadOption(f"chart {self.title!r}: the labels of bars are all dates, or all texts")
        for _, value in self.values:
            finite(value)
        labels = {label for label, _ in self.values}
        for mark in self.marks:
            if mark.at not in labels:
                raise no_such_place(self.title, mark.at)

    def drawing(self, label: str) -> Markup:
        """The bars; empty without values."""
        if not self.values:
            return Markup()
        return _upright(self, label) if isinstance(self.values[0][0], date) else _lying(self, label)

    def remarks(self) -> list[str]:
        """Which bars are not drawn."""
        count = len(self.values)
        if not count:
            return []
        if not isinstance(self.values[0][0], date):
            return [f"The first {_ROWS_MAX} of {number(count)} are drawn."] if count > _ROWS_MAX else []
        slots = _Slots(self.values)
        if slots.each == 1:
            return []
        period = "months" if slots.months else "days"
        return [f"Each bar stands for {slots.each} {period} and shows the one of them that is farthest from zero."]

    def table(self) -> Table:
        """Every label with its value."""
        months = bool(self.values) and isinstance(self.values[0][0], date) and _Slots(self.values).months
        rows = [(read(label)[:7] if months else read(label), value) for label, value in self.values]
        return Table(self.title, ("", self.unit or "value"), rows)

    @property
    def summary(self) -> str:
        """What a screen reader says of it."""
        highest, lowest = (choose(self.values, key=lambda each: finite(each[1])) for choose in (max, min))
        return (
            f"{number(len(self.values))} bars; highest {read(highest[0])} with {read(highest[1])}, "
            f"lowest {read(lowest[0])} with {read(lowest[1])} {self.unit}"
        ).rstrip()


class _Slots:
    """Room for each day or month from the first to the last; several share one where there are too many."""

    def __init__(self, values: Sequence[tuple[Label, Number]]) -> None:
        days = [label for label, _ in values if isinstance(label, date)]
        self.months = all(day.day == 1 for day in days)
        self._first = min(self._index(day) for day in days)
        self.each = -(-(max(self._index(day) for day in days) - self._first + 1) // _SLOTS_MAX)
        self.count = max(self.of(day) for day in days) + 1
        places = [place(day) for day in days]
        least_s = MONTH if self.months else DAY
        most = min(14, self.count)
        self.ticks = [
            Tick(self.of(time_at(tick.at).date()), tick.label, tick.below)
            for tick in time_ticks(min(places), max(places), least_s=least_s, count_max=most)
        ]

    def _index(self, day: date) -> int:
        return day.year * 12 + day.month - 1 if self.months else day.toordinal()

    def of(self, day: date) -> int:
        return (self._index(day) - self._first) // self.each


def _upright(chart: Bars, label: str) -> Markup:
    slots = _Slots(chart.values)
    highest: dict[int, tuple[Label, Number]] = {}
    for each in chart.values:
        slot = slots.of(each[0]) if isinstance(each[0], date) else 0
        if slot not in highest or abs(finite(each[1])) > abs(finite(highest[slot][1])):
            highest[slot] = each
    numbers = [finite(value) for _, value in chart.values]
    whole = all(isinstance(value, int) for _, value in chart.values)
    scale = number_scale(min(0.0, *numbers), max(0.0, *numbers), whole=whole)
    plot = Plot(scale, -0.5, slots.count - 0.5, chart.unit, top=46.0)
    room = plot.width / slots.count
    width = min(room * (0.74 if room > 6 else 1.0), 52.0)
    labelled = len(highest) <= _LABELLED_MAX
    write = read if max(width_of(read(value), TEXT) for _, value in highest.values()) < room else short
    marks = {mark.at: (place, mark) for place, mark in enumerate(chart.marks[:MARKS_MAX], start=1)}
    drawn = [plot.axes(slots.ticks, marked=False)]
    for slot, (name, value) in sorted(highest.items()):
        left, zero, end = plot.x(slot) - width / 2, plot.y(0), plot.y(finite(value))
        top = min(end, zero)
        drawn.append(_bar(left, top, width, abs(end - zero), (name, value), name in marks))
        if labelled:
            drawn.append(text(write(value), plot.x(slot), top - 6, anchor="middle", class_="value"))
        if name in marks:
            drawn.append(number_mark(marks[name][0], plot.x(slot), top - (26 if labelled else 13), marks[name][1].text))
    drawn.append(element("line", x1=plot.left, x2=WIDTH - plot.right, y1=plot.y(0), y2=plot.y(0), class_="zero"))
    return svg(plot.height, label, chart.summary, *drawn)


def _bar(left: float, top: float, width: float, height: float, each: tuple[Label, Number], marked: bool) -> Markup:
    return element(
        "rect",
        element("title", f"{read(each[0])}: {read(each[1])}"),
        x=left,
        y=top,
        width=max(width, 0.5),
        height=max(height, 0.5),
        class_="bar marked" if marked else "bar",
    )


def _lying(chart: Bars, label: str) -> Markup:
    shown = chart.values[:_ROWS_MAX]
    left = min(240.0, 12 + max(width_of(read(name), TEXT) for name, _ in shown))
    numbers = [finite(value) for _, value in shown]
    low, high = min(0.0, *numbers), max(0.0, *numbers)
    room = 16 + max(width_of(read(value), TEXT) for _, value in shown)
    before = room if low < 0 else 0.0
    unit = (WIDTH - left - before - room - 20) / ((high - low) or 1.0)
    zero = left + before - low * unit
    marks = {mark.at: (place, mark) for place, mark in enumerate(chart.marks[:MARKS_MAX], start=1)}
    drawn = [text(chart.unit, zero, 12, class_="axis")]
    for row, ((name, value), size) in enumerate(zip(shown, numbers, strict=True)):
        middle = 34 + row * _ROW
        end = zero + size * unit
        drawn.append(_bar(min(zero, end), middle - 8, abs(end - zero), 16, (name, value), name in marks))
        drawn.append(text(cut(read(name), TEXT, left - 10), left - 10, middle + 4, anchor="end"))
        side, anchor = (-6, "end") if size < 0 else (6, "start")
        drawn.append(text(read(value), end + side, middle + 4, anchor=anchor, class_="value"))
        if name in marks:
            at = zero + max(size, 0) * unit + (room if size >= 0 else 4) + 10
            drawn.append(number_mark(marks[name][0], at, middle, marks[name][1].text))
    bottom = 34 + len(shown) * _ROW
    drawn.append(element("line", x1=zero, x2=zero, y1=20, y2=bottom - 10, class_="zero"))
    return svg(bottom, label, chart.summary, *drawn)
