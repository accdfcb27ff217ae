"""Pages taken apart again, as a browser would."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

from lacking import lacking

SVG = "{http://www.w3.org/2000/svg}"
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
    *("svg", "desc", "g", "rect", "circle", "line", "path", "text"),
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


def drawn(svg: str) -> ElementTree.Element:
    """A drawing as a tree."""
    return ElementTree.fromstring(svg)


def labels(svg: str) -> list[str]:
    """What is written in a drawing."""
    return ["".join(each.itertext()) for each in drawn(svg).iter("text")]


def inside(svg: str) -> None:
    """Nothing of a drawing is outside of it, as far as places are said in numbers."""
    tree = drawn(svg)
    _, _, width, height = map(float, tree.attrib["viewBox"].split())
    for each in tree.iter():
        for names, most in ((("x", "x1", "x2", "cx"), width), (("y", "y1", "y2", "cy"), height)):
            for name in names:
                place = float(each.attrib.get(name, 0))
                assert -0.01 <= place <= most + 0.01, ElementTree.tostring(each)


def program(name: str, package: str) -> str:
    """The path of a program; without it the test is skipped, or in CI fails."""
    found = shutil.which(name)
    if found is None:
        lacking(f"no {name} on this machine: Debian's package {package} has it")
    return found


def browser(chromium: str, directory: Path) -> list[str]:
    """The command of a browser that shows nothing and asks nobody for anything."""
    return [
        chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={directory / 'profile'}",
    ]  # fmt: skip
