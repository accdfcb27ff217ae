"""A server's operations at the coordinator that take too long, or fail at present."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from polonaise.errors import CoordinatorUnavailable, PolonaiseError


@contextlib.asynccontextmanager
async def answered_within(limit_s: float, silence: str = "") -> AsyncIterator[None]:
    """Raise `CoordinatorUnavailable` when the `async with` block takes longer than `limit_s` seconds.

    `silence` is the text of that error, if it has to tell more than that no answer came.
    """
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError:
        # With a text in any case: it becomes the reason why a partition is not ready, and no reason would mean that it
        # is.
        raise CoordinatorUnavailable(silence or f"the coordinator gave no answer within {limit_s:g} s") from None


class CoordinatorTrouble:
    """A record of which of a server's operations at the coordinator fail at present, each with its error.

    It is for health and metrics.
    """

    def __init__(self) -> None:
        self._failing: dict[str, str] = {}
        self.errors = 0
        """The number of failures so far."""

    def failed(self, what: str, error: PolonaiseError) -> None:
        """Record that an operation at the coordinator failed; `what` tells which, as `the assignment can't be read`."""
        self.errors += 1
        self._failing[what] = str(error)

    def succeeded(self, what: str) -> None:
        """Record that this operation has succeeded, so that `what` is not told any more."""
        self._failing.pop(what, None)

    def __str__(self) -> str:
        """Return what fails at present, and why; empty if nothing does."""
        return "; ".join(f"{what}: {error}" for what, error in self._failing.items())
