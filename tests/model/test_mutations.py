"""A model that can't fail proves nothing: with one line of production changed, it must find how that breaks a promise.

And the other way round: the changes of one line that it does *not* find are harmless, each for the reason given.
"""

from __future__ import annotations

import pytest

from polonaise_proving.model.bounds import TINY, ModelBounds
from polonaise_proving.model.decisions import mutated
from polonaise_proving.model.search import Search
from polonaise_proving.mutations.known import MUTATIONS
from polonaise_proving.mutations.mutation import Mutation

pytestmark = pytest.mark.slow

_STATES_MAX = 100_000
_RECOVERY = "polonaise.server.protocol.recovery"
_REPLICA = "polonaise.storage.protocol.replica"

_BOUNDS = {
    "first sessions": ModelBounds("first sessions", sessions=2, fresh=True),
    "owners": ModelBounds("owners", batches=1),
    "rot": ModelBounds("rot", sessions=2, rots=1),
    "rot repaired": ModelBounds("rot", rots=1),
    "failed syncs": ModelBounds("failed syncs", sessions=2, failures=2),
    "wiped disk": ModelBounds("wiped disk", sessions=2, wipes=1),
    "late wiped disk": ModelBounds("wiped disk", batches=1, wipes=1),
    "replacement": ModelBounds("replacement", sessions=2, batches=1, replicas=4, edits=2),
}
"""Where mutations show, by the name of the model that is said to find them."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name, each in MUTATIONS.items() if each.model in _BOUNDS])
def test_a_mutation_is_found(name: str) -> None:
    mutation = MUTATIONS[name]
    # What an overtaken attempt can do no more is known from the fence, which a mutation in the replica may break.
    forgetting = mutation.module != _REPLICA

    result = Search(mutated(mutation), _BOUNDS[mutation.model], forgetting=forgetting).run(_STATES_MAX)

    assert result.counterexample is not None, f"not found: {result}"


_HARMLESS = (
    # A copy is confirmed at the start of a session, before it has acknowledged anything in it, or while it is late and
    # its end is resolved: what it may have lost above is not asked of it before it has joined again.
    Mutation(
        _REPLICA,
        "lost_above=max(low_water_mark, promises.lost_above)",
        "lost_above=UNRESOLVED",
        "a confirmation clears the loss",
        model="rot",
    ),
    # Nobody believes them: they are left for an operator who has lost more than can be made up for.
    Mutation(
        _REPLICA,
        "if promises.untrusted and not promises.may_have_lost:",
        "if promises.untrusted:",
        "bytes above a loss are cut before it is decided what the log is",
        model="rot",
    ),
    # Confirmed is clean: the rest is cut and copied again, which costs time and nothing else.
    Mutation(
        _RECOVERY,
        "max(engagement.closing, answer.confirmed)",
        "answer.confirmed",
        "a late copy is kept as far as it is confirmed only",
        model="owners",
    ),
    # `members` and `next` differ by one, so a quorum of the one meets each quorum of the other: a session engaged on a
    # quorum of `next` has fenced enough of the old members, and read from enough of them.
    Mutation(
        _RECOVERY,
        "    return _is_quorum(value.members, clean)\n",
        "    return _is_quorum(value.next or value.members, clean)\n",
        "only the members to be have to be clean",
        model="replacement",
    ),
    # More is never committed on fewer, as fewer are never enough to engage; and more of them are waited for.
    Mutation(
        _RECOVERY,
        "quorum(value.members) + 1",
        "quorum(engaged) + 1",
        "doubt is measured by the engaged",
        model="replacement",
    ),
    # A second line of defence: within a minority of damaged disks nobody has confirmed what the decision does not hold.
    Mutation(
        _RECOVERY,
        "answer.confirmed > closing:",
        "answer.confirmed > closing and False:",
        "what was confirmed contradicts nothing",
        model="rot",
    ),
)


@pytest.mark.exhaustive("polonaise.server.protocol", "polonaise.storage.protocol")  # of changes
@pytest.mark.parametrize("mutation", _HARMLESS, ids=lambda mutation: mutation.breaks)
def test_a_change_that_only_looks_like_a_bug_breaks_nothing(mutation: Mutation) -> None:
    decisions = mutated(mutation)

    for bounds in (*TINY, _BOUNDS[mutation.model]):
        result = Search(decisions, bounds).run()
        assert result.complete, f"{result}\n{result.counterexample}"
