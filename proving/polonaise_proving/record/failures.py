"""What fails a schedule: the base of all errors that say so."""

from __future__ import annotations


class ScheduleFailed(Exception):
    """The base of everything that fails a schedule: a broken promise, a process that failed, a schedule without end."""
