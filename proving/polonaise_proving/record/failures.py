"""What fails a run: the errors that say so."""

from __future__ import annotations

from polonaise.errors import PolonaiseError


class ScheduleFailed(Exception):
    """The base of everything that fails a schedule: a broken promise, a process that failed, a schedule without end."""


class SmokeFailed(PolonaiseError):
    """A smoke test found the cluster stuck, an answer lost, or a process that ended otherwise than it should have."""

    code = "smoke_failed"
