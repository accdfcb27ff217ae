"""What a page looks like in a browser: on a phone, on a wide screen, and printed, every word can be read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from polonaise.pipelines.charts import Bars, Flows, Lines, Mark, Series
from polonaise.pipelines.page import ReportPage, ReportVerdict
from polonaise.pipelines.tables import Table
from rigs.lacking import program
from rigs.pages import browser
from rigs.programs import output_of, run_program

pytestmark = pytest.mark.slow

OPENED_S = 120
LONG = "0123456789abcdef" * 12
WORD_MAX = 20
"""Characters of a word that is never divided; of longer ones a line has about as many at least."""
PIECE_MIN = 8

MEASURE = """
addEventListener("load", () => {
  const page = document.querySelector("iframe").contentDocument, found = [];
  const walker = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  const range = page.createRange();
  for (let node; (node = walker.nextNode());) {
    const box = node.parentElement;
    if (box.closest("svg, details, style") || !node.data.trim()) continue;
    const scrolls = box.closest(".scrolls"), cell = box.closest("td, th, dd, li, p, h1, h2") || box;
    for (const word of node.data.matchAll(/\\S+/g)) {
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const parts = [...range.getClientRects()].filter(each => each.width > 0);
      const own = cell.getBoundingClientRect();
      const limit = scrolls ? scrolls.getBoundingClientRect().left + scrolls.scrollWidth - scrolls.scrollLeft
                            : page.documentElement.clientWidth;
      found.push({
        word: word[0], tag: box.tagName, pieces: new Set(parts.map(each => Math.round(each.top))).size,
        left: Math.min(...parts.map(each => each.left)), right: Math.max(...parts.map(each => each.right)),
        box: [own.left, own.right], limit: limit,
      });
    }
  }
  const wrong = [];
  for (const drawing of page.querySelectorAll("svg")) {
    const all = drawing.getBoundingClientRect();
    const boxes = [...drawing.querySelectorAll("text")].map(text => [text.textContent, text.getBoundingClientRect()]);
    for (const [word, box] of boxes)
      if (box.left < all.left - 1 || box.right > all.right + 1 || box.top < all.top - 1 || box.bottom > all.bottom + 1)
        wrong.push(`${word} leaves its drawing`);
    boxes.forEach(([word, box], index) => boxes.slice(index + 1).forEach(([other, its]) => {
      if (box.left < its.right && its.left < box.right && box.top + 2 < its.bottom && its.top + 2 < box.bottom)
        wrong.push(`${word} covers ${other}`);
    }));
  }
  const told = document.createElement("pre");
  told.id = "told";
  told.textContent = JSON.stringify({words: found, wrong: wrong, width: page.documentElement.clientWidth,
                                     scroll: page.documentElement.scrollWidth});
  document.body.replaceChildren(told);
});
"""


def page() -> ReportPage:
    """As a report of a log has it, and with whatever words an application may have."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    points = [(begin + timedelta(hours=hour), 1000 + hour) for hour in range(200)]
    later = [(at, value + 1) for at, value in points]
    months = [(date(2025, month, 1), -(10**month) if month < 4 else 7**month) for month in range(1, 13)]
    columns = [
        "partition",
        "first id",
        "last id",
        "transactions",
        "bytes",
        "busiest second",
        "clients",
        "last committed",
    ]
    rows = [[number, 0, 10**9 + number, 10**9, 10**12, 42_000, 12, points[-1][0]] for number in range(12)]
    payments = [(number, f"Anna Magdalena {number}", "acknowledged", LONG, -1_234.5) for number in range(40)]
    return (
        ReportPage(
            "Transactions of the acknowledgement department", f"embedded:/var/lib/{LONG}, transactions of partition 0"
        )
        .facts(
            {"transactions": 10**12, "bytes of bodies": 10**15, "first committed": begin, "where": LONG, "why": None}
        )
        .verdicts(
            [ReportVerdict("every internationalization", True), ReportVerdict("the copies", False, f"differ at {LONG}")]
        )
        .section("Over time", "Responsibilities and characteristics, as they were.")
        .chart(Lines("Balances", [Series("transactions", points), Series("acknowledged transactions", later)]))
        .chart(Bars("Volumes", months, unit="crowns", marks=[Mark(months[11][0], "many")]))
        .chart(Bars("Transactions by kind", [(f'"{word} of the {LONG[:24]}"', 5) for word in ("NULL", "kind")]))
        .chart(Flows("Flows", {("Amsterdam", "Barcelona"): 5}))
        .section("Partitions")
        .table(Table("Partitions", columns, rows, note="Refused: appends that are not in the log."))
        .table(Table("Payments", ["number", "administrator", "verdict", "fingerprint", "amount"], payments))
    )


