"""The queue through which an owner's effects are carried out in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from polonaise.server.protocol.effects import Effect


class EffectQueue:
    """Carries out effects one after the other, even when carrying out one of them causes others.

    A send may find its connection broken, which is an event: its effects come after all that are queued, because the
    owner decided them later and took the earlier ones for done.
    """

    def __init__(self, carry_out: Callable[[Effect], None]) -> None:
        self._carry_out = carry_out
        self._effects: deque[Effect] = deque()
        self._carrying_out = False

    def __call__(self, effects: Sequence[Effect]) -> None:
        """Queue effects; carry out all that is queued, unless a call further up the stack does so already."""
        self._effects += effects
        if self._carrying_out:
            return
        self._carrying_out = True
        try:
            while self._effects:
                self._carry_out(self._effects.popleft())
        finally:
            self._carrying_out = False
