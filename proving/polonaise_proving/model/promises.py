"""What must hold in every state that can be reached.

Some promises are checked where a step would break them (`cluster`: no two contents at one id, no commit beside another
session's, no engagement below what is published; `asked`: nothing that was confirmed is cut, no older generation comes
back). Here are those that a state has by itself: above all that from here the log can go on whole, shown by trying.
"""

from __future__ import annotations

from typing import NamedTuple

from polonaise.terms import NO_SESSION
from polonaise_proving.model.asked import Asked
from polonaise_proving.model.cluster import subsets
from polonaise_proving.model.states import ModelColumn, ModelReplica, ModelStanding, ModelTold
from polonaise_proving.model.storage import Storage
from polonaise_proving.model.walk import Broken


class Seen(NamedTuple):
    """Of one replica, what an attempt meets that starts now and is disturbed by nobody."""

    standing: ModelStanding
    replica: ModelReplica


def seen(column: ModelColumn) -> Seen:
    return Seen(column.standing, column.replica._replace(fence=NO_SESSION, unsynced=0))


def check_confirmed(published: str, column: ModelColumn) -> None:
    """A confirmed mark tells of the log only, and of what is in it for ever."""
    confirmed, log = column.replica.confirmed, column.replica.log
    if confirmed >= len(published) or not published.startswith(log[: confirmed + 1]):
        raise Broken(f"{{0}} holds “{log}”, confirmed up to {confirmed}, and “{published}” is the log")


class Quiet:
    """Attempts without any more faults, from a state: with each set of replicas that may be there.

    Whatever such an attempt decides must have all that was published; and with an undamaged majority there it has to
    get through.
    """

    def __init__(self, asked: Asked, nodes: Storage) -> None:
        self._asked = asked
        self._nodes = nodes

    def check(self, published: str, session: int, replicas: tuple[Seen, ...]) -> None:
        standings = tuple(each.standing for each in replicas)
        fenced = [self._fenced(each, session) for each in replicas]
        wanted = self._asked.participants(standings)
        if unasked := {place for place, standing in enumerate(standings) if standing.coming} - wanted:
            raise Broken(f"the next session never makes the change: it does not fence {{{min(unasked)}}}")
        for up in subsets(list(range(len(replicas)))):
            there = tuple(place for place in up if place in wanted)
            tolds = tuple(fenced[place][1] if place in there else None for place in range(len(replicas)))
            decision = self._asked.decide(standings, session, tolds)
            who = "having heard " + (", ".join(f"{{{place}}}" for place in there) or "nobody")
            healthy = [place for place in up if _is_healthy(replicas[place])]
            if isinstance(decision, str):
                raise Broken(f"the next session, {who}, stops for ever: {decision}")
            if decision is None:
                if _is_majority(standings, healthy):
                    raise Broken(f"the next session, {who}, waits although an undamaged majority is there")
                continue
            log, sources = decision
            if not log.startswith(published):
                raise Broken(f"the next session, {who}, decides “{log}”, and “{published}” is in the log for ever")
            whole = [self._clean(standings[each], *fenced[each], session, log, f"{who}, {{{each}}}") for each in there]
            if log and not sources & {place for place, uncut in zip(there, whole, strict=True) if uncut}:
                raise Broken(f"the next session, {who}, cuts the last copy of “{log}”")
            if _is_majority(standings, list(up)) and not self._asked.may_engage(standings, frozenset(there)):
                raise Broken(f"the next session, {who}, may not engage, with a majority clean")

    def _fenced(self, seen: Seen, session: int) -> tuple[ModelReplica, ModelTold]:
        fenced = self._nodes.fence(seen.replica, session)
        if fenced is None:
            raise Broken(f"a replica refuses the newest session {session}")
        return fenced

    def _clean(
        self, standing: ModelStanding, replica: ModelReplica, told: ModelTold, session: int, log: str, who: str
    ) -> bool:
        """Bring a replica to exactly `log`, as the cleaning does; whether none of it had to be cut from it."""
        mark = self._asked.clean_to(standing, told, len(log) - 1)
        if not log.startswith(told.log[: mark + 1]):
            raise Broken(f"the next session, {who} holds “{told.log}”, taken for clean up to {mark}")
        cleaned: ModelReplica | None = replica
        if len(told.log) - 1 > mark or told.lost is not None:
            cleaned = self._nodes.truncate(replica, session, mark)
        while cleaned is not None and len(cleaned.log) < len(log):
            cleaned = self._nodes.copy(cleaned, session, log)
        joined = None if cleaned is None else self._nodes.join(cleaned, session, log)
        if joined is None or joined.lost is not None:
            raise Broken(f"the next session, {who} can never take part again: it tells {told}")
        return mark >= len(log) - 1


def _is_healthy(seen: Seen) -> bool:
    """Nothing ever befell its disk, for all that can be known."""
    standing, replica = seen
    return replica.lost is None and (standing.session == NO_SESSION or replica.joined >= standing.session)


def _is_majority(standings: tuple[ModelStanding, ...], places: list[int]) -> bool:
    """Of the members, and of those to be."""
    for members in ([each.member for each in standings], [each.coming for each in standings]):
        if 2 * sum(members[place] for place in places) <= sum(members) and any(members):
            return False
    return True
