"""Flows: what went from each to each, as a matrix with darker cells for more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from polonaise.errors import BadOption
from polonaise.pipelines.charts.figure import MARKS_MAX, TEXT, WIDTH, Mark, no_such_place, number_mark, svg, text
from polonaise.pipelines.markup import Markup, element
from polonaise.pipelines.tables import Table
from polonaise.pipelines.values import Number, cut, finite, number, read, short, width_of

_SIDE_MAX: Final = 16
"""Rows and columns; smaller cells could not hold a number."""
_ROW: Final = 30.0
_HEADING_MAX: Final = 150.0


@dataclass(frozen=True)
class Flows:
    """Values by (from, to), none of them negative; pairs that are not there are left empty.

    Rows and columns are in one order, by what goes out and comes in together, largest first. Of more than sixteen, the
    smallest are taken together as `others`. Raises `BadOption` for other values, and for marks at pairs that are not
    there.
    """

    title: str
    values: Mapping[tuple[str, str], Number]
    unit: str = ""
    note: str = ""
    marks: Sequence[Mark] = ()
    down: str = "from"
    """What the rows are."""
    across: str = "to"
    """What the columns are."""

    def __post_init__(self) -> None:
        for pair, value in self.values.items():
            if finite(value) < 0:
                raise BadOption(f"chart {self.title!r}: {pair} has {read(value)}, and what flows is never negative")
        for mark in self.marks:
            if mark.at not in self.values:
                raise no_such_place(self.title, mark.at)

    def drawing(self, label: str) -> Markup:
        """The matrix; empty without values."""
        return _matrix(self, label) if self.values else Markup()

    def remarks(self) -> list[str]:
        """Which of them are taken together."""
        said = []
        for side, what in ((0, "rows"), (1, "columns")):
            count = len({pair[side] for pair in self.values})
            if count > _SIDE_MAX:
                said.append(f"The {number(count - _SIDE_MAX + 1)} smallest {what} are taken together.")
        return said

    def table(self) -> Table:
        """Every pair with its value, largest first."""
        rows = sorted(((*pair, value) for pair, value in self.values.items()), key=lambda row: -finite(row[2]))
        return Table(self.title, (self.down, self.across, self.unit or "value"), rows)


class _Side:
    """The rows, or the columns: which there are, in which order, and how much each has in all."""

    def __init__(self, values: Mapping[tuple[str, str], Number], side: int) -> None:
        sums: dict[str, float] = {}
        both: dict[str, float] = {}
        for pair, value in values.items():
            sums[pair[side]] = sums.get(pair[side], 0.0) + finite(value)
            for name in pair:
                both[name] = both.get(name, 0.0) + finite(value)
        order = sorted(sums, key=lambda name: (-both[name], name))
        kept = order if len(order) <= _SIDE_MAX else order[: _SIDE_MAX - 1]
        self._index = {name: index for index, name in enumerate(kept)}
        self.names = list(kept)
        self.sums = [sums[name] for name in kept]
        if len(kept) < len(order):
            self.names.append(f"{len(order) - len(kept)} others")
            self.sums.append(sum(sums[name] for name in order[len(kept) :]))

    def of(self, name: str) -> int:
        return self._index.get(name, len(self.names) - 1)


def _matrix(chart: Flows, label: str) -> Markup:
    rows, columns = _Side(chart.values, 0), _Side(chart.values, 1)
    cells: dict[tuple[int, int], float] = {}
    for (source, target), value in chart.values.items():
        at = rows.of(source), columns.of(target)
        cells[at] = cells.get(at, 0.0) + finite(value)
    most = max(cells.values()) or 1.0
    left = 14 + min(200.0, max(width_of(name, TEXT) for name in [*rows.names, chart.down]))
    widest = max(width_of(name, TEXT) for name in columns.names)
    room = (WIDTH - left - 80) / len(columns.names)
    slanted = widest + 8 > room
    width = min(74.0, room) if slanted else min(max(74.0, widest + 8), room)
    top = 34 + (min(_HEADING_MAX, widest) * 0.72 if slanted else 18)
    drawn = [text(" · ".join(filter(None, (f"{chart.down} ↓", f"{chart.across} →", chart.unit))), 0, 12, class_="axis")]
    for column, name in enumerate(columns.names):
        drawn.append(_heading(name, left + (column + 0.5) * width, top - 8, slanted, width))
    for row, name in enumerate(rows.names):
        drawn.append(text(cut(name, TEXT, left - 12), left - 10, top + row * _ROW + 19, anchor="end"))
    for (row, column), value in sorted(cells.items()):
        about = f"{rows.names[row]} → {columns.names[column]}: {read(value)} {chart.unit}".rstrip()
        drawn.append(_cell(left + column * width, top + row * _ROW, width, value, value / most, about))
    drawn += _sums(rows, columns, left, top, width)
    for position, mark in enumerate(chart.marks[:MARKS_MAX], start=1):
        x, y = left + columns.of(mark.at[1]) * width, top + rows.of(mark.at[0]) * _ROW
        drawn.append(element("rect", x=x, y=y, width=width - 2, height=_ROW - 2, class_="outline"))
        drawn.append(number_mark(position, x + width - 6, y + 3, mark.text))
    largest = max(chart.values, key=lambda pair: finite(chart.values[pair]))
    summary = f"{len(rows.names)} by {len(columns.names)}; most from {largest[0]} to {largest[1]}: "
    return svg(top + (len(rows.names) + 1) * _ROW + 4, label, summary + read(chart.values[largest]), *drawn)


def _heading(name: str, x: float, y: float, slanted: bool, width: float) -> Markup:
    if not slanted:
        return text(cut(name, TEXT, width), x, y, anchor="middle")
    shown = element("text", cut(name, TEXT, _HEADING_MAX), transform=f"translate({x:.1f} {y:.1f}) rotate(-45)")
    return element("g", element("title", name), shown)


def _cell(x: float, y: float, width: float, value: float, share: float, about: str) -> Markup:
    return element(
        "g",
        element("title", about),
        element("rect", x=x, y=y, width=width - 2, height=_ROW - 2, class_="cell"),
        element("rect", x=x, y=y, width=width - 2, height=_ROW - 2, class_="heat", fill_opacity=share),
        text(short(value), x + (width - 2) / 2, y + 18, anchor="middle"),
    )


def _sums(rows: _Side, columns: _Side, left: float, top: float, width: float) -> list[Markup]:
    """What each row and column has in all, at their ends."""
    right, bottom = left + len(columns.names) * width, top + len(rows.names) * _ROW
    foot = bottom + 19
    drawn = [
        text("in all", right + 8, top - 8, class_="axis"),
        text("in all", left - 10, foot, anchor="end", class_="axis"),
        text(short(sum(rows.sums)), right + 8, foot, class_="value"),
    ]
    for row, value in enumerate(rows.sums):
        drawn.append(text(short(value), right + 8, top + row * _ROW + 19, class_="value"))
    for column, value in enumerate(columns.sums):
        drawn.append(text(short(value), left + (column + 0.5) * width - 1, foot, anchor="middle", class_="value"))
    return drawn
