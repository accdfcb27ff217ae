"""The judge of commit times: they are near the true time, however wrong the clocks of some nodes are."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from polonaise.terms import PartitionId, TransactionId
from polonaise_proving.record.diskaudit import FinalLog
from polonaise_proving.record.observations import History, Violation

_SLACK_US: Final = 2_000_000
"""How far commit times may be off besides the bound: what clocks that are right differ by, in microseconds."""


class CommitTimes:
    """Notes when it was first known that something is committed, and compares commit times with that."""

    def __init__(self, history: History, partitions: int, off_s_max: float) -> None:
        """`history.true_us` tells the true time; commit times may be off by `off_s_max` seconds."""
        self._history = history
        self._off_us = int(off_s_max * 1e6) + _SLACK_US
        self._known: list[list[tuple[TransactionId, int]]] = [[] for _ in range(partitions)]
        """By partition: ids, rising, each with the true time at which somebody first knew that it is committed. Of the
        log as it was after `_resets`."""
        self._resets = [0] * partitions
        """By partition: the resets of the head that `_known` was cut by."""
        history.told_checks.append(self._told)

    def _told(self, partition: PartitionId) -> None:
        self._known_in(partition).append((self._history.told[partition], self._history.true_us()))

    def _known_in(self, partition: PartitionId) -> list[tuple[TransactionId, int]]:
        """Return what is known of a partition, without what resets of its head have given up: that was another log."""
        known, kept = self._known[partition], self._history.kept_by_resets[partition]
        if (before := self._resets[partition]) < len(kept):
            self._resets[partition] = len(kept)
            del known[bisect_left(known, (min(kept[before:]) + 1, 0)) :]
        return known

    def check(self, log: FinalLog) -> Iterator[Violation]:
        """P3: each commit time lies between the append and its commit, as far as clocks may be off."""
        off_us = self._off_us
        known, latest_us = self._known_in(log.partition), 0
        for batch in log.batches:
            place = bisect_left(known, (batch.last, 0))
            if place < len(known) and batch.commit_time_us > known[place][1] + off_us:
                ahead_s = (batch.commit_time_us - known[place][1]) / 1e6
                seen = f"{batch.first} to {batch.last} were committed {ahead_s:.0f} s after somebody knew of it"
                yield Violation("P3 order and density", "commit times near the true time", seen)
            for transaction in range(batch.first, batch.last + 1):
                body = log.bodies[transaction]
                if body is not None and body.number < len(self._history.tries):
                    latest_us = max(latest_us, self._history.tries[body.number].asked_us)
            if batch.commit_time_us < latest_us - off_us:
                behind_s = (latest_us - batch.commit_time_us) / 1e6
                seen = f"{batch.first} to {batch.last} were committed {behind_s:.0f} s before they were appended"
                yield Violation("P3 order and density", "commit times near the true time", seen)
