"""Wall clocks that are set wrong for a while, in some seeds; and the judge of commit times, which must not follow them.

In these seeds the clocks of a minority of the storage nodes and of all servers may be wrong at once, each by an amount
of its own: what two of them agree on is true.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from polonaise.terms import PartitionId, TransactionId
from polonaise_proving.record.diskaudit import FinalLog
from polonaise_proving.record.observations import History, Violation
from polonaise_proving.stages.simulated.cluster import Cluster, Node

_DAY_S: Final = 86_400.0
_SLACK_US: Final = 2_000_000
"""How far commit times may be off besides the bound: what clocks that are right differ by, in microseconds."""


class ClockFaults:
    """Sets clocks wrong and right again until `heal`, and judges the commit times that came of it."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._random = cluster.world.random("clocks set wrong")
        count = (len(cluster.storage) - 1) // 2
        self._nodes = cluster.servers + self._random.sample(cluster.storage, count)
        self._wrong: set[Node] = set()
        self._under_way: list[asyncio.Task[None]] = []
        self._known: list[list[tuple[TransactionId, int]]] = [[] for _ in range(cluster.knobs.partitions)]
        """By partition: ids, rising, each with the true time at which somebody first knew that it is committed. Of the
        log as it was after `_resets`."""
        self._resets = [0] * cluster.knobs.partitions
        """By partition: the resets of the head that `_known` was cut by."""
        self._history = history
        history.true_us = lambda: cluster.world.true_us
        history.told_checks.append(self._told)

    async def run(self) -> None:
        """Set clocks wrong, each for a while, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._random.expovariate(1.0))
            right = [node for node in self._nodes if node not in self._wrong]
            if right:
                self._under_way.append(loop.create_task(self._wrong_for_a_while(self._random.choice(right))))

    async def _wrong_for_a_while(self, node: Node) -> None:
        self._wrong.add(node)
        machine, source = node.machine, self._random
        machine.set_clock_right()
        size_s = source.choice((60.0, 3_600.0, _DAY_S, 3_650 * _DAY_S)) * source.uniform(0.7, 1.4)
        machine.jump_clock(size_s * source.choice((1.0, 1.0, -1.0)))
        machine.set_drift(source.uniform(-0.05, 0.05))
        if source.random() < 0.3:
            node.crash()  # it starts again with the wrong clock, and has never seen a right one
        await asyncio.sleep(source.choice((0.05, 0.5, 3.0)) * source.uniform(0.5, 1.5))
        self._set_right(node)

    def _set_right(self, node: Node) -> None:
        node.machine.set_clock_right()
        self._wrong.discard(node)

    def heal(self) -> None:
        """Set all clocks right, for good."""
        for task in self._under_way:
            task.cancel()
        for node in self._nodes:
            self._set_right(node)

    def _told(self, partition: PartitionId) -> None:
        self._known_in(partition).append((self._history.told[partition], self._world.true_us))

    def _known_in(self, partition: PartitionId) -> list[tuple[TransactionId, int]]:
        """Return what is known of a partition, without what resets of its head have given up: that was another log."""
        known, kept = self._known[partition], self._history.kept_by_resets[partition]
        if (before := self._resets[partition]) < len(kept):
            self._resets[partition] = len(kept)
            del known[bisect_left(known, (min(kept[before:]) + 1, 0)) :]
        return known

    def check(self, log: FinalLog) -> Iterator[Violation]:
        """P3: each commit time lies between the append and its commit, as far as clocks may be off."""
        off_us = int(self._cluster.knobs.server.clock_off_s_max * 1e6) + _SLACK_US
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
