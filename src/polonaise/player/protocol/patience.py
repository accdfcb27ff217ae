"""How long a target is waited for: what tells a target that is slow from one that hangs."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from typing import Final

from polonaise.player.protocol.settings import PlayerSettings
from polonaise.terms import PartitionId

_MARGIN: Final = 4
"""The patience is at least so many times as long as what was waited for lately."""


class TargetPatience:
    """Knows of one stream what is in flight since when, and of its target how long it may take.

    A target may apply one partition after the other. So a partition is *stuck* only if neither of itself nor of what
    the target was sent before it anything was acknowledged for the time of patience. What was sent after it proves
    nothing: otherwise no partition that hangs would be noticed while others go on.

    The patience begins with `progress_s_max`. It is kept above what was waited for lately, doubles each time that it
    has come to an end, and is halved in `patience_s_max` seconds, which is also the most that it grows to.
    """

    def __init__(self, settings: PlayerSettings) -> None:
        self._least_s = settings.progress_s_max
        self._most_s = max(settings.progress_s_max, settings.patience_s_max)
        self._grown_s = self._least_s
        self._grown_at_s = 0.0
        self._sent = 0
        self._waits: dict[PartitionId, _Wait] = {}
        """By partition of which something is in flight."""
        self._acknowledged: list[tuple[int, float]] = []
        """Numbers of batches that were acknowledged, and when. Both rise: an earlier batch takes the place of later
        ones."""

    def patience_s(self, now_s: float) -> float:
        if self._grown_s <= self._least_s:
            return self._least_s
        left: float = 0.5 ** ((now_s - self._grown_at_s) / self._most_s)
        return max(self._least_s, left * self._grown_s)

    def _grow(self, to_s: float, now_s: float) -> None:
        if to_s > self.patience_s(now_s):
            self._grown_s, self._grown_at_s = min(to_s, self._most_s), now_s

    # ------------------------------------------------------------------ what is in flight

    def sent(self, partition: PartitionId, now_s: float) -> None:
        self._sent += 1
        wait = self._waits.get(partition)
        if wait is None:
            wait = self._waits[partition] = _Wait(self._sent, now_s)
        wait.numbers.append(self._sent)

    def acknowledged(self, partition: PartitionId, left: int, now_s: float) -> None:
        """The target has applied something of the partition; `left` batches of it are still in flight."""
        wait = self._waits.get(partition)
        if wait is None:
            return
        first = wait.numbers[0]
        while len(wait.numbers) > left:
            wait.numbers.popleft()
        self._grow(_MARGIN * (now_s - self._progress_at_s(wait)), now_s)
        if wait.numbers:
            # All that is in flight may come before it now: targets let partitions take turns.
            wait.began(self._sent + 1, now_s)
        else:
            self.forget(partition)
        while self._acknowledged and self._acknowledged[-1][0] >= first:
            self._acknowledged.pop()
        if self._waits:
            self._acknowledged.append((first, now_s))

    def forget(self, partition: PartitionId) -> None:
        self._waits.pop(partition, None)
        if not self._waits:
            self.forget_all()

    def forget_all(self) -> None:
        self._waits.clear()
        self._acknowledged.clear()
        self._sent = 0

    def _progress_at_s(self, wait: _Wait) -> float:
        """Return when anything of what is waited for, or of what was sent before that, was acknowledged last."""
        place = bisect_left(self._acknowledged, (wait.before,))
        if place:
            wait.progress_at_s = max(wait.progress_at_s, self._acknowledged[place - 1][1])
        return wait.progress_at_s

    # ------------------------------------------------------------------ what is late

    def stuck(self, now_s: float) -> list[PartitionId]:
        """Return the partitions with which the target hangs, that first which was sent first; grow if there are any."""
        patience_s = self.patience_s(now_s)
        stuck = [
            (wait.numbers[0], partition)
            for partition, wait in self._waits.items()
            if now_s - self._progress_at_s(wait) >= patience_s
        ]
        self._acknowledged.clear()  # all waits have it
        if stuck:
            self._grow(2 * patience_s, now_s)
        return [partition for _, partition in sorted(stuck)]

    def late(self, now_s: float) -> Iterator[tuple[PartitionId, bool]]:
        """Yield the partitions with nothing acknowledged for `progress_s_max`, and whether anything sent before them
        was."""
        for partition, wait in self._waits.items():
            if now_s - wait.since_s >= self._least_s:
                yield partition, now_s - self._progress_at_s(wait) < self._least_s


class _Wait:
    """What is waited for of one partition. `TargetPatience` writes `numbers` and `progress_at_s`, too."""

    __slots__ = ("before", "numbers", "progress_at_s", "since_s")

    def __init__(self, before: int, now_s: float) -> None:
        self.numbers: deque[int] = deque()
        """The numbers of the batches in flight, in the order in which they were sent."""
        self.began(before, now_s)

    def began(self, before: int, now_s: float) -> None:
        """It is waited for from now on; batches with lower numbers than `before` may come before it."""
        self.before = before
        self.since_s = now_s
        self.progress_at_s = now_s
