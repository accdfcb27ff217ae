"""A model that can't fail proves nothing: with one line of production changed, it must find how that breaks a promise.

And the other way round: the changes of one line that it does *not* find are harmless, each for the reason given.
"""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import pytest

from polonaise.server.protocol import commit, recovery
from polonaise.storage.protocol import replica
from polonaise_proving.model.bounds import TINY, ModelBounds
from polonaise_proving.model.decisions import mutated
from polonaise_proving.model.search import Search

pytestmark = pytest.mark.slow

_STATES_MAX = 100_000

_FIRST = ModelBounds("first sessions", sessions=2, fresh=True)
_OWNERS = ModelBounds("owners", batches=1)
_ROT = ModelBounds("rot", sessions=2, rots=1)
_REPAIRED = ModelBounds("rot", rots=1)
_FAILED = ModelBounds("failed syncs", sessions=2, failures=2)
_WIPED = ModelBounds("wiped disk", sessions=2, wipes=1)
_WIPED_LATE = ModelBounds("wiped disk", batches=1, wipes=1)
_EDITED = ModelBounds("replacement", sessions=2, batches=1, replicas=4, edits=2)


class Mutation(NamedTuple):
    """A change of one line, or of one comparison, in a module of production."""

    what: str
    module: ModuleType
    old: str
    new: str
    bounds: ModelBounds
    """Where it shows."""


_MUTATIONS = (
    Mutation("half is a quorum", recovery, "len(members) // 2 + 1", "len(members) // 2", _FIRST),
    Mutation(
        "an older owner claims",
        recovery,
        "    if value.generation > generation:\n        return None\n",
        "",
        _FIRST,
    ),
    Mutation(
        "an owner claims once only",
        recovery,
        "value.generation > generation",
        "value.generation >= generation",
        _FIRST,
    ),
    Mutation("two owners get one session", recovery, "session=value.session + 1", "session=value.session", _FIRST),
    Mutation(
        "who is to come is not fenced",
        recovery,
        "return value.members + tuple(",
        "return value.members or tuple(",
        _EDITED,
    ),
    Mutation(
        "who took part looks stale",
        recovery,
        "answer.joined < engagement.session",
        "answer.joined <= engagement.session",
        _FIRST,
    ),
    Mutation(
        "nobody is stale",
        recovery,
        "return answer.joined < engagement.session",
        "return False",
        _WIPED,
    ),
    Mutation(
        "a loss is no doubt",
        recovery,
        "        if held.lost_above is not None:\n            doubted.append(name)",
        "        if held.lost_above is not None:\n            pass",
        _ROT,
    ),
    Mutation(
        "who is away is no doubt",
        recovery,
        "            doubted.append(name)\n            continue",
        "            continue",
        _FIRST,
    ),
    Mutation("one doubt too many", recovery, "if needed > 0:", "if needed > 1:", _FIRST),
    Mutation("one doubt too few", recovery, "if needed > 0:", "if needed >= 0:", _FIRST),
    Mutation("a quorum may be in doubt", recovery, "quorum(value.members) + 1", "quorum(value.members)", _FIRST),
    Mutation("the lowest end", recovery, "if held.max_synced > closing:", "if held.max_synced < closing:", _FIRST),
    Mutation(
        "the last of the sources is the only one",
        recovery,
        "if held.max_synced > closing:",
        "if held.max_synced >= closing:",
        _ROT,
    ),
    Mutation(
        "late replicas decide",
        recovery,
        "for name, engagement in value.engagements.items() if engagement.unresolved",
        "for name, engagement in value.engagements.items()",
        _FIRST,
    ),
    Mutation(
        "what was not confirmed is cut",
        recovery,
        "        clean = closing\n",
        "        clean = answer.confirmed\n",
        _FIRST,
    ),
    Mutation(
        "catch-up is thrown away",
        recovery,
        "max(engagement.closing, answer.confirmed)",
        "engagement.closing",
        _FIRST,
    ),
    Mutation("a late dirty tail is kept", recovery, "max(engagement.closing, answer.confirmed)", "closing", _FIRST),
    Mutation(
        "late and engaged are swapped",
        recovery,
        "elif engagement.unresolved:",
        "elif not engagement.unresolved:",
        _FIRST,
    ),
    Mutation(
        "a stale copy is cleaned like one that took part",
        recovery,
        "if engagement is None or is_stale(engagement, answer):",
        "if engagement is None:",
        _WIPED_LATE,
    ),
    Mutation("clean is what is not held", recovery, "return min(clean, answer.max_synced)", "return clean", _FIRST),
    Mutation(
        "the others stay unresolved",
        recovery,
        "replace(before, closing=closing) if before.unresolved else before",
        "before",
        _FIRST,
    ),
    Mutation(
        "a resolved end moves on",
        recovery,
        "replace(before, closing=closing) if before.unresolved else before",
        "replace(before, closing=closing)",
        _OWNERS,
    ),
    Mutation(
        "the engaged are resolved at once",
        recovery,
        "engagements[name] = Engagement(value.session)",
        "engagements[name] = Engagement(value.session, closing)",
        _FIRST,
    ),
    Mutation(
        "only the old members have to be clean",
        recovery,
        "_is_quorum(value.next, clean) and all(",
        "all(",
        _EDITED,
    ),
    Mutation("a quorum is not enough", recovery, ">= quorum(members)", "> quorum(members)", _FIRST),
    Mutation(
        "the membership never changes",
        recovery,
        "if pending is not None and takes_next(value, clean):",
        "if pending is not None and not clean:",
        _EDITED,
    ),
    Mutation(
        "an added copy counts before it is clean",
        recovery,
        " and all(name in clean for name in added)",
        "",
        _EDITED,
    ),
    Mutation(
        "the members to be decide",
        recovery,
        "quorum(value.members) + 1",
        "quorum(value.next or value.members) + 1",
        _EDITED,
    ),
    Mutation("one fewer commits", commit, "[self._needed - 1]", "[self._needed - 2]", _FIRST),
    Mutation("the fastest commits", commit, "reverse=True)[self._needed", "reverse=False)[self._needed", _FIRST),
    Mutation(
        "who is not engaged counts",
        commit,
        "if name not in self._synced or number <= self._synced[name]:",
        "if number <= self._synced.get(name, 0):",
        _FIRST,
    ),
    Mutation(
        "a quorum of the engaged commits", commit, "needed = quorum(members)", "needed = quorum(list(engaged))", _EDITED
    ),
    Mutation(
        "older sessions are let in",
        replica,
        "self._fenced() if self._is_other(session) else self._unasked()",
        "self._unasked()",
        _FIRST,
    ),
    Mutation(
        "the fence falls",
        replica,
        "if session < promises.fence or session <= NO_SESSION:",
        "if session <= NO_SESSION:",
        _FIRST,
    ),
    Mutation(
        "older sessions may store",
        replica,
        "if request.session != self.promises.fence:",
        "if request.session < self.promises.joined:",
        _FIRST,
    ),
    Mutation(
        "a copy joins wherever it ends",
        replica,
        "        if self.last != prepared or self.last_crc != last_crc:\n",
        "        if False:\n",
        _ROT,
    ),
    Mutation(
        "a loss is for ever",
        replica,
        "joined=session, prepared=prepared, lost_above=UNRESOLVED",
        "joined=session, prepared=prepared",
        _ROT,
    ),
    Mutation(
        "a copy clears the loss",
        replica,
        "return [StoreBatches(batches), TellEnd()]",
        "return [StoreBatches(batches), Save(replace(self.promises, lost_above=UNRESOLVED)), TellEnd()]",
        _REPAIRED,
    ),
    Mutation(
        "what could not be synced is never cut",
        replica,
        "            actions.append(Cut(self.last))\n",
        "            pass\n",
        _FAILED,
    ),
    Mutation(
        "an acknowledgement without a write",
        replica,
        "actions: list[Action] = [StoreBatches(batches)] if batches else []",
        "actions: list[Action] = []",
        _FIRST,
    ),
)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mutation", _MUTATIONS, ids=lambda mutation: mutation.what)
def test_a_mutation_is_found(mutation: Mutation) -> None:
    decisions = mutated(mutation.module, mutation.old, mutation.new)

    # What an overtaken attempt can do no more is known from the fence, which a mutation in the replica may break.
    result = Search(decisions, mutation.bounds, forgetting=mutation.module is not replica).run(_STATES_MAX)

    assert result.counterexample is not None, f"not found: {result}"


