"""Browsers for pages, and the addresses of what jobs read and write."""

from __future__ import annotations

from pathlib import Path

import pytest

from polonaise.blocking.log import Log
from rigs.lacking import program


@pytest.fixture(scope="module")
def chromium() -> str:
    return program("chromium", "chromium")


@pytest.fixture
def address(tmp_path: Path, log: Log) -> str:
    """The address of the module's own fixture `log`."""
    return f"embedded:{tmp_path / 'log'}"


_DRAWN = pytest.mark.exhaustive("polonaise.pipelines", "polonaise.views", "polonaise.spark")
"""What is shown of each kind of table is drawn unless what writes them has changed."""


@pytest.fixture(params=[pytest.param(kind, marks=_DRAWN) for kind in ("parquet", "sqlite", "delta")])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new table of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'views.db'}"
    return f"{request.param}:{tmp_path / 'table'}"
