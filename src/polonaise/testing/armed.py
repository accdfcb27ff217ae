"""The faults that a test has armed, as a server in memory consumes them."""

from __future__ import annotations

import random
from collections import deque

from polonaise.terms import FailureReason

_PASSING = (FailureReason.SESSION_ENDED, FailureReason.LOCK_CONFLICT)
"""The reasons for which `Faults.rate` fails appends, those without a lock for the first only."""


class Armed:
    def __init__(self) -> None:
        self.next_reasons: deque[FailureReason] = deque()
        """For each of the next appends, or groups, that are to fail: the reason."""
        self.next_locks = 0
        """How many of the next appends with a lock meet a conflict."""
        self.next_unknown: deque[bool] = deque()
        """For each of the next appends that lose their connection, whether it is committed."""
        self.probability = 0.0
        """That an append fails, from 0 to below 1."""
        self.delay_s = 0.0
        """From the arrival of an append to its decision."""
        self.random = random.Random(0)

    @property
    def any(self) -> bool:
        """Whether a fault of single appends is armed, so that frames have to be taken apart."""
        return bool(self.next_reasons or self.next_locks or self.next_unknown or self.probability)

    def strikes(self, has_locks: bool) -> FailureReason | None:
        """Return why this append is to fail, and use up the fault; None to let the owner judge it."""
        if self.next_reasons:
            return self.next_reasons.popleft()
        if self.next_locks and has_locks:
            self.next_locks -= 1
            return FailureReason.LOCK_CONFLICT
        if self.probability and self.random.random() < self.probability:
            return self.random.choice(_PASSING if has_locks else _PASSING[:1])
        return None
