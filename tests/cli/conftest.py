"""Fixtures of the command line's tests, which stand on the files of the tests of `admin`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from clirig import Shell

sys.path.append(str(Path(__file__).parents[1] / "admin"))


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capfd)
