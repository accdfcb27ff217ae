"""A connection to write with, whose work is repeated when the database ends it because of other transactions."""

from __future__ import annotations

import enum
import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from polonaise.errors import ViewUnavailable
from polonaise.views.database import Database
from polonaise.views.databaseerrors import Trouble, database_errors, first_line, is_taken, trouble_in
from polonaise.views.writerconnection import WriterConnection

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


S = TypeVar("S")
T = TypeVar("T")

_TRIES: Final = 12
"""How often a transaction that conflicts with others is tried before the database counts as not available."""
TRIED_S_MAX: Final = 3.0
"""For how many seconds it is, where the caller tries again itself: a lock may be waited for in vain for a minute."""
_PAUSE_S_MIN: Final = 0.002
_PAUSE_S_MAX: Final = 0.25
_UNTOLD_S_MAX: Final = 1.0
"""For how long less and less of a run is tried before whoever waits for it is told why."""
_TAKEN: Final = 5
"""How often one alone has to meet a row of the same key before that is its own fault: others may write several such
rows at the same moment."""


class DrivenAway(ViewUnavailable):
    """The connection was lost, or a limit of the database was reached, while something was done: whoever has sent a run
    tries less of it."""


class RetryingWriter:
    """A writer connection of one thread, opened when it is first needed, and again after it was lost."""

    def __init__(
        self,
        database: Database,
        pause: Callable[[float], None],
        lost: Callable[[], None],
        tried_s_max: float = math.inf,
    ) -> None:
        """Take a database, and the function that waits between attempts, given seconds; it may raise to end them.

        What conflicts with other transactions is tried again only within `tried_s_max` seconds.

        `lost` is called whenever a connection was lost or could not be had, before another one is tried, and when the
        database refuses the work: it may be another one, or have other tables, such as one that was restored.
        """
        self._database = database
        self._pause = pause
        self._lost = lost
        self._tried_s_max = tried_s_max
        self._connection: WriterConnection | None = None

    def do(self, work: Callable[[WriterConnection], T]) -> T:
        """Return the result of `work`, which must consist of whole SQL transactions, so that it can be repeated.

        Repeats it, after pauses with jitter, when the database ends it because of other transactions. Raises
        `ViewUnavailable` after `_TRIES` attempts, or the time for them, and while the database is away, and what
        `work`, the pause or `Database.writer` raises.
        """
        pause_s, began_s = _PAUSE_S_MIN, time.monotonic()
        held = self._connection  # from before: it may have been closed while it was idle
        for left in reversed(range(_TRIES)):
            connection: WriterConnection | None = None
            try:
                connection = self._usable_connection()
                return work(connection)
            except Exception as error:
                trouble = trouble_in(error)
                if trouble is None:
                    if isinstance(error, (*database_errors(), TypeError)):
                        self._lost()  # tables may have been dropped or made anew under a connection that goes on
                    raise
                last = error
                if trouble is not Trouble.PASSING:
                    is_stale = held is not None and connection is held and not held.usable
                    self.close()
                    self._lost()
                    if connection is None:  # none could be had: the error says all of it
                        raise
                    if trouble is not Trouble.DRIVEN:
                        raise ViewUnavailable(f"the database is not available: {first_line(error)}") from error
                    if not (is_stale and left):
                        raise DrivenAway(f"the database is not available: {first_line(error)}") from error
            if not left or time.monotonic() - began_s >= self._tried_s_max:
                break
            self._pause(random.uniform(pause_s / 2, pause_s))
            pause_s = min(_PAUSE_S_MAX, 2 * pause_s)
        # Without how often or for how long: who hears it again and again logs it once, as long as it says the same.
        raise ViewUnavailable(
            f"other transactions stand in the way again and again, try again: {first_line(last)}"
        ) from last

    def do_some(self, run: Sequence[S], portion: Portion, work: Callable[[WriterConnection, Sequence[S]], T]) -> T:
        """Return the result of `work` for the beginning of `run`: as much of it as the database takes at a time.

        `work` is done in one SQL transaction. Raises what `do` does, and the database's own error when one alone has
        driven it away several times in a row, or has met a row of the same key each time. Where attempts take long,
        `DrivenAway` is raised between them: the caller learns why, and the next call tries less.
        """
        began_s, taken = time.monotonic(), 0
        while True:
            some = run[: portion.most]
            try:
                done = self.do(lambda connection: work(connection, some))  # noqa: B023 - called at once
            except DrivenAway as error:
                following = portion.driven_away(len(some))
                if following is Next.NAMED and error.__cause__ is not None:
                    raise error.__cause__ from None
                if following is not Next.SMALLER or time.monotonic() - began_s > _UNTOLD_S_MAX:
                    raise
                self._pause(_PAUSE_S_MIN)
            except Exception as error:
                taken += 1
                if len(some) > 1 or taken == _TAKEN or not is_taken(error):
                    raise
                self._pause(_PAUSE_S_MIN)
            else:
                portion.taken(len(some))
                return done

    def _usable_connection(self) -> WriterConnection:
        """Return the connection, opened again if it was lost, or if its file was."""
        held = self._connection
        if held is not None and (not held.usable or self._database.is_elsewhere(held)):
            self.close()
            self._lost()
        if self._connection is None:
            self._connection = self._database.writer()
        return self._connection

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
