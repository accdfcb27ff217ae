"""What the versions have left behind."""

from __future__ import annotations

import pytest

from rigs import keptlog


@pytest.fixture(params=keptlog.VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """Each version that has left something behind."""
    return str(request.param)
