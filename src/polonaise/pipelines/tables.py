"""The tables of a report page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from polonaise.errors import BadOption
from polonaise.pipelines.formatting import number, read
from polonaise.pipelines.markup import Markup, element, joined

ROWS_MAX: Final = 500


@dataclass(frozen=True)
class Table:
    """A table on a page: rows of values under named columns. Numbers are aligned right, with thousands separated."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    """The rows, each with one value per column."""
    note: str = ""
    rows_max: int = ROWS_MAX
    """Number of rows that are shown at most; a note says how many there are."""

    def __post_init__(self) -> None:
        for row in self.rows[: self.rows_max]:
            if len(row) != len(self.columns):
                raise BadOption(
                    f"table {self.title!r} has {len(self.columns)} columns and a row of {len(row)} values: give each "
                    "row one value per column"
                )

    def html(self) -> Markup:
        """Return the table, with its title as caption, and its note."""
        shown = self.rows[: self.rows_max]
        numeric = [any(_is_number(row[index]) for row in shown) for index in range(len(self.columns))]
        head = element("tr", *(_cell("th", name, right) for name, right in zip(self.columns, numeric, strict=True)))
        body = [
            element("tr", *(_cell("td", read(value), right, value) for value, right in zip(row, numeric, strict=True)))
            for row in shown
        ] or [element("tr", element("td", "No data.", colspan=len(self.columns), class_="nothing"))]
        table = element(
            "table", element("caption", self.title), element("thead", head), element("tbody", joined(*body))
        )
        notes = [self.note] if self.note else []
        if len(self.rows) > len(shown):
            notes.append(f"The first {number(len(shown))} of {number(len(self.rows))} rows.")
        return joined(
            element("div", table, class_="scrolls", tabindex=0, role="region", aria_label=self.title),
            *(element("p", note, class_="note") for note in notes),
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal | Fraction) and not isinstance(value, bool)


def _cell(name: str, text: str, right: bool, value: Any = None) -> Markup:
    style = "number" if right else "whole" if isinstance(value, date) else None
    return element(name, text, class_=style, scope="col" if name == "th" else None)