_HARMLESS = (
    # A copy is confirmed at the start of a session, before it has acknowledged anything in it, or while it is late and
    # its end is resolved: what it may have lost above is not asked of it before it has joined again.
    Mutation(
        "a confirmation clears the loss",
        replica,
        "lost_above=max(low_water_mark, promises.lost_above)",
        "lost_above=UNRESOLVED",
        _ROT,
    ),
    # Nobody believes them: they are left for an operator who has lost more than can be made up for.
    Mutation(
        "bytes above a loss are cut before it is decided what the log is",
        replica,
        "if promises.untrusted and not promises.may_have_lost:",
        "if promises.untrusted:",
        _ROT,
    ),
    # Confirmed is clean: the rest is cut and copied again, which costs time and nothing else.
    Mutation(
        "a late copy is kept as far as it is confirmed only",
        recovery,
        "max(engagement.closing, answer.confirmed)",
        "answer.confirmed",
        _OWNERS,
    ),
    # `members` and `next` differ by one, so a quorum of the one meets each quorum of the other: a session engaged on a
    # quorum of `next` has fenced enough of the old members, and read from enough of them.
    Mutation(
        "only the members to be have to be clean",
        recovery,
        "    return _is_quorum(value.members, clean)\n",
        "    return _is_quorum(value.next or value.members, clean)\n",
        _EDITED,
    ),
    # More is never committed on fewer, as fewer are never enough to engage; and more of them are waited for.
    Mutation(
        "doubt is measured by the engaged",
        recovery,
        "quorum(value.members) + 1",
        "quorum(engaged) + 1",
        _EDITED,
    ),
    # A second line of defence: within a minority of damaged disks nobody has confirmed what the decision does not hold.
    Mutation(
        "what was confirmed contradicts nothing",
        recovery,
        "answer.confirmed > closing:",
        "answer.confirmed > closing and False:",
        _ROT,
    ),
)


@pytest.mark.exhaustive("polonaise.server.protocol", "polonaise.storage.protocol")  # of changes
@pytest.mark.parametrize("mutation", _HARMLESS, ids=lambda mutation: mutation.what)
def test_a_change_that_only_looks_like_a_bug_breaks_nothing(mutation: Mutation) -> None:
    decisions = mutated(mutation.module, mutation.old, mutation.new)

    for bounds in (*TINY, mutation.bounds):
        result = Search(decisions, bounds).run()
        assert result.complete, f"{result}\n{result.counterexample}"
