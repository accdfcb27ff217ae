"""Pages taken apart again, as a browser would."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from polonaise.pipelines.charts import Chart
from polonaise.pipelines.formatting import width_of

HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "</style></svg></title><b>out</b>",
    "]]> --> &lt; & &amp; ${x} {{x}} javascript:alert(1)",
    "a\x00b\x1b[31m\x7f\ud800 \u202e evil \u2066",
    "x" * 5000,
    "口座 🏦 עברית",
    "",
)
_ALLOWED = {
    *(
        "html",
        "head",
        "meta",
        "link",
        "title",
        "style",
        "body",
        "header",
        "main",
        "section",
        "h1",
        "h2",
        "p",
        "dl",
        "div",
    ),
    *("dt", "dd", "ul", "ol", "li", "span", "strong", "figure", "figcaption", "details", "summary"),
    *("table", "caption", "thead", "tbody", "tr", "th", "td"),
    *("svg", "desc", "g", "path", "text"),
}


class _Checked(HTMLParser):
    """Every element is one of ours, is closed, and asks for nothing."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _ALLOWED, f"<{tag}>"
        for name, value in attrs:
            assert not name.startswith("on"), name
            assert name not in ("src", "srcset", "action"), name
            assert name != "href" or value == "data:,", value
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)


def checked(html: str) -> str:
    """The text of a page that is well-formed, has nothing but our elements, and fetches and runs nothing."""
    parser = _Checked()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    html.encode()
    identities = re.findall(r' id="([^"]*)"', html)
    assert len(identities) == len(set(identities))
    assert set(re.findall(r' aria-(?:labelledby|describedby)="([^"]*)"', html)) <= set(identities)
    assert "url(" not in html
    assert "@import" not in html
    return "\n".join(parser.words)


def drawn(chart: Chart) -> ElementTree.Element:
    """The drawing of a chart as a tree; empty when there is none."""
    found = ElementTree.fromstring(chart.figure("f")).find(".//svg")
    return ElementTree.Element("svg") if found is None else found


def labels(svg: ElementTree.Element) -> list[str]:
    """Return the texts in a drawing."""
    return ["".join(each.itertext()) for each in svg.iter("text")]


def titled(svg: ElementTree.Element) -> dict[str, ElementTree.Element]:
    """Return the shapes with a tooltip, by its text."""
    found = {}
    for group in svg.iter("g"):
        title, path = group.find("title"), group.find("path")
        if title is not None and path is not None:
            found[title.text or ""] = path
    return found


class Box(NamedTuple):
    """The rectangle around a shape; `y` grows downwards."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def middle(self) -> float:
        return (self.left + self.right) / 2

    @property
    def height(self) -> float:
        return self.bottom - self.top


def points(path: ElementTree.Element) -> list[tuple[float, float]]:
    """Return the points of a shape, in order."""
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", path.attrib["d"])]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def box(path: ElementTree.Element) -> Box:
    xs, ys = zip(*points(path), strict=True)
    return Box(min(xs), min(ys), max(xs), max(ys))


def extent(text: ElementTree.Element) -> Box:
    """Return about where a text is drawn."""
    x, y = float(text.attrib["x"]), float(text.attrib["y"])
    size = re.search(r"font-size: ([\d.]+)px", text.attrib["style"])
    assert size is not None
    width = width_of(text.text or "", float(size[1]))
    if "transform" in text.attrib:
        return Box(x, y - width * 0.71, x + width * 0.71, y)
    left = x - {"start": 0.0, "middle": 0.5, "end": 1.0}[text.attrib["text-anchor"]] * width
    return Box(left, y - float(size[1]), left + width, y)


def check_inside(svg: ElementTree.Element) -> None:
    """Check that no part of a drawing is outside of its bounds."""
    _, _, width, height = map(float, svg.attrib["viewBox"].split())
    boxes = [box(each) for each in svg.iter("path") if each.get("d", "").strip()]
    for each in [*boxes, *(extent(text) for text in svg.iter("text"))]:
        assert -4 <= each.left <= each.right <= width + 4, each
        assert -4 <= each.top <= each.bottom <= height + 4, each


def browser(chromium: str, directory: Path) -> list[str]:
    """Return the command of a headless browser that makes no requests of its own."""
    return [
        chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={directory / 'profile'}",
    ]  # fmt: skip