def measured(chromium: str, html: str, width: int, directory: Path) -> dict[str, Any]:
    """Where each word of a page is, in a window of this width."""
    host, inside = directory / "host.html", re.sub(r"<meta http-equiv[^>]*>", "", html)
    frame = f'<iframe style="border:0" width="{width}" height="4000" srcdoc="{escape(inside)}"></iframe>'
    host.write_text(f"<!DOCTYPE html><body style='margin:0'>{frame}<script>{MEASURE}</script>", encoding="utf-8")
    window = [*browser(chromium, directory), "--window-size=1600,4000", "--hide-scrollbars"]
    dumped = run_program(*window, "--virtual-time-budget=5000", "--dump-dom", host.as_uri(), within_s=OPENED_S)
    told = re.search(r'<pre id="told">(.*)</pre>', dumped.stdout, re.DOTALL)
    assert told is not None, dumped.stderr
    found: dict[str, Any] = json.loads(unescape(told[1]))
    return found


@pytest.mark.parametrize("width", [390, 1280])
def test_on_a_screen_no_word_is_divided_and_none_leaves_its_box(chromium: str, width: int, tmp_path: Path) -> None:
    found = measured(chromium, page().html(), width, tmp_path)
    assert found["width"] == width
    assert found["scroll"] <= width, "only charts and tables scroll to the side, each in its own box"
    assert len(found["words"]) > 300
    assert found["wrong"] == []
    for each in found["words"]:
        length = len(each["word"])
        if length <= WORD_MAX:
            assert each["pieces"] == 1, each
        else:
            assert length / each["pieces"] >= PIECE_MIN, each
        assert each["left"] >= each["box"][0] - 1, each
        assert each["right"] <= min(each["box"][1], each["limit"]) + 1, each


def pieces_of(bbox: str) -> Iterator[tuple[int, str, list[float], list[float]]]:
    """Page, text, place and the page's size, of each word as `pdftotext` found it."""
    number, size = 0, [0.0, 0.0]
    for line in bbox.splitlines():
        if opened := re.search(r'<page width="([\d.]+)" height="([\d.]+)"', line):
            number, size = number + 1, [float(opened[1]), float(opened[2])]
        elif word := re.search(r'<word xMin="(.*)" yMin="(.*)" xMax="(.*)" yMax="(.*)">(.*)</word>', line):
            yield number, unescape(word[5]), [float(word[each]) for each in (1, 2, 3, 4)], size


def test_printed_nothing_is_cut_off_and_no_word_is_divided(chromium: str, tmp_path: Path) -> None:
    pdftotext = program("pdftotext", "poppler-utils")
    file, printed = tmp_path / "report.html", tmp_path / "report.pdf"
    file.write_text(page().html(), encoding="utf-8")
    command = [*browser(chromium, tmp_path), "--no-pdf-header-footer", f"--print-to-pdf={printed}", file.as_uri()]
    output_of(run_program(*command, within_s=OPENED_S))
    bbox = output_of(run_program(pdftotext, "-bbox", printed, "-"))
    pieces = list(pieces_of(bbox))
    for _, word, (left, top, right, bottom), (width, height) in pieces:
        assert -1 <= left < right <= width + 1, word
        assert -1 <= top < bottom <= height + 1, word
    words = {word for _, word, _, _ in pieces}
    for word in ("acknowledgement", "internationalization:", "Responsibilities", "administrator", "acknowledged",
                 "fingerprint", "transactions", "1,000,000,011", "UTC."):  # fmt: skip
        assert word in words, f"{word} is there, whole"
    text = "".join(word for _, word, _, _ in pieces)
    assert text.count("0123456789abcdef") >= 6, "what is too long for a line goes on in the next one"
    short = [word for word in (each[1] for each in pieces) if len(word) == 1 and word.isalpha()]
    assert len(short) < len(pieces) / 10, "no word stands letter by letter"
