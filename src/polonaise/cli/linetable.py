"""A table whose rows are one line each, on a terminal of any width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table

_GAP: Final = 2
_READABLE: Final = 12
"""Characters of each name and reason that are kept until the headers of numbers have been cut."""
_LEAST: Final = 4
"""Characters of each name and reason that are kept until numbers have to be cut."""


class LineTable(Table):
    """A table that cuts its cells where the terminal is too narrow, each cut marked by an ellipsis.

    First to be cut is the last column, which says reasons; then names; then headers of numbers. Numbers are cut last: a
    number that is cut is a wrong one.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for column, width in zip(self.columns, self._widths(options.max_width), strict=True):
            column.width = width
        yield from super().__rich_console__(console, options)

    def _widths(self, available: int) -> list[int]:
        cells = [max(map(cell_len, map(str, column.cells)), default=0) for column in self.columns]
        widths = [max(cell, cell_len(str(column.header))) for cell, column in zip(cells, self.columns, strict=True)]
        last = len(widths) - 1
        numbers = [index for index in range(last) if _is_number(self.columns[index])]
        names = [index for index in range(last) if index not in numbers]
        least_of_numbers = [max(1, cell) for cell in cells]
        for indexes, floors in (
            ([last], [_READABLE] * len(widths)),
            (names, [_READABLE] * len(widths)),
            (numbers, least_of_numbers),
            ([*names, last], [_LEAST] * len(widths)),
            (numbers, [1] * len(widths)),
            ([*names, last], [1] * len(widths)),
        ):
            _narrow(widths, indexes, floors, sum(widths) + _GAP * last - available)
        return widths


def _is_number(column: Column) -> bool:
    return column.justify == "right"


def _narrow(widths: list[int], indexes: Sequence[int], floors: Sequence[int], excess: int) -> None:
    """Narrow the columns at these indexes, always the widest, by `excess` characters in all, but not below `floors`."""
    while excess > 0:
        over = [index for index in indexes if widths[index] > floors[index]]
        if not over:
            return
        widths[max(over, key=lambda index: widths[index])] -= 1
        excess -= 1
