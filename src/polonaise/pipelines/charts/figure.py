"""What every chart has: a title, a unit, remarks on what is marked, and its figures as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

from polonaise.errors import BadOption
from polonaise.pipelines.markup import Markup, element
from polonaise.pipelines.tables import Table
from polonaise.pipelines.values import number

WIDTH: Final = 760.0
"""Of a drawing, in its own units: pixels where there is room for them."""
TEXT: Final = 12.0
"""The size of labels."""
MARKS_MAX: Final = 20
COLOURS: Final = 7
"""As many as people with any kind of colour vision can tell apart; `page.css` has them, by day and by night."""


class Mark(NamedTuple):
    """Something to point at, such as an anomaly."""

    at: Any
    """A label of `Bars`; (name of a series, place) of `Lines`; (from, to) of `Flows`."""
    text: str
    """Why; it stands below the chart, under the number that the mark has in it."""


class Chart(Protocol):
    """What a page can show as a figure."""

    @property
    def title(self) -> str: ...

    @property
    def note(self) -> str: ...

    @property
    def marks(self) -> Sequence[Mark]: ...

    def drawing(self, label: str) -> Markup:
        """The SVG, named by the element with the id `label`; empty when there is nothing to draw."""
        ...

    def remarks(self) -> list[str]:
        """What a reader should know of what is not drawn."""
        ...

    def table(self) -> Table:
        """The same figures."""
        ...


def figure(chart: Chart, identity: str) -> Markup:
    """A chart with all that belongs to it; `identity` is unique on the page."""
    drawing = chart.drawing(identity)
    nothing = element("p", "Nothing.", class_="nothing")
    shown = [element("li", mark.text) for mark in chart.marks[:MARKS_MAX]]
    notes = ([chart.note] if chart.note else []) + chart.remarks()
    if len(chart.marks) > len(shown):
        notes.append(f"The first {MARKS_MAX} of {number(len(chart.marks))} marks are shown.")
    return element(
        "figure",
        element("figcaption", chart.title, id=identity),
        element("div", drawing, class_="scrolls") if drawing else nothing,
        element("ol", *shown, class_="marks") if shown and drawing else Markup(),
        *(element("p", note, class_="note") for note in notes),
        element("details", element("summary", "The figures"), chart.table().html()) if drawing else Markup(),
    )


def svg(height: float, label: str, summary: str, *children: str) -> Markup:
    """A drawing of the usual width, which screen readers take as one picture with a name and a summary."""
    described = f"{label}-summary"
    return element(
        "svg",
        element("desc", summary, id=described),
        *children,
        viewBox=f"0 0 {WIDTH:.0f} {height:.0f}",
        role="img",
        aria_labelledby=label,
        aria_describedby=described,
    )


def text(content: str, x: float, y: float, *, anchor: str = "start", class_: str | None = None) -> Markup:
    """A label; `y` is its base line."""
    return element("text", content, x=x, y=y, text_anchor=None if anchor == "start" else anchor, class_=class_)


def number_mark(number: int, x: float, y: float, why: str) -> Markup:
    """The number of a mark in a disc."""
    return element(
        "g",
        element("title", why),
        element("circle", cx=x, cy=y, r=8),
        text(str(number), x, y + 3.8, anchor="middle"),
        class_="mark",
    )


def title_of(unit: str, factor: str) -> str:
    """What stands above an axis: its unit, and what the labels have to be taken times."""
    return ", ".join(part for part in (unit, factor) if part)


def no_such_place(chart: str, at: object) -> BadOption:
    """A mark that points at nothing."""
    return BadOption(f"chart {chart!r} has nothing at {at!r} to be marked")
