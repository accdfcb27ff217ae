"""How far a job is, told to whoever waits for it."""

from __future__ import annotations

from typing import Protocol


class JobProgress(Protocol):
    """Hears of a job's steps; each job tells in its documentation what it counts."""

    def begin(self, what: str, total: int) -> None:
        """A step begins, of so many parts; the one before is done."""

    def done(self, parts: int) -> None:
        """So many parts of this step are done, in all."""


class Silence:
    """Progress that nobody looks at."""

    def begin(self, what: str, total: int) -> None:
        pass

    def done(self, parts: int) -> None:
        pass
