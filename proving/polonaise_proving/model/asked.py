"""The model's questions to the functions under test: its values put as theirs, their answers put as its own.

Every question is asked once and its answer kept: they are pure functions, so the same question has the same answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ParamSpec, TypeAlias, TypeVar

from polonaise.coordination import memberchanges
from polonaise.coordination.values import ClusterDescription, Engagement, PartitionValue
from polonaise.errors import PolonaiseError
from polonaise.terms import NO_SESSION, NO_TRANSACTION
from polonaise_proving.model.decisions import Decisions
from polonaise_proving.model.states import NAMES, ModelStanding, ModelTold
from polonaise_proving.model.walk import Broken

P = ParamSpec("P")
V = TypeVar("V")


NOT_ENGAGED = -1
"""The progress of a member that is not engaged in a session."""

Standings: TypeAlias = tuple[ModelStanding, ...]
Decision: TypeAlias = tuple[str, frozenset[int]]
"""The log up to the closing mark, and the places of its sources."""


class Asked:
    """One set of decision functions, asked by places (0, 1, 2, …) instead of names."""

    def __init__(self, decisions: Decisions) -> None:
        self._recovery = decisions.recovery
        self._commit = decisions.commit
        self._kept: dict[tuple[object, ...], Any] = {}
        self.claim = cache(self._claim)
        self.participants = cache(self._participants)
        self.decide = cache(self._decide)
        self.clean_to = cache(self._clean_to)
        self.may_engage = cache(self._may_engage)
        self.engage = cache(self._engage)
        self.edited = cache(self._edited)
        self.committed = cache(self._committed)

    def kept(self, work: Callable[P, V], *arguments: P.args, **named: P.kwargs) -> V:
        """What `work` makes of these arguments, worked out once."""
        key = (work, *arguments)
        if key not in self._kept:
            self._kept[key] = work(*arguments, **named)
        value: V = self._kept[key]
        return value

    def _claim(self, standings: Standings, session: int) -> None:
        """The next owner gets the next session; so does the same owner; one of an older generation gets none."""
        before = _value(standings, session - 1, generation=session)
        if self._recovery.claim(before, session - 1) is not None:
            raise Broken("an owner of an older generation claims a session")
        for generation in (session, session + 1):
            claimed = self._recovery.claim(before, generation)
            if claimed != _value(standings, session, generation):
                raise Broken(f"generation {generation} may claim session {session}, and does not")

    def _participants(self, standings: Standings) -> frozenset[int]:
        """Who is to be fenced."""
        names = self._recovery.participants(_value(standings, 0, 0))
        return frozenset(NAMES.index(name) for name in names)

    def _decide(self, standings: Standings, session: int, tolds: tuple[ModelTold | None, ...]) -> Decision | str | None:
        """A decision; a contradiction in words; None while it is undecided."""
        recovery = self._recovery
        answers = {NAMES[place]: self._answer(told) for place, told in enumerate(tolds) if told is not None}
        outcome = recovery.decide(_value(standings, session, session), answers)
        if isinstance(outcome, recovery.Undecided):
            return None
        if isinstance(outcome, recovery.Contradiction):
            return _NAME.sub(lambda name: f"{{{NAMES.index(name[0])}}}", outcome.what)
        sources = frozenset(NAMES.index(name) for name in outcome.sources)
        logs = {told.log[: outcome.closing + 1] for place in sources if (told := tolds[place])}
        if outcome.closing == NO_TRANSACTION:
            logs.add("")
        if len(logs) != 1 or outcome.last_crc != crc(*logs):
            raise Broken(f"the sources of the closing mark {outcome.closing} hold {sorted(logs)}")
        return logs.pop(), sources

    def _clean_to(self, standing: ModelStanding, told: ModelTold, closing: int) -> int:
        value = _value((standing,), 0, 0)
        mark: int = self._recovery.clean_to(value, NAMES[0], self._answer(told), closing)
        if mark >= len(told.log):
            raise Broken(f"what ends at {len(told.log) - 1} is taken for clean up to {mark}")
        if mark < min(told.confirmed, len(told.log) - 1, len(told.log) if told.lost is None else told.lost):
            raise Broken(f"what is above {mark} is cut, and up to {told.confirmed} it was confirmed to be clean")
        return mark

    def _may_engage(self, standings: Standings, clean: frozenset[int]) -> bool:
        may: bool = self._recovery.may_engage(_value(standings, 0, 0), {NAMES[place] for place in clean})
        return may

    def _engage(self, standings: Standings, session: int, clean: frozenset[int], closing: int) -> Standings:
        before = _value(standings, session, session)
        after = self._recovery.engage(before, {NAMES[place] for place in clean}, closing)
        coming = {name for name, standing in zip(NAMES, standings, strict=False) if standing.coming}
        made = after.next is None and (not coming or set(after.members) == coming)
        if not made and (after.next, after.members) != (before.next, before.members):
            raise Broken(f"a pending membership {sorted(coming)} becomes {sorted(after.members)}")
        here = {NAMES[place] for place in clean}
        most = all(2 * len(here & {*members}) > len(members) for members in (before.members, coming))
        if not made and most and coming - {*before.members} <= here:
            raise Broken(f"the members do not become {sorted(coming)}, of which {sorted(here)} are clean")
        engaged = {name for name in after.members if after.engagements.get(name) == Engagement(session)}
        if len(engaged) <= len(after.members) // 2:
            raise Broken(f"session {session} is engaged on {sorted(engaged)} of {sorted(after.members)}")
        added = {*after.members} - {*before.members}
        if not added <= engaged:
            raise Broken(f"{sorted(added)} count as members, and have not been caught up with")
        return tuple(_standing(after, name) for name in NAMES[: len(standings)])

    def _edited(self, standings: Standings, place: int) -> Standings | None:
        """What is pending after an operator has asked for a replica to be added, or removed if it is a member.

        If its answer is that a change is pending, the operator cancels that one. None if the edit is refused.
        """
        before = _value(standings, 0, 0)
        try:
            if before.next is not None:
                after = memberchanges.cancelled(before)
            elif NAMES[place] in before.members:
                after = memberchanges.without_copy(before, NAMES[place], 1)
            else:
                description = ClusterDescription(bytes(16), 1, tuple(NAMES))
                after = memberchanges.with_copy(before, description, NAMES[place])
        except PolonaiseError:
            return None
        return tuple(_standing(after, name) for name in NAMES[: len(standings)])

    def _committed(self, progress: tuple[int, ...]) -> int:
        """How many batches of a session are committed, by the progress of each member.

        Members that are not engaged are heard nevertheless, with the largest number there is: it must not count.
        """
        members = NAMES[: len(progress)]
        most = max(0, max(progress) - 1)
        engaged = [name for name, each in zip(members, progress, strict=True) if each != NOT_ENGAGED]
        acknowledgements = self._commit.Acknowledgements(members, engaged)
        for name, each in zip(members, progress, strict=True):
            acknowledgements.acknowledge(name, most if each == NOT_ENGAGED else max(0, each - 1))
        committed: int = acknowledgements.committed
        if committed < sorted(progress, reverse=True)[len(members) // 2] - 1:
            raise Broken(f"a majority has synced more than the first {committed} batches, and they are not committed")
        return committed

    def _answer(self, told: ModelTold) -> object:
        closing = len(told.log) + NO_TRANSACTION
        return self._recovery.ReplicaAnswer(
            joined=told.joined,
            prepared=told.prepared,
            confirmed=told.confirmed,
            max_synced=closing,
            last_crc=crc(told.log),
            lost_above=told.lost,
        )


_NAME = re.compile(rf"\b[{NAMES}]\b")
"""In what a contradiction says: replicas are called by their places until a trace gives them names."""


def crc(log: str) -> int:
    return int(log, 36) if log else 0


def _value(standings: Sequence[ModelStanding], session: int, generation: int) -> PartitionValue:
    named = list(zip(NAMES, standings, strict=False))
    coming = tuple(name for name, standing in named if standing.coming)
    return PartitionValue(
        generation=generation,
        session=session,
        members=tuple(name for name, standing in named if standing.member),
        next=coming or None,
        engagements={
            name: Engagement(standing.session, standing.closing)
            for name, standing in named
            if standing.session != NO_SESSION
        },
    )


def _standing(value: PartitionValue, name: str) -> ModelStanding:
    engagement = value.engagements.get(name)
    coming = name in (value.next or ())
    if engagement is None:
        return ModelStanding(name in value.members, coming)
    return ModelStanding(name in value.members, coming, engagement.session, engagement.closing)
