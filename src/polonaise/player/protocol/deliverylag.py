"""How far targets are behind, in seconds and bytes: by what main streams have brought, and when that was committed."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterator
from typing import Final, NamedTuple

from polonaise.player.protocol.activeplayer import ActivePlayer
from polonaise.player.protocol.entries import TargetName
from polonaise.player.protocol.targetstream import StreamState
from polonaise.terms import PartitionId, TransactionId

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
    """The bytes of all batches from the first one of the main stream to these."""


class MainHistory:
    """The batches of one main stream, in bounded memory: older ones are kept several to a point. Ages and sizes are
    estimates: with 1,024 points, an age is too high by at most a sixteenth of itself."""

    def __init__(self, first: TransactionId, points_max: int = POINTS_MAX) -> None:
        """Begin with a main stream whose first transaction is `first`; keep up to `points_max` points, 64 or more."""
        self.first: Final = first
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


_POINTS_OF_ALL_MAX: Final = 128 * POINTS_MAX
"""The most points of all histories together, some 25 MB, if there are at most 2,048 partitions."""


_FUTURE_US: Final = 10_000_000
"""By how many microseconds a commit time may be later than now: clocks may differ by so much."""


class TargetLag(NamedTuple):
    """How far a target is behind what was read of all partitions."""

    seconds: float | None
    """The age of the oldest transaction that it is known to lack; 0 if it lacks none. None if it has not told what it
    has, if it lacks none that is known of and not all is known, and if it was committed in the future, by the clock
    that is asked."""
    bytes: int | None
    """About the bytes of what was read that it lacks; None if it has not told what it has, if it lacks some from before
    this player began, and while a partition is not read."""


class Lacking(NamedTuple):
    """The first transaction that a target lacks of a partition."""

    target: TargetName
    partition: PartitionId
    id: TransactionId


class DeliveryLag:
    """Keeps for one active player what tells how far its targets are behind."""

    def __init__(self, machine: ActivePlayer) -> None:
        self._machine = machine
        self._points_max = max(64, min(POINTS_MAX, _POINTS_OF_ALL_MAX // max(1, len(machine.partitions))))
        self._histories: dict[PartitionId, MainHistory] = {}
        self._looked_up: dict[tuple[TargetName, PartitionId], tuple[TransactionId, int | None]] = {}
        """By target and partition: a transaction before the main stream, and its commit time in µs; None if not
        told."""

    def brought(
        self, partition: PartitionId, first: TransactionId, last: TransactionId, commit_time_us: int, size: int
    ) -> None:
        history = self._histories.get(partition)
        if history is None or first > history.last + 1:
            # Begun, or begun anew behind what the log has lost.
            history = self._histories[partition] = MainHistory(first, self._points_max)
        history.brought(last, commit_time_us, size)

    def unknown(self) -> Iterator[Lacking]:
        """Return what targets lack first, where a look into the log has to tell when that was committed."""
        there = set()
        for lacking in self._lacking():
            history = self._histories.get(lacking.partition)
            if history is None or not history.first <= lacking.id <= history.last:
                there.add((lacking.target, lacking.partition))
                known, _ = self._looked_up.get((lacking.target, lacking.partition), (None, 0))
                if known != lacking.id:
                    yield lacking
        for gone in self._looked_up.keys() - there:
            del self._looked_up[gone]

    def told(self, lacking: Lacking, commit_time_us: int | None) -> None:
        self._looked_up[lacking.target, lacking.partition] = lacking.id, commit_time_us

    def lags(self, wall_us: int, silent: Container[PartitionId] = ()) -> dict[TargetName, TargetLag]:
        """Return by target how far it is behind; `wall_us` is the time by a server's clock, in µs since 1970. Of
        `silent` partitions the log does not tell its end."""
        oldest_us: dict[TargetName, int] = {}
        all_known = dict.fromkeys(self._machine.targets, True)
        sizes: dict[TargetName, int | None] = dict.fromkeys(self._machine.targets, 0)
        for target, partition, id in self._lacking():
            committed_us, size = self._committed_us(target, partition, id), None
            if committed_us is None:
                all_known[target] = False
            else:
                oldest_us[target] = min(committed_us, oldest_us.get(target, committed_us))
            if (history := self._histories.get(partition)) is not None:
                size = history.bytes_after(id - 1)
            so_far = sizes[target]
            sizes[target] = None if so_far is None or size is None else so_far + size
        partitions = self._machine.partitions
        unread = any(main.current is None for main in partitions.values())
        unsure = unread or any(partition in silent for partition in partitions)
        known = self._known()

        def seconds(target: TargetName) -> float | None:
            if (since_us := oldest_us.get(target)) is not None:
                # Of the future: one of the two clocks is wrong, and what the age is can't be told.
                return max(0, wall_us - since_us) / 1e6 if wall_us - since_us > -_FUTURE_US else None
            # What is not known is not 0: somebody would take it for well.
            return 0.0 if all_known[target] and not unsure else None

        return {
            target: TargetLag(seconds(target), None if unread else size) if target in known else TargetLag(None, None)
            for target, size in sizes.items()
        }

    def _known(self) -> set[TargetName]:
        """Return the targets that have told, to this player, what they have applied, and of this log."""
        return {
            name
            for name, stream in self._machine.targets.items()
            if not any(pair.given_up for pair in stream.pairs.values())
            and (stream.state is StreamState.UP or any(pair.told for pair in stream.pairs.values()))
        }

    def _committed_us(self, target: TargetName, partition: PartitionId, id: TransactionId) -> int | None:
        """Return when a transaction that a target lacks, or one after it, was committed; None if unknown."""
        history = self._histories.get(partition)
        if history is not None and history.first <= id <= history.last:
            return history.committed_us(id)
        _, looked_up = self._looked_up.get((target, partition), (id, None))
        if looked_up is not None or history is None or id > history.last:
            return looked_up
        return history.committed_us(history.first)

    def _lacking(self) -> Iterator[Lacking]:
        """Return the first transaction that each target lacks of each partition. Where nothing more is read, what the
        log has beyond is lacking, too."""
        known = self._known()
        for partition, main in self._machine.partitions.items():
            if main.current is None:
                continue
            through = max(main.current, main.mark) if main.stopped else main.current
            for target, stream in self._machine.targets.items():
                pair = stream.pairs[partition]
                delivered = max(pair.delivered, pair.start_after)
                if target in known and delivered < through:
                    yield Lacking(target, partition, delivered + 1)
