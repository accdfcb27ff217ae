"""The rule by which partitions are assigned to servers. Every server computes it and writes what it finds to change."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf
from typing import Final, NamedTuple

from polonaise.coordination.lease import LEASE_S
from polonaise.coordination.values import Assignment, Owner, Registration
from polonaise.terms import PartitionId, ServerId

_BELIEVED_S: Final = 3.0
"""A server is believed to be unable after this: longer than it takes all servers to tell the same."""


class Candidate(NamedTuple):
    """A living server, as the rule sees it."""

    address: str
    settled: bool = True
    """Whether it has lived for long enough to be given partitions."""
    preferred: frozenset[PartitionId] = frozenset()
    """Partitions that it should own, if the balance allows."""
    unable: frozenset[PartitionId] = frozenset()
    """Partitions that it says it can't serve: nothing moves to it while there are any."""
    doubtful: bool = False
    """Whether it has just said that it is unable to serve some: nothing moves to it, either."""


def assign(
    current: Assignment, candidates: Mapping[ServerId, Candidate], partitions: int, *, rebalance: bool = True
) -> Assignment:
    """Return the assignment for these living servers, which gives each partition exactly one owner.

    The same input gives the same result in every process, so no manager has to be elected: whoever writes first by
    compare-and-set has written what the rest would have.

    - A partition without a living owner goes to a settled server, if there is one to one that prefers it. While none
      has settled, those that own some count as such, and while none does, all.
    - A partition moves from an owner that is unable to serve it to a settled server that is able: unable to serve none,
      and not doubtful. While there is none, no partition of a living server moves at all: where nobody can serve it,
      moving helps nobody.
    - With `rebalance`, settled servers end with as many partitions as each other, or one more; none moves between
      servers whose numbers differ by one. Without it no partition of a living server moves.
    - With `rebalance`, a partition moves to a settled server that prefers it from an owner that does not, where that
      does not disturb the balance.

    A partition that changes its owner gets the next generation, which voids what was sent to the owner before. Without
    a candidate the assignment stays as it is.
    """
    if not candidates:
        return current
    loads = _Loads(current, candidates, partitions)
    for partition in range(partitions):
        if partition not in loads.owner_of:
            loads.give(partition, loads.least_loaded(loads.preferring(partition) or loads.takers))
    _leave_the_unable(loads)
    if rebalance and loads.able:
        # Until nothing moves any more, or the next look would move something again. Two rounds are nearly always
        # enough; the bound is for a server that must not be kept busy by a case that nobody has thought of.
        for _ in range(partitions + 1):
            before = dict(loads.owner_of)
            _balance(loads)
            _follow_preferences(loads)
            if loads.owner_of == before:
                break
    return Assignment(
        {
            partition: _owner(current.owners.get(partition), server, candidates[server].address)
            for partition, server in loads.owner_of.items()
        }
    )


def owned_by(assignment: Assignment, server: ServerId) -> dict[PartitionId, Owner]:
    """Return the partitions that this server owns, each with its generation."""
    return {partition: owner for partition, owner in assignment.owners.items() if owner.server == server}


class LivingServers:
    """The living servers as one of them sees them, with the time since which it has seen each.

    A server that comes and goes must not move partitions each time: it has settled only when it was there at the first
    look, or has been seen for `settle_s` seconds without a break. And servers do not see each other die at the same
    moment, so each would undo what another did: partitions of living servers move only once everything has stayed as it
    is for `settle_s` seconds, or for a lease, if that is longer.
    """

    def __init__(self, own: ServerId, settle_s: float) -> None:
        self._own = own
        self._settle_s = settle_s
        self._quiet_s = max(settle_s, LEASE_S)
        self._since_s: dict[ServerId, float] | None = None
        self._assignment: Assignment | None = None
        self._unable_since_s: dict[ServerId, float] = {}
        self._changed_s = inf
        """When the assignment, or who is living, was last seen to have changed."""

    def candidates(
        self, members: Collection[Registration], assignment: Assignment, now_s: float
    ) -> dict[ServerId, Candidate]:
        """Return these members as candidates. Those of the first call, this server excepted, are settled at once."""
        living = {member.server: member for member in members}
        first_look = self._since_s is None
        known = self._since_s or {}
        if living.keys() != known.keys() or assignment is not self._assignment:
            self._changed_s = now_s
        self._assignment = assignment
        self._since_s = {
            server: known.get(server, -inf if first_look and server != self._own else now_s) for server in living
        }
        self._unable_since_s = {
            server: self._unable_since_s.get(server, now_s) for server, member in living.items() if member.unable
        }
        return {
            server: Candidate(
                member.address,
                now_s - self._since_s[server] >= self._settle_s,
                member.preferred,
                self._believed_unable(member, now_s),
                doubtful=bool(member.unable),
            )
            for server, member in living.items()
        }

    def _believed_unable(self, member: Registration, now_s: float) -> frozenset[PartitionId]:
        """Return what a member can't serve, once it has said so for so long that each knows whether others can."""
        since_s = self._unable_since_s.get(member.server, now_s)
        return member.unable if now_s - since_s >= _BELIEVED_S else frozenset()

    def quiet(self, now_s: float) -> bool:
        """Whether nothing has changed for long enough for partitions of living servers to move."""
        return now_s - self._changed_s >= self._quiet_s


