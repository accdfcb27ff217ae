"""One page says what is there and what is not, the code says the same, and no other page denies what is there."""

from __future__ import annotations

import importlib
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "features.md"
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted(ROOT.glob("docs/**/*.md"))]
MAKEFILE = (ROOT / "Makefile").read_text()

DENIALS = re.compile(
    r"\b(?:not (?:yet )?in this version|in this version|this version (?:has|runs|knows|can)|will follow|to be closed"
    r"|until they get|not yet (?:there|built|possible|supported)|in a later version|runs on one machine)\b",
    re.IGNORECASE,
)
"""How a page says that something is missing, which becomes untrue without anybody's noticing."""


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def exists(name: str) -> bool:
    """Whether a module, or a name in one, is there."""
    parent, _, last = name.rpartition(".")
    return find_spec(name) is not None or hasattr(importlib.import_module(parent), last)


@pytest.mark.parametrize("row", rows("What is there"), ids=lambda row: row[0][:40])
def test_what_is_said_to_be_there_is_there_and_shown(row: list[str]) -> None:
    _, where, shown = row
    assert code(where)
    assert code(shown)
    for name in code(where):
        assert exists(name), name
    for shows in code(shown):
        if shows.startswith("make "):
            assert re.search(rf"^{shows.removeprefix('make ')}:", MAKEFILE, re.MULTILINE), shows
        else:
            assert (ROOT / shows).exists(), shows


@pytest.mark.parametrize("row", rows("What is not there"), ids=lambda row: row[0][:40])
def test_what_is_said_to_be_missing_is_missing(row: list[str]) -> None:
    _, until_then, place = row
    assert until_then
    for name in code(place):
        assert not exists(name), f"{name} is there: take its row out of docs/features.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_other_page_says_what_is_missing(page: Path) -> None:
    if page == PAGE:
        return
    # A line's end is no end of a sentence.
    denied = DENIALS.findall(" ".join(page.read_text().split()))
    assert denied == [], f"say it in docs/features.md, which is held to the code, and lead there from {page.name}"


def test_a_page_that_denies_something_is_found() -> None:
    assert DENIALS.search("Delivery to shards will follow it and is not in this version")
    assert DENIALS.search("This version runs on one machine")
    assert DENIALS.search("To be closed by a CRC")
