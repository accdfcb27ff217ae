"""What the main stream of a partition has brought when: tells how old, and how large, what a target lacks is."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

from polonaise.terms import TransactionId

POINTS_MAX: Final = 1024
_POINTS_FOR_PRECISION: Final = 64
"""Divides the most points to give the precision: merging by that leaves about 22 times as many points for 30 days of
batches a millisecond apart."""


class _Point(NamedTuple):
    """One or several consecutive batches that the main stream has brought."""

    last: TransactionId
    first_us: int
    """When the first of these batches was committed, in microseconds since 1970."""
    last_us: int
    bytes_through: int
    """Of all batches from the first one of the main stream to these."""


class MainHistory:
    """The batches of one main stream, in bounded memory: older ones are kept several to a point. Ages and sizes are
    estimates: with 1,024 points, an age is too high by at most a sixteenth of itself."""

    def __init__(self, first: TransactionId, points_max: int = POINTS_MAX) -> None:
        """Begin with a main stream whose first transaction is `first`; keep up to `points_max` points, 64 or more."""
        self.first = first
        self._points_max = points_max
        self._points: list[_Point] = []

    @property
    def last(self) -> TransactionId:
        return self._points[-1].last if self._points else self.first - 1

    def brought(self, last: TransactionId, commit_time_us: int, size: int) -> None:
        points = self._points
        if last <= self.last:
            return
        through = points[-1].bytes_through if points else 0
        points.append(_Point(last, commit_time_us, commit_time_us, through + size))
        if len(points) > self._points_max:
            self._points = _merged(points, self._points_max // 2, self._points_max // _POINTS_FOR_PRECISION)

    def committed_us(self, id: TransactionId) -> int | None:
        """Return about when this transaction was committed; None if the main stream has not brought it."""
        if id < self.first:
            return None
        number = bisect_left(self._points, id, key=lambda point: point.last)
        return self._points[number].first_us if number < len(self._points) else None

    def bytes_after(self, id: TransactionId) -> int | None:
        """Return about how many bytes the main stream has brought behind `id`; None if it began later."""
        if id < self.first - 1:
            return None
        points = self._points
        if not points:
            return 0
        number = bisect_right(points, id, key=lambda point: point.last)
        if number == len(points):
            return 0
        last, size = self.first - 1, 0
        if number:
            last, size = points[number - 1].last, points[number - 1].bytes_through
        point = points[number]
        # Within one point: as if all its transactions were of one size.
        passed = size + (id - last) / (point.last - last) * (point.bytes_through - size)
        return round(points[-1].bytes_through - passed)


def _merged(points: list[_Point], count_max: int, precision: int) -> list[_Point]:
    """Return the points with neighbours made one where that makes no age wrong by more than its part of `precision`. At
    most `count_max` are left."""
    now_us, merged = points[-1].last_us, points[:1]
    for point in points[1:]:
        before = merged[-1]
        # Batches near the end are never merged: their age is about nothing.
        if (point.last_us - before.first_us) * precision <= now_us - point.last_us:
            merged[-1] = point._replace(first_us=before.first_us)
        else:
            merged.append(point)
    while len(merged) > count_max:
        pairs = zip(merged[0::2], merged[1::2], strict=False)
        odd = merged[-1:] if len(merged) % 2 else []
        merged = [newer._replace(first_us=older.first_us) for older, newer in pairs] + odd
    return merged
