"""The programs that the tests of pages need."""

from __future__ import annotations

import pytest

from rigs.pages import program


@pytest.fixture(scope="module")
def chromium() -> str:
    return program("chromium", "chromium")
