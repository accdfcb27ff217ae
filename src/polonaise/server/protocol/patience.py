"""How long an answer is waited for: longer after answers that came too late, as what is slow works all the same."""

from __future__ import annotations

from typing import Final

_SLACKENS: Final = 0.9
"""What is left of the patience after an answer that came at once."""


class SyncPatience:
    """The deadline of requests to one party. It doubles when one is exceeded, and falls again with quick answers.

    A fixed one is never met by a party that takes longer: each request would be made anew, and be too late again.
    """

    __slots__ = ("_least_s", "_most_s", "seconds")

    def __init__(self, least_s: float, most_s: float) -> None:
        """Begin with `least_s` seconds; `most_s` is never passed, unless `least_s` is longer."""
        self._least_s = least_s
        self._most_s = max(least_s, most_s)
        self.seconds = least_s
        """The deadline of the next request, in seconds."""

    def exceeded(self) -> None:
        """Note that an answer did not come within `seconds`."""
        self.seconds = min(2 * self.seconds, self._most_s)

    def answered(self, took_s: float) -> None:
        """Note that an answer came after `took_s` seconds."""
        if 4 * took_s < self.seconds:
            self.seconds = max(self._least_s, _SLACKENS * self.seconds)
