"""The faults that a test has armed, as a server in memory asks for them."""

from __future__ import annotations

import random
from collections import deque

from polonaise.terms import FailureReason

_PASSING = (FailureReason.SESSION_ENDED, FailureReason.LOCK_CONFLICT)
"""What happens to appends with which nothing is wrong: first those that need no lock."""


class Armed:
    """The faults that are armed, as the server asks for them."""

    def __init__(self) -> None:
        self.next_reasons: deque[FailureReason] = deque()
        self.next_locks = 0
        self.next_unknown: deque[bool] = deque()
        """Whether each of the next appends that lose their connection is committed."""
        self.probability = 0.0
        self.delay_s = 0.0
        self.random = random.Random(0)

    @property
    def any(self) -> bool:
        """Whether appends have to be looked at one by one."""
        return bool(self.next_reasons or self.next_locks or self.next_unknown or self.probability)

    def strikes(self, has_locks: bool) -> FailureReason | None:
        """Why this append is to fail; None to judge it as it is."""
        if self.next_reasons:
            return self.next_reasons.popleft()
        if self.next_locks and has_locks:
            self.next_locks -= 1
            return FailureReason.LOCK_CONFLICT
        if self.probability and self.random.random() < self.probability:
            return self.random.choice(_PASSING if has_locks else _PASSING[:1])
        return None
