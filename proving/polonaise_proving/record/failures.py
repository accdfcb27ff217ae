"""What fails a run: the errors that say so."""

from __future__ import annotations

from collections.abc import Iterable

from polonaise.errors import PolonaiseError


class ScheduleFailed(Exception):
    """The base of everything that fails a schedule: a broken promise, a process that failed, a schedule without end."""


class Violation(ScheduleFailed):
    """A promise was broken: which one, what it demands, and what was seen instead."""

    def __init__(self, promise: str, expected: str, seen: str) -> None:
        super().__init__(f"{promise}: expected {expected}; seen: {seen}")
        self.promise, self.expected, self.seen = promise, expected, seen


def raise_first(violations: Iterable[Violation]) -> None:
    """Raise the first violation, if there is one."""
    for violation in violations:
        raise violation


class ProvingMistake(ScheduleFailed):
    """The proving ground itself did not do what it has to, so that the run shows nothing of production."""


class GaveUp(PolonaiseError):
    """What real processes were to do did not happen in time, or one ended otherwise than it should have; says which."""

    code = "gave_up"