class _Loads:
    """An assignment that is being made: who owns what, and how much."""

    def __init__(self, current: Assignment, candidates: Mapping[ServerId, Candidate], partitions: int) -> None:
        self._candidates = candidates
        owners = {owner.server for owner in current.owners.values()}
        self.takers = (
            sorted(server for server, each in candidates.items() if each.settled)
            or sorted(owners.intersection(candidates))
            or sorted(candidates)
        )
        """The servers that partitions may move to."""
        self.able = [each for each in self.takers if not (candidates[each].unable or candidates[each].doubtful)]
        self.takers = self.able or self.takers
        self.owner_of: dict[PartitionId, ServerId] = {}
        self.owned: dict[ServerId, set[PartitionId]] = {server: set() for server in candidates}
        for partition in range(partitions):
            owner = current.owners.get(partition)
            if owner is not None and owner.server in candidates:
                self.give(partition, owner.server)

    def give(self, partition: PartitionId, server: ServerId) -> None:
        if partition in self.owner_of:
            self.owned[self.owner_of[partition]].discard(partition)
        self.owner_of[partition] = server
        self.owned[server].add(partition)

    def prefers(self, server: ServerId, partition: PartitionId) -> bool:
        return partition in self._candidates[server].preferred

    def is_unable(self, server: ServerId, partition: PartitionId) -> bool:
        return partition in self._candidates[server].unable

    def preferring(self, partition: PartitionId) -> list[ServerId]:
        """Return the servers that partitions may move to and that prefer this one."""
        return [server for server in self.takers if self.prefers(server, partition)]

    def least_loaded(self, servers: Collection[ServerId]) -> ServerId:
        """Return the one that owns the fewest partitions, of several the one with the lowest id."""
        return min(servers, key=lambda server: (len(self.owned[server]), server))

    def most_loaded(self) -> ServerId:
        return min(self.owned, key=lambda server: (-len(self.owned[server]), server))


def _leave_the_unable(loads: _Loads) -> None:
    for partition, owner in sorted(loads.owner_of.items()):
        if loads.able and loads.is_unable(owner, partition):
            loads.give(partition, loads.least_loaded(loads.preferring(partition) or loads.able))


def _balance(loads: _Loads) -> None:
    """Move partitions until no server has two more than another that takes any."""
    while True:
        giver, taker = loads.most_loaded(), loads.least_loaded(loads.takers)
        if len(loads.owned[giver]) - len(loads.owned[taker]) <= 1:
            return
        # One that only the taker prefers, if there is one, and one that only the giver prefers at last. Of several the
        # last one: which does not matter, but has to be the same in every process.
        partition = max(
            loads.owned[giver], key=lambda each: (loads.prefers(taker, each) - loads.prefers(giver, each), each)
        )
        loads.give(partition, taker)


def _follow_preferences(loads: _Loads) -> None:
    """Move partitions to servers that prefer them, from owners that do not: alone where the balance allows it, else in
    exchange for one that the new owner does not prefer.
    """
    for partition in sorted(loads.owner_of):
        owner = loads.owner_of[partition]
        preferring = loads.preferring(partition)
        if not preferring or loads.prefers(owner, partition):
            continue
        server = loads.least_loaded(preferring)
        if len(loads.owned[server]) >= len(loads.owned[owner]):
            unloved = [each for each in loads.owned[server] if not loads.prefers(server, each)]
            if not unloved or owner not in loads.takers:
                continue
            loads.give(max(unloved, key=lambda each: (loads.prefers(owner, each), each)), owner)
        loads.give(partition, server)


def _owner(before: Owner | None, server: ServerId, address: str) -> Owner:
    """Return the owner of a partition, with the next generation unless it stays the same."""
    if before is not None and before.server == server:
        return before
    return Owner(server, address, 1 if before is None else before.generation + 1)
