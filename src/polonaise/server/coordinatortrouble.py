"""A server's operations at the coordinator that take too long, or fail at present."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Final

from polonaise.coordination import Coordinator
from polonaise.errors import CoordinatorUnavailable, PolonaiseError
from polonaise.host import Clock, broken_off

_log = logging.getLogger(__name__)
AGAIN_S: Final = 30.0
"""The interval at which the log repeats what fails at the coordinator."""


@contextlib.asynccontextmanager
async def answered_within(limit_s: float, coordinator: Coordinator, silence: str = "") -> AsyncIterator[None]:
    """Raise `CoordinatorUnavailable`, which says `silence`, when the block takes longer than `limit_s` seconds."""
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError as error:
        # With a text in any case: it becomes the reason why a partition is not ready, and no reason would mean that it
        # is.
        text = silence or f"the coordinator gave no answer within {limit_s:g} s"
        why = known_of_silence(error, coordinator)
        raise CoordinatorUnavailable(f"{text} ({why})" if why else text) from None


def known_of_silence(error: TimeoutError, coordinator: Coordinator) -> str:
    """Return what is known of why the coordinator gave no answer in time: what was waited for, or its own trouble."""
    return broken_off(error) or coordinator.trouble


def with_trouble(text: str, coordinator: Coordinator) -> str:
    """Return the text of an error with what is known of why the coordinator does not answer."""
    return f"{text} ({trouble})" if (trouble := coordinator.trouble) else text


class CoordinatorTrouble:
    """Records which of a server's operations at the coordinator fail at present, each with its error.

    The log is told once for each kind of error, every `AGAIN_S` while it lasts, and when it is over, whatever the
    number of operations and tries.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failing: dict[str, tuple[str, str]] = {}
        """The code and the text of what each failed with last."""
        self._since_s: float | None = None
        self._logged_s: dict[str, float] = {}
        self.errors = 0

    def failed(self, what: str, error: PolonaiseError, *, level: int = logging.WARNING, **fields: int) -> None:
        """Record that an operation failed; `what` (as `the assignment can't be read`) is logged at `level`."""
        self.errors += 1
        self._failing.pop(what, None)  # to its end, so that the latest failures stand there
        self._failing[what] = error.code, str(error)
        now_s = self._clock.monotonic_s()
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._logged_s.get(error.code, float("-inf")) >= AGAIN_S:
            self._logged_s[error.code] = now_s
            for_s = now_s - self._since_s
            lasting = f" (there has been trouble with the coordinator for {for_s:.0f} s)" if for_s >= 1 else ""
            _log.log(level, "%s: %s%s", what, error, lasting, extra=fields)

    def succeeded(self, what: str) -> None:
        self._failing.pop(what, None)
        if not self._failing and self._since_s is not None:
            _log.warning("the coordinator answers again, after %.1f s", self._clock.monotonic_s() - self._since_s)
            self._since_s = None
            self._logged_s.clear()

    def not_needed(self, what: str) -> None:
        """Record that this operation is not needed any more. That is no answer: the trouble goes on."""
        self._failing.pop(what, None)

    def is_failing(self, what: str) -> bool:
        """Whether this operation failed the last time."""
        return what in self._failing

    def present(self, coordinator: Coordinator) -> str:
        """Return what fails at present, and why the coordinator can't be reached now, if that is news."""
        failing, now = str(self), coordinator.trouble
        if failing and now and now not in failing:
            return f"{now}; before: {failing}"
        return failing or now

    def __str__(self) -> str:
        """Return what fails at present, and why; empty if nothing does. Of errors of one kind the latest is told."""
        kinds: dict[str, list[str]] = {}
        for what, (code, _) in self._failing.items():
            kinds.setdefault(code, []).append(what)
        return "; ".join(f"{', '.join(whats)}: {self._failing[whats[-1]][1]}" for whats in kinds.values())
