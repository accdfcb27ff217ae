"""Flows: amounts that went from one name to another, as a matrix with more strongly coloured cells for more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

from polonaise.pipelines.charts import canvas
from polonaise.pipelines.charts.canvas import COLOUR, SMALL, TEXT, WIDTH, Axes
from polonaise.pipelines.charts.figure import Chart, Drawing
from polonaise.pipelines.formatting import Number, cut, finite, number, read, short, width_of
from polonaise.pipelines.tables import Table

_SIDE_MAX: Final = 16
"""The most rows of the chart, and the most columns, without sums: smaller cells hold no number."""
_ROW: Final = 30.0
_HEADING_MAX: Final = 150.0


@dataclass(frozen=True)
class Flows(Chart):
    """Values by (from, to), none of them negative; the cells of other pairs are left empty.

    Rows and columns are ordered by the sum of all that goes out from a name and comes in to it. If there are more than
    sixteen, the smallest are taken together as `others`. Raises `BadOption` for negative values, for values that are no
    finite numbers, and for marks at pairs without a value.
    """

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
    for (row, column), value in cells.items():
        about = f"{rows[row]} → {columns[column]}: {read(value)} {chart.unit}".rstrip()
        axes.bar(column, 0.93, 0.97, row - 0.465, color=COLOUR["heat"], alpha=value / most, gid=about)
        axes.text(
            column, row, short(value), ha="center", va="center_baseline", size=min(TEXT, room), color=COLOUR["text"]
        )
    for (row, column), value in sums.items():
        axes.text(
            column, row, short(value), ha="center", va="center_baseline", size=min(SMALL, room), color=COLOUR["soft"]
        )
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
