"""What an application's type checker finds: wrong arguments of contexts, and nothing in right ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).parent / "contexts.py"


@pytest.mark.slow
def test_mypy_finds_just_the_wrong_uses() -> None:
    said, errors, _ = api.run(["--config-file", str(ROOT / "pyproject.toml"), str(FILE)])
    assert not errors, errors
    found = {int(line) for line in re.findall(rf"{FILE.name}:(\d+): error", said)}
    wrong = {number for number, line in enumerate(FILE.read_text().splitlines(), 1) if line.endswith("# wrong")}
    assert found == wrong, said
