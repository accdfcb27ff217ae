"""What the versions have left behind, and a shell."""

from __future__ import annotations

import pytest

from rigs import keptlog
from rigs.shell import Shell


@pytest.fixture(params=keptlog.VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """Each version that has left something behind."""
    return str(request.param)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capfd)
