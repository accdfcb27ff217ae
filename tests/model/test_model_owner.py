"""The production's owner keeps every promise in every state within these bounds, and the model notices when not."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import pytest

from polonaise.server.protocol import effects, owner
from polonaise.server.protocol.owner import PartitionOwner
from polonaise_proving.model.decisions import mutated_owner
from polonaise_proving.model.owner import BOUNDS, QUICK, SHORT, OwnerBounds, OwnerExploration

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("bounds", QUICK, ids=lambda bounds: bounds.name)
def test_every_promise_holds_in_every_state(bounds: OwnerBounds) -> None:
    explored = OwnerExploration(PartitionOwner, bounds).run()
    assert not explored.broken
    assert explored.states > 100


@pytest.mark.exhaustive("polonaise.server.protocol")  # of bounds
@pytest.mark.parametrize("bounds", SHORT, ids=lambda bounds: bounds.name)
def test_every_promise_holds_in_every_state_further_on(bounds: OwnerBounds) -> None:
    assert not OwnerExploration(PartitionOwner, bounds).run().broken


class Mutation(NamedTuple):
    """A change of the machine's text."""

    what: str
    module: ModuleType
    old: str
    new: str


_TAKEN = "        effects = self._sends\n        self._sends = []\n"
_MUTATIONS = (
    Mutation("feeds go out before refusals", effects, _TAKEN, "        effects = self._sends + self._feeds\n"
          "        self._sends, self._feeds = [], []\n"),
    Mutation("answers go out before feeds", effects, "for part in (self._feeds, self._answers,",
          "for part in (self._answers, self._feeds,"),
    Mutation("answers go out before refusals", effects, _TAKEN, "        effects = self._sends + self._answers\n"
          "        self._sends, self._answers = [], []\n"),
    Mutation("a batch is fed when it is sent", owner,
          "            self._out.add(Replicate(session.id, sent.number, self.committed, sent.batch))\n",
          "            self._out.add(Replicate(session.id, sent.number, self.committed, sent.batch))\n"
          "            sent.batch and self._commit(sent.batch)\n"),
    Mutation("a refusal is told before what it rests on is decided", owner,
          "            if refusal.rests_on <= self.committed:\n", "            if True:\n"),
    Mutation("a request is answered before its message is committed", owner,
          "                session.prove(entry)\n", "                self._prove(entry, Moment(0.0, 0))\n"),
    Mutation("the appends in flight are failed when their session ends", owner,
          "        self._answers.left_unanswered(requests)\n",
          "        self._answers.left_unanswered(requests)\n"
          "        [self._out.add(*self.feeds.tell_lost(each, self.committed)) for each in self._undecided]\n"),
    Mutation("what was formed and never sent is dropped with its session", owner,
          "        self._inbox.put_back(never_sent)\n", "        del never_sent\n"),
    Mutation("what was formed and never sent is failed with its session", owner,
          "        self._inbox.put_back(never_sent)\n",
          "        for entry in never_sent:\n"
          "            if hasattr(entry, 'appends'):\n"
          "                reason = FailureReason.SESSION_ENDED\n"
          "                self._out.add(*self.feeds.refuse(entry.mount, entry.appends, -1, reason))\n"),
    Mutation("a refusal outlives what it rests on", owner,
          "            if refusal.rests_on > closing:\n", "            if False:\n"),
)  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("mutation", _MUTATIONS, ids=lambda mutation: mutation.what)
def test_effects_that_change_places_break_a_promise(mutation: Mutation) -> None:
    changed = mutated_owner(mutation.module, mutation.old, mutation.new)
    for states_max in (1_000, 10_000, 10**9):
        for bounds in (*QUICK, *SHORT, *BOUNDS):
            if OwnerExploration(changed, bounds).run(states_max=states_max).broken:
                return
    pytest.fail(f"nobody notices that {mutation.what}")
