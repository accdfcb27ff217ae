"""The trouble that a server has with its coordinator, for health and metrics."""

from __future__ import annotations

from polonaise.errors import PolonaiseError


class CoordinatorTrouble:
    """Remembers which of a server's dealings with the coordinator fail, and with what."""

    def __init__(self) -> None:
        self._failing: dict[str, str] = {}
        self.errors = 0
        """The number of failures so far."""

    def failed(self, what: str, error: PolonaiseError) -> None:
        """Note that something could not be done at the coordinator; `what` names it, such as `the assignment`."""
        self.errors += 1
        self._failing[what] = str(error)

    def succeeded(self, what: str) -> None:
        """Note that this can be done again."""
        self._failing.pop(what, None)

    def __str__(self) -> str:
        """What fails at present, and why; empty if nothing does."""
        return "; ".join(f"{what}: {error}" for what, error in self._failing.items())
