"""The progress of a job, as told to its caller."""

from __future__ import annotations

from typing import Protocol


class JobProgress(Protocol):
    """Receives the progress of a job, step by step. Each job documents what it counts."""

    def begin(self, what: str, total: int) -> None:
        """Hear that a step of `total` parts begins, and that the one before is done."""

    def done(self, parts: int) -> None:
        """Hear how many parts of this step are done, in all."""


class Silence:
    """Ignores all progress."""

    def begin(self, what: str, total: int) -> None:
        pass

    def done(self, parts: int) -> None:
        pass
