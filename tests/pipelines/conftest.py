"""Browsers for pages, and the addresses of what jobs read and write."""

from __future__ import annotations

from pathlib import Path

import pytest

from polonaise.blocking.log import Log


@pytest.fixture(scope="module")
def chromium() -> str:
    from rigs.pages import program  # with it comes the library of charts, not for the many tests that draw none

    return program("chromium", "chromium")


@pytest.fixture
def address(tmp_path: Path, log: Log) -> str:
    """The address of the module's own fixture `log`."""
    return f"embedded:{tmp_path / 'log'}"


@pytest.fixture(params=["parquet", "sqlite", "delta"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new table of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'views.db'}"
    return f"{request.param}:{tmp_path / 'table'}"
