"""A report as one HTML page: it fetches nothing, runs nothing, and shows every value as text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from polonaise.pipelines.charts.figures import Chart
from polonaise.pipelines.formatting import read
from polonaise.pipelines.markup import Markup, element, joined
from polonaise.pipelines.tables import Table

_STYLE: Final = Markup(Path(__file__).with_name("page.css").read_text())
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""Content security policy: if a text were taken for markup after all, it could load and run nothing."""


class ReportVerdict(NamedTuple):
    """A claim that a report checks, and whether it holds."""

    what: str
    good: bool | None
    """Whether it holds; None if it could not be told."""
    reason: str = ""


class ReportPage:
    """A page that is written from top to bottom; each call adds what it is given and returns the page.

        page = ReportPage("The bank in 1993").facts({"payments": 27_215}).chart(Bars("Payments", months))
        Path("report.html").write_text(page.html(), encoding="utf-8")

    Values are written as people read them: thousands separated, times in UTC, None as a dash.
    """

    def __init__(self, title: str, subtitle: str = "") -> None:
        self._title = title
        self._header = [element("h1", title)]
        if subtitle:
            self._header.append(element("p", subtitle, class_="subtitle"))
        self._header.append(element("p", "All times are UTC.", class_="note"))
        self._sections: list[tuple[Markup, list[Markup]]] = [(Markup(), [])]
        self._figures = 0

    def section(self, title: str, text: str = "") -> Self:
        """Begin a section with a heading. What is added from now on stands under it."""
        self._sections.append((element("h2", title), []))
        return self.text(text) if text else self

    def text(self, text: str) -> Self:
        """Add paragraphs; an empty line separates them."""
        return self._add(*(element("p", part.strip()) for part in text.split("\n\n") if part.strip()))

    def facts(self, facts: dict[str, Any]) -> Self:
        """Add single values with their names, large, side by side."""
        cards = [element("div", element("dt", name), element("dd", read(value))) for name, value in facts.items()]
        return self._add(element("dl", *cards, class_="facts"))

    def verdicts(self, verdicts: Iterable[ReportVerdict]) -> Self:
        """Add a list of claims: first those that do not hold, then those that could not be told, then the others."""
        order = sorted(verdicts, key=lambda verdict: (verdict.good is not False, verdict.good is True))
        return self._add(element("ul", *map(_verdict, order), class_="verdicts"))

    def table(self, table: Table) -> Self:
        """Add a table."""
        return self._add(table.html())

    def chart(self, chart: Chart) -> Self:
        """Add a chart (`Bars`, `Lines` or `Flows`), and below it a table of its figures that the reader can unfold."""
        self._figures += 1
        return self._add(chart.figure(f"figure-{self._figures}"))

    def html(self) -> str:
        """Return the whole page, to be stored as UTF-8."""
        head = element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("link", rel="icon", href="data:,"),
            element("title", self._title),
            element("style", _STYLE),
        )
        sections = [
            element("section", heading, *parts) if heading else joined(*parts) for heading, parts in self._sections
        ]
        body = element("body", element("header", *self._header), element("main", *sections))
        return joined(Markup("<!DOCTYPE html>\n"), element("html", head, body, lang="en"), "\n")

    def _add(self, *parts: Markup) -> Self:
        self._sections[-1][1].extend(parts)
        return self


def _verdict(verdict: ReportVerdict) -> Markup:
    style, sign, word = {
        True: ("good", "✓", "holds"),
        False: ("bad", "✗", "does not hold"),
        None: ("open", "?", "could not be told"),
    }[verdict.good]
    return element(
        "li",
        element("span", sign, class_="word", aria_hidden="true"),
        element("strong", verdict.what),
        ": ",
        element("span", word, class_="word"),
        element("span", verdict.reason, class_="reason") if verdict.reason else Markup(),
        class_=style,
    )
