"""Every example is short, uses what the documents show and nothing else of the library, and is in their page."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from rigs.examples import EXAMPLES

PAGE = EXAMPLES.parent / "docs" / "examples.md"
SHOWN = {"polonaise", "polonaise.errors", "polonaise.player", "polonaise.spark.sessions", "polonaise.spark.source"}
FILES = sorted(EXAMPLES.rglob("*.py"))


def imported(file: Path) -> set[str]:
    """The modules of the library that it names."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return {name for name in found if name.split(".")[0] == "polonaise"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_an_example_is_short_and_on_the_public_interface(file: Path) -> None:
    assert ast.get_docstring(ast.parse(file.read_text()))
    assert len(file.read_text().splitlines()) <= 120
    assert imported(file) <= SHOWN


def test_the_page_names_them_all() -> None:
    text = PAGE.read_text()
    names = {file.relative_to(EXAMPLES).parts[0] for file in FILES}
    assert len(names) == 7
    assert sorted(name for name in names if f"[`examples/{name}`](../examples/{name})" not in text) == []
