"""Bars: one value for each of several labels, or for each day or month."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final, TypeAlias

from polonaise.pipelines.charts import canvas
from polonaise.pipelines.charts.canvas import COLOUR, SMALL, TEXT, Axes
from polonaise.pipelines.charts.figure import Chart, Drawing
from polonaise.pipelines.formatting import Number, cut, finite, number, place, read, short, width_of
from polonaise.pipelines.tables import Table

Label: TypeAlias = str | date

_ROWS_MAX: Final = 30
_UPRIGHT_MAX: Final = 365
"""Largest number of upright bars: more would be too narrow."""
_LABELLED_MAX: Final = 14


@dataclass(frozen=True)
class Bars(Chart):
    """One bar for each value: upright over time where labels are dates, lying below each other where they are texts.

    Dates that are all the first of a month stand for months. Over more than 365 days or months, several share a bar. Of
    texts, the first thirty are drawn. Raises `BadOption` for labels of both kinds or with a time of day, for values
    that are no finite numbers, and for marks at no label.
    """

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
    shown, count = chart.values[:_ROWS_MAX], len(chart.values)
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
    return axes, [f"The first {_ROWS_MAX} of {number(count)} are drawn."] if count > _ROWS_MAX else []
