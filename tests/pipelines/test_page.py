"""A page says all that it is given, as text, fetches nothing, and opens in a browser."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from polonaise.errors import BadOption
from polonaise.pipelines.charts import Bars, Flows, Lines, Mark, Series
from polonaise.pipelines.page import ReportPage, ReportVerdict
from polonaise.pipelines.tables import Table
from rigs.pages import HOSTILE, browser, checked
from rigs.programs import run_program

OPENED_S = 60


def report(title: str = "The bank in 1993", word: str = "a word") -> ReportPage:
    """A page with one of everything."""
    begin = datetime(1993, 1, 1, tzinfo=UTC)
    points = [(begin + timedelta(hours=hour), 1000 + hour) for hour in range(2000)]
    return (
        ReportPage(title, word)
        .facts({"payments": 27_215, word: None})
        .verdicts(
            [
                ReportVerdict("the log is dense", True),
                ReportVerdict(word, False, word),
                ReportVerdict("the copies", None),
            ]
        )
        .section(word, f"{word}\n\nand another paragraph")
        .chart(Bars("Volumes", [(date(1993, 1, 1), 5)], marks=[Mark(date(1993, 1, 1), word)], note=word))
        .chart(Bars("Kinds", [(word, 5)]))
        .chart(Lines("Balances", [Series(word, points)], marks=[Mark((word, begin), word)]))
        .chart(Flows("Flows", {(word, "B"): 5}))
        .table(Table("Largest", [word, "balance"], [(word, 5), (None, -7.5)], note=word))
    )


def test_everything_is_said() -> None:
    text = checked(report().html())
    for said in (
        "The bank in 1993",
        "27,215",
        "and another paragraph",
        "Volumes",
        "Balances",
        "Flows",
        "−7.5",
        "–",
        "All times are UTC.",
    ):
        assert said in text
    assert text.count("The figures") == 4, "each chart's figures are in a table, too"


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_is_taken_for_markup(text: str) -> None:
    shown = checked(report(text, text).html())
    printable = re.sub("[^ -~]", "", text).strip()[:40]
    assert printable in re.sub("[^ -~\n]", "", shown)


def test_what_does_not_hold_comes_first() -> None:
    text = checked(
        ReportPage("a")
        .verdicts([ReportVerdict("fine", True), ReportVerdict("open", None), ReportVerdict("broken", False)])
        .html()
    )
    assert text.index("broken") < text.index("open") < text.index("fine")
    assert "does not hold" in text, "it is said in words, and not by colour alone"


def test_a_report_without_contents_is_a_page() -> None:
    page = ReportPage("Nothing yet").chart(Bars("No bars", [])).table(Table("No rows", ["a", "b"], []))
    text = checked(page.facts({}).verdicts([]).text("").html())
    assert text.count("No data.") == 2
    assert "The figures" not in text


def test_a_long_table_shows_its_first_rows() -> None:
    text = checked(ReportPage("a").table(Table("Long", ["n"], [(row,) for row in range(10_000)])).html())
    assert "The first 500 of 10,000 rows." in text
    assert "\n499\n" in text
    assert "\n500\n" not in text


def test_a_row_that_is_too_short_is_refused() -> None:
    with pytest.raises(BadOption, match="2 columns and a row of 1"):
        Table("t", ["a", "b"], [(1,)])


def test_a_page_shows_the_first_of_many_marks() -> None:
    days = [date(1993, 1, 1) + timedelta(days=day) for day in range(30)]
    page = ReportPage("a").chart(
        Bars("Days", [(day, 1) for day in days], marks=[Mark(day, f"odd {day}") for day in days])
    )
    text = checked(page.html())
    assert "odd 1993-01-20" in text
    assert "odd 1993-01-21" not in text
    assert "The first 20 of 30 marks are shown." in text


def test_the_same_page_is_the_same_bytes() -> None:
    assert report().html() == report().html()


@pytest.mark.slow
def test_a_browser_opens_it_without_a_complaint(chromium: str, tmp_path: Path) -> None:
    file, picture = tmp_path / "report.html", tmp_path / "report.png"
    file.write_text(report(word="<script>document.title='run'</script>").html(), encoding="utf-8")
    command = [*browser(chromium, tmp_path), "--enable-logging=stderr", "--v=0", "--window-size=1000,2500"]
    shot = run_program(*command, f"--screenshot={picture}", file.as_uri(), within_s=OPENED_S)
    assert shot.returncode == 0, shot.stderr
    assert "CONSOLE" not in shot.stderr, shot.stderr
    assert picture.stat().st_size > 20_000, "an empty page is smaller"
    dumped = run_program(*command, "--dump-dom", file.as_uri(), within_s=OPENED_S)
    assert "<title>The bank in 1993</title>" in dumped.stdout, "and no script of a text's has run"
    assert dumped.stdout.count("<svg") == 4
