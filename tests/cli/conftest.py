"""Fixtures of the command line's tests."""

from __future__ import annotations

import pytest

from rigs.shell import Shell


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capfd)
