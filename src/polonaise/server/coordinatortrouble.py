"""A server's operations at the coordinator that fail at present, for health and metrics."""

from __future__ import annotations

from polonaise.errors import PolonaiseError


class CoordinatorTrouble:
    """A record of which of a server's operations at the coordinator fail at present, each with its error."""

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
