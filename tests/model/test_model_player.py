"""The production's player delivers each entry once, in order, in every state within these bounds; and the model notices
when it does not."""

from __future__ import annotations

from math import inf
from random import Random
from types import ModuleType
from typing import NamedTuple

import pytest

from polonaise.player.protocol import activeplayer, reception, targetqueue, targetstream
from polonaise_proving.model.player import (
    PRODUCTION,
    QUICK,
    SHORT,
    PlayerBounds,
    PlayerExploration,
    PlayerWorld,
    mutated,
)


@pytest.mark.slow
@pytest.mark.parametrize("bounds", QUICK, ids=lambda bounds: bounds.name)
def test_each_target_gets_each_entry_once_in_every_state(bounds: PlayerBounds) -> None:
    explored = PlayerExploration(PRODUCTION, bounds).run()
    assert not explored.broken
    assert explored.states > 1_000


@pytest.mark.exhaustive("polonaise.player.protocol")  # of bounds
@pytest.mark.slow
@pytest.mark.parametrize("bounds", SHORT, ids=lambda bounds: bounds.name)
def test_each_target_gets_each_entry_once_further_on(bounds: PlayerBounds) -> None:
    explored = PlayerExploration(PRODUCTION, bounds).run()
    assert not explored.broken
    assert explored.states > 500


@pytest.mark.parametrize("seed", range(60))
def test_each_target_gets_each_entry_once_on_a_long_way_of_many_faults(seed: int) -> None:
    """Further than all ways can be walked: three targets, two partitions, everything at once."""
    random = Random(seed)
    letters = ("", "a", "b", "c", "ab", "bc", "abc")
    routes = tuple((*random.choices(letters, k=12), "abc") for _ in range(2))
    bounds = PlayerBounds(
        f"walk {seed}", routes, breaks=8, target_crashes=4, players=3, refusals=5, moves=3,
        queue_entries=random.choice((1, 3, 99)), join=random.choice((0, 2, 99)), batch_entries=random.choice((1, 3)),
        dummies=random.choice((2, 99)), patience_s=random.choice((0.0, inf)),
    )  # fmt: skip
    world = PlayerWorld(PRODUCTION, bounds)
    for _ in range(random.randrange(50, 400)):
        due, events = list(world.due()), list(world.events())
        # Faults now and then: they are most of what is possible.
        if events:
            world.step(random.choice(due if due and random.random() < 0.8 else events))
    world.settle()
    assert all(len(target.applied) == 2 for target in world.targets.values())


class Mutation(NamedTuple):
    """A change of the machines' text."""

    what: str
    module: ModuleType
    old: str
    new: str


MUTATIONS = (
    Mutation("no fence on messages", reception, "if kept != self.fence:", "if False:"),
    Mutation("any stream is accepted", reception, "return offered > kept", "return True"),
    Mutation("epochs alone fence", reception, "if kept != self.fence:", "if kept.epoch != self.fence.epoch:"),
    Mutation("a target does not look for gaps", reception, "if batch.previous == applied:", "if True:"),
    Mutation("after a refusal the stream goes on as before", reception,
             "if batch.previous == applied:", "if batch.previous == applied or batch.partition in self._refused:"),
    Mutation("events of older streams count", activeplayer,
             "stream is None or stream.term != term or", "stream is None or"),
    Mutation("every stream has the same term", targetstream, "        self.term += 1\n", "        self.term = 1\n"),
    Mutation("a player that was replaced goes on", activeplayer, "if kept.epoch > self.epoch:", "if False:"),
    Mutation("a read goes on where another stream was", targetqueue, "if read is None or read.number != number:",
             "if read is None:"),
    Mutation("a target that is added again counts its reads anew", activeplayer,
             "        stream = self.targets.pop(name)\n",
             "        stream = self.targets.pop(name)\n        self._reads = 0\n"),
    Mutation("a target that is added again counts its terms anew", targetstream,
             "self.term: Term = last_term", "self.term: Term = 0"),
    Mutation("what a read found is for whoever needs it", targetqueue,
             "            return False\n        invariant(read.first",
             "            self._catchup.extend(entries)\n            return False\n        invariant(read.first"),
    Mutation("a target joins the main stream after the read", targetqueue,
             "            self._joined_at = current\n", "            self._joined_at = current + 1\n"),
    Mutation("a target joins the main stream before the read", targetqueue,
             "last = current if self._joined_at is None else self._joined_at",
             "last = current if self._joined_at is None else self._joined_at - 1"),
    Mutation("a returning target waits for the main stream alone", targetqueue,
             "QueueState.NORMAL if self.covered >= current else QueueState.FETCHING", "QueueState.NORMAL"),
    Mutation("what a target has applied is sent again", targetqueue, "if entry.id > self._skipped_to:", "if True:"),
    Mutation("what overflows is forgotten", targetqueue, "self.covered = self._normal[0].id - 1",
             "self.covered = self._normal[-1].id"),
    Mutation("what overflows is kept, too", targetqueue,
             "        self._drop_normal()\n        self._joined_at = None\n        self.state = QueueState.FETCHING",
             "        self._joined_at = None\n        self.state = QueueState.FETCHING"),
    Mutation("the main stream begins behind all that the targets have applied", activeplayer,
             "        main.current = begin\n", "        main.current = begin + 1\n"),
    Mutation("a refused entry is passed over", activeplayer,
             'stream.halt(pair, last, f"it refuses', 'stream.halt(pair, queue.sent, f"it refuses'),
    Mutation("a refusal is not tried again", targetstream, "and pair.state.retry_at_s <= now_s", "and False"),
    Mutation("a target that is caught up does not join the others", targetqueue,
             "if self.state is QueueState.FETCHED and not self._catchup:", "if False:"),
    Mutation("a dummy stands for entries that wait", targetqueue,
             "idle = self.state is QueueState.NORMAL and not self._normal and not self._in_flight",
             "idle = True"),
    Mutation("a full stream never takes more", activeplayer, "stream.writing = False", "pass"),
)  # fmt: skip
"""Among them what the design found in the paper's text: no term, no epoch, reads that more than one target gets."""


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.what)
def test_a_broken_player_is_noticed(mutation: Mutation) -> None:
    changed = mutated(mutation.module, mutation.old, mutation.new)
    # Most break soon within some bounds: those are not to wait for all states within the bounds before them.
    for states_max in (400, 8_000, 30_000):
        for bounds in (*QUICK, *SHORT):
            if PlayerExploration(changed, bounds).run(states_max=states_max).broken:
                return
    pytest.fail(f"nobody notices that {mutation.what}")
