"""What the tests of Spark leave as they found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def connections_closed() -> Iterator[None]:
    """Afterwards the source is connected to nothing any more."""
    yield
    from rigs.spark import forget  # not for the tests that need no Spark

    forget()
