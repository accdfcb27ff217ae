"""For tests that expect a fault by its code: those that have no class of their own are told by it alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from polonaise.errors import PolonaiseError


@contextmanager
def raises_code(code: str, match: str | None = None) -> Iterator[pytest.ExceptionInfo[PolonaiseError]]:
    """Expect a fault with this code, and a text that matches."""
    with pytest.raises(PolonaiseError, match=match) as told:
        yield told
    assert told.value.code == code
