"""A host whose process goes on after a mistake, for tests of what would have ended it."""

from __future__ import annotations

from polonaise.host.real import RealHost


class Watched(RealHost):
    """A host that notes why it would have stopped the process."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[BaseException] = []

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)
