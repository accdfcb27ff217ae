"""What must hold in every state that can be reached.

Some promises are checked where a step would break them (`cluster`: no two contents at one id, no commit beside another
session's, no engagement below what is published; `asked`: nothing that was confirmed is cut, no older generation comes
back). Here are those that a state has by itself: above all that from here the log can go on whole, shown by trying.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from polonaise.terms import NO_SESSION

from . import storage
from .asked import Asked, Violation
from .cluster import subsets
from .states import Column, Standing, Told


class Seen(NamedTuple):
    """Of one replica, what an attempt meets that starts now and is disturbed by nobody."""

    standing: Standing
    told: Told


def seen(column: Column) -> Seen:
    return Seen(column.standing, storage.told(column.replica))


def check_confirmed(published: str, column: Column) -> None:
    """A confirmed mark tells of the log only, and of what is in it for ever."""
    confirmed, log = column.replica.confirmed, column.replica.log
    if confirmed >= len(published) or not published.startswith(log[: confirmed + 1]):
        raise Violation(f"{{0}} holds “{log}”, confirmed up to {confirmed}, and “{published}” is the log")


class Quiet:
    """Attempts without any more faults, from a state: with each set of replicas that may be there.

    Whatever such an attempt decides must have all that was published; and with an undamaged majority there it has to
    get through.
    """

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self.check = cache(self._check)

    def _check(self, published: str, session: int, replicas: tuple[Seen, ...]) -> None:
        standings = tuple(each.standing for each in replicas)
        fenced = [place for place, (standing, _) in enumerate(replicas) if standing.member or standing.coming]
        for there in subsets(fenced):
            tolds = tuple(each.told if place in there else None for place, each in enumerate(replicas))
            decision = self._asked.decide(standings, session, tolds)
            who = "having heard " + (", ".join(f"{{{place}}}" for place in there) or "nobody")
            healthy = [place for place in there if _is_healthy(replicas[place])]
            if isinstance(decision, str):
                raise Violation(f"the next session, {who}, stops for ever: {decision}")
            if decision is None:
                if _is_majority(standings, healthy):
                    raise Violation(f"the next session, {who}, waits although an undamaged majority is there")
                continue
            log, sources = decision
            if not log.startswith(published):
                raise Violation(f"the next session, {who}, decides “{log}”, and “{published}” is in the log for ever")
            self._clean(replicas, there, log, sources, who)
            if _is_majority(standings, list(there)) and not self._asked.may_engage(standings, frozenset(there)):
                raise Violation(f"the next session, {who}, may not engage, with a majority clean")

    def _clean(
        self, replicas: tuple[Seen, ...], there: tuple[int, ...], log: str, sources: frozenset[int], who: str
    ) -> None:
        """Everybody there can be brought to exactly `log`: none needs a batch that the cutting has left nowhere."""
        whole = []
        for place in there:
            standing, told = replicas[place]
            mark = self._asked.clean_to(standing, told, len(log) - 1)
            if not log.startswith(told.log[: mark + 1]):
                raise Violation(f"the next session, {who}, takes “{told.log}” for clean to {mark} on {{{place}}}")
            if mark >= len(log) - 1:
                whole.append(place)
        if log and not sources & set(whole):
            raise Violation(f"the next session, {who}, cuts the last copy of “{log}”")


def _is_healthy(replica: Seen) -> bool:
    """Nothing ever befell its disk, for all that can be known."""
    standing, told = replica
    return told.lost is None and (standing.session == NO_SESSION or told.joined >= standing.session)


def _is_majority(standings: tuple[Standing, ...], places: list[int]) -> bool:
    """Of the members, and of those to be."""
    for members in ([each.member for each in standings], [each.coming for each in standings]):
        if 2 * sum(members[place] for place in places) <= sum(members) and any(members):
            return False
    return True
