"""The time of an event. Decisions have no clock, so every event brings its time with it."""

from __future__ import annotations

from typing import NamedTuple


class Moment(NamedTuple):
    """One moment, on two clocks."""

    monotonic_s: float
    """Seconds of a clock that never goes back, for durations and deadlines."""
    wall_us: int
    """Microseconds UTC, for commit times; it may jump either way."""
