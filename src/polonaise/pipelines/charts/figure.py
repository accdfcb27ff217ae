"""The parts that every chart has: a title, marks, remarks, and its figures as a table, too."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, NamedTuple

from polonaise.errors import BadOption
from polonaise.pipelines.charts.canvas import Axes, svg
from polonaise.pipelines.formatting import number
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
