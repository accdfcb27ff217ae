"""Targets that are slow, and targets that hang, in virtual time: only those that hang are taken for it."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count, pairwise
from typing import Any, NamedTuple

import pytest

from polonaise.player.protocol import patience
from polonaise.player.protocol.deliveryhealth import targets_health
from polonaise.player.protocol.entries import DeliveryBatch, RoutedEntry
from polonaise.player.protocol.settings import PlayerSettings
from polonaise_proving.model.decisions import changed_module
from polonaise_proving.model.player import PRODUCTION, mutated
from polonaise_proving.mutations.known import MUTATIONS
from polonaise_proving.mutations.mutation import Mutation

EACH = 2_000
"""The entries of each partition."""
BODY = bytes(100)
_TICK_S = 0.5


class Delivery:
    """A player of production's decisions, and a target that needs `cost_s` seconds for an entry.

    `writers` batches are applied at a time; `next_one` chooses among the partitions of which something waits.
    """

    def __init__(
        self,
        partitions: int,
        writers: int,
        cost_s: float,
        *,
        machines: Any = PRODUCTION,
        fifo: bool = False,
        **settings: Any,
    ):
        self.machine = machines.player(1, range(partitions), PlayerSettings(**settings))
        self.machine.add_target("a", None)
        self.closed: list[tuple[float, str]] = []
        self.applied: dict[int, int] = {}
        self.hanging: set[int] = set()
        """Partitions of which nothing is applied any more."""
        self.told_slow = 0
        self.now_s = 0.0
        self._partitions = partitions
        self._writers = writers
        self._cost_s = cost_s
        self._fifo = fifo
        self._numbers = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._term = 0
        self._waiting: deque[DeliveryBatch] = deque()
        self._busy: set[int] = set()
        self._tick()

    def run(self, seconds: float) -> None:
        """Go on for this long, or until everything is applied."""
        until_s = self.now_s + seconds
        while self._events and self._events[0][0] <= until_s and not self.complete:
            self.now_s, _, event = heapq.heappop(self._events)
            event()

    @property
    def complete(self) -> bool:
        return sum(last + 1 for last in self.applied.values()) == self._partitions * EACH

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + seconds, next(self._numbers), event))

    def _tick(self) -> None:
        self._carry_out(self.machine.tick(self.now_s))
        self.told_slow = max(self.told_slow, len(targets_health(self.machine)["a"]["slow"]))
        self._after(_TICK_S, self._tick)

    def _carry_out(self, effects: Iterable[Any]) -> None:
        for effect in list(effects):
            match type(effect).__name__:
                case "OpenStream":
                    self._term = effect.term
                    self._after(0.001, lambda term=effect.term: self._connected(term))  # type: ignore[misc]
                case "CloseStream":
                    self.closed.append((self.now_s, effect.reason))
                    self._waiting.clear()
                    self._busy.clear()
                    self._term = 0
                case "AskMark":
                    self._carry_out(self.machine.mark_told(effect.partition, effect.number, EACH - 1, self.now_s))
                case "ReadForTarget":
                    first, last = effect.read.first, min(effect.read.last, effect.read.first + 1_000)
                    read = [RoutedEntry(id, BODY) for id in range(first, last + 1)]
                    about = "a", effect.partition, effect.read.number, read, last
                    self._carry_out(self.machine.recovered(*about, self.now_s))
                case "FollowPartition" if effect.first < EACH:
                    brought = {"a": [RoutedEntry(id, BODY) for id in range(effect.first, EACH)]}
                    about = effect.partition, effect.number, effect.first, EACH - 1, brought
                    self._carry_out(self.machine.fetched(*about, self.now_s))
                case "SendBatches":
                    self._waiting.extend(effect.batches)
                    self._go_on()
                    self._carry_out(self.machine.written("a", effect.term, self.now_s))

    def _connected(self, term: int) -> None:
        self._carry_out(self.machine.connected("a", term, dict(self.applied), self.now_s))

    def _go_on(self) -> None:
        """Begin to apply what there are writers for, in turns of partitions or in the order in which it came."""
        for batch in list(self._waiting):
            if len(self._busy - self.hanging) >= self._writers:
                return
            if batch.partition in self._busy:
                if self._fifo:
                    return
                continue
            self._waiting.remove(batch)
            self._busy.add(batch.partition)
            if batch.partition not in self.hanging:
                done = self._applied(self._term, batch)
                self._after(self._cost_s * len(batch.entries), done)

    def _applied(self, term: int, batch: DeliveryBatch) -> Callable[[], None]:
        def done() -> None:
            if term != self._term:
                return  # it was cancelled
            self._busy.discard(batch.partition)
            self.applied[batch.partition] = batch.last
            if not self._fifo:
                # The partition goes behind the others.
                again = [each for each in self._waiting if each.partition == batch.partition]
                self._waiting = deque([*(each for each in self._waiting if each not in again), *again])
            self._go_on()
            self._carry_out(self.machine.acknowledged("a", term, batch.partition, batch.last, self.now_s))

        return done


class Slow(NamedTuple):
    """A target that applies all the time, at its pace."""

    what: str
    partitions: int
    writers: int
    cost_s: float
    fifo: bool = False


SLOW = (
    Slow("one writer for all partitions, in turns", 100, 1, 0.002),
    Slow("one writer for all partitions, as it comes", 100, 1, 0.002, fifo=True),
    Slow("a few writers", 100, 4, 0.008),
    Slow("a writer for each partition", 20, 20, 0.04),
)


@pytest.mark.slow
@pytest.mark.parametrize("slow", SLOW, ids=lambda slow: slow.what)
def test_a_target_that_applies_all_the_time_is_not_taken_for_one_that_hangs(slow: Slow) -> None:
    delivery = Delivery(slow.partitions, slow.writers, slow.cost_s, fifo=slow.fifo)
    delivery.run(2_000.0)
    assert (delivery.complete, delivery.closed) == (True, [])


@pytest.mark.slow
def test_a_partition_that_waits_for_its_turn_is_told_as_slow() -> None:
    delivery = Delivery(100, 1, 0.02, fifo=True)
    delivery.run(200.0)
    assert delivery.closed == []
    assert delivery.told_slow > 10
    assert not targets_health(delivery.machine)["a"]["hindered"]


@pytest.mark.parametrize("writers", [1, 10])
def test_a_target_that_needs_longer_for_one_batch_than_it_was_given_is_given_more(writers: int) -> None:
    """An entry takes 0.1 s, and a batch 51 s: it gets smaller ones at first, and in the end the time."""
    delivery = Delivery(10, writers, 0.1, partition_window_bytes=50_000)
    delivery.run(10_000.0)
    assert delivery.complete
    assert len(delivery.closed) == 1


def test_a_partition_that_hangs_is_noticed_while_a_slow_target_goes_on_with_the_others() -> None:
    delivery = Delivery(30, 2, 0.002)
    delivery.run(10.0)
    assert delivery.closed == []
    delivery.hanging.add(7)
    delivery.run(80.0)
    (closed,) = delivery.closed
    assert closed[1].startswith("it hangs: it acknowledged nothing of partition 7 for ")


@pytest.mark.slow
def test_a_target_that_hangs_for_ever_is_tried_again_at_growing_intervals() -> None:
    delivery = Delivery(3, 3, 0.001)
    delivery.hanging.update(range(3))
    delivery.run(4_000.0)
    times = [at_s for at_s, _ in delivery.closed]
    pauses = [round(after - before) for before, after in zip([0.0, *times], times, strict=False)]
    assert pauses[0] == 30
    assert all(before <= after + 1 for before, after in pairwise(pauses))
    assert 300 < pauses[-1] < 620


PATIENCE: tuple[list[int], list[int], list[int]] = ([], [], [1])


def behind_another(patience_of: Any) -> tuple[list[int], list[int], list[int]]:
    """Return what is stuck while 8 batches that were sent before partition 1 are acknowledged, and 29 s and 30 s after
    that, while what was sent later is acknowledged all the time."""
    watched = patience_of(PlayerSettings())
    for _ in range(8):
        watched.sent(0, 0.0)
    watched.sent(1, 0.0)
    stuck, later = [], []
    for number in range(1, 9):
        watched.acknowledged(0, 8 - number, 5.0 * number)
        stuck += watched.stuck(5.0 * number)
    for second in range(41, 71):
        watched.sent(2, float(second))
        watched.acknowledged(2, 0, second + 0.5)
        later.append(watched.stuck(second - 0.001 if second == 70 else float(second)))
    return stuck, later[-1], watched.stuck(70.0)


def test_what_was_sent_before_is_waited_for_and_what_was_sent_later_is_not() -> None:
    assert behind_another(patience.TargetPatience) == PATIENCE


@pytest.mark.parametrize("name", [name for name, each in MUTATIONS.items() if each.model == "patience"])
def test_patience_that_is_wrong_is_noticed(name: str) -> None:
    assert is_noticed(MUTATIONS[name]), f"nobody notices {name}"


def is_noticed(mutation: Mutation) -> bool:
    """Ask the tests above in the order of what they cost."""
    if mutation.module == patience.__name__:
        changed = vars(changed_module(mutation))["TargetPatience"]
        if behind_another(changed) != PATIENCE:
            return True
    machines = mutated(mutation)
    slower = Delivery(10, 1, 0.1, machines=machines, partition_window_bytes=50_000)
    slower.run(10_000.0)
    if len(slower.closed) != 1:
        return True
    slow = Delivery(100, 1, 0.002, fifo=True, machines=machines)
    slow.run(200.0)
    return len(slow.closed) != 0
