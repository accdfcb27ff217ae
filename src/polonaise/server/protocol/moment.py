"""When an event happened: decisions have no clock, so every event that they rest on brings its time."""

from __future__ import annotations

from typing import NamedTuple


class Moment(NamedTuple):
    """One moment, on two clocks."""

    monotonic_s: float
    """For durations and deadlines; it never goes back."""
    wall_us: int
    """Microseconds UTC, the commit time of a batch that is sealed now. It may jump either way."""
