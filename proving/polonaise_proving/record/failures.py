"""What fails a run: the errors that say so."""

from __future__ import annotations

from polonaise.errors import PolonaiseError


class ScheduleFailed(Exception):
    """The base of everything that fails a schedule: a broken promise, a process that failed, a schedule without end."""


class GaveUp(PolonaiseError):
    """What real processes were to do did not happen in time, or one ended otherwise than it should have; says which."""

    code = "gave_up"
