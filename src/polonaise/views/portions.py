"""How much of a run a database is given at a time, after it has ended a transaction for its size or its length."""

from __future__ import annotations

import enum
from typing import Final

_MOST: Final = 1 << 20
_ALONE: Final = 3
"""How often one alone has to drive the database away, with connections in between, before it is named for it."""
_WELL: Final = 16
"""How many portions have to go well before more is tried again."""


class Next(enum.Enum):
    """What follows after the database was driven away, or has ended a transaction at one of its limits."""

    SMALLER = "smaller"
    """Try less, at once."""
    LATER = "later"
    """It was one alone: wait, the database may be the trouble."""
    NAMED = "named"
    """It was one alone, several times in a row: it is at fault, as far as anybody can tell."""


class Portion:
    """The most that is applied in one SQL transaction of a partition. Halved each time that the database is driven
    away, down to one; doubled again after many went well."""

    def __init__(self) -> None:
        self.most = _MOST
        self._alone = 0
        self._well = 0

    def taken(self, count: int) -> None:
        self._alone = 0
        if count < self.most or self.most == _MOST:
            return
        self._well += 1
        if self._well == _WELL:
            self._well, self.most = 0, min(2 * self.most, _MOST)

    def driven_away(self, count: int) -> Next:
        self._well = 0
        self.most = max(1, count // 2)
        if count > 1:
            return Next.SMALLER
        self._alone += 1
        return Next.NAMED if self._alone >= _ALONE else Next.LATER
