"""Follow the assignment: keep it balanced over the living servers, and serve what it gives this one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from polonaise.coordination.values import Assignment, Registration, Versioned
from polonaise.errors import (
    Closed,
    CoordinatorDamaged,
    CoordinatorNewer,
    CoordinatorOutdated,
    PolonaiseError,
    WrongClusterKey,
)
from polonaise.server.assignment import Candidate, LivingServers, assign
from polonaise.server.ownedpartitions import OwnedPartitions
from polonaise.server.servedpartition import ServedPartition
from polonaise.server.sharedparts import SharedParts
from polonaise.server.unservable import UnservablePartitions
from polonaise.terms import ServerId

_log = logging.getLogger(__name__)
_ASSIGNMENT: Final = "the assignment can't be read"
_BALANCE: Final = "the assignment can't be changed"
_DESCRIPTION_S: Final = 60.0
"""The description is read again unasked after this: who grew a topic may have died before assigning it."""


class _JudgedBy(NamedTuple):
    """What an assignment is judged by besides itself, which may change while the assignment stays as it is."""

    candidates: dict[ServerId, Candidate]
    quiet: bool
    total: int
    stretch: int


class AssignmentFollowing:
    """Follows the assignment for a registered server, and writes a better one if it is the first to find it."""

    def __init__(self, shared: SharedParts, owned: OwnedPartitions, unservable: UnservablePartitions) -> None:
        self._server = shared.server
        self._shared = shared
        self._host = shared.host
        self._coordinator = shared.coordinator
        self._settings = shared.settings
        self._cluster = shared.cluster
        self._membership = shared.membership
        self._owned = owned
        self._unservable = unservable
        self._trouble = shared.trouble
        self._living = LivingServers(shared.server, shared.settings.settle_s)
        self._followed: Assignment | None = None
        self._before: _JudgedBy | None = None

    async def run(self) -> None:
        pause_s = self._settings.retry_s_min
        while True:
            try:
                current = await self._look()
                if current is None:
                    continue
                pause_s = self._settings.retry_s_min
                self._trouble.succeeded(_ASSIGNMENT)
                try:
                    async with asyncio.timeout(self._settings.coordinator_s_max / 5):
                        await self._coordinator.assignment_after(current.version)
                except TimeoutError:
                    pass
            except Closed:
                raise
            except (CoordinatorDamaged, WrongClusterKey) as error:
                self._cluster.note_trouble(str(error))
                # Running sessions may go on: replicas fence them if they are deposed. New ones need the coordinator.
                self._trouble.failed(_ASSIGNMENT, error, level=logging.ERROR, **self._fields)
                if isinstance(error, CoordinatorNewer):
                    await self._step_aside()
                pause_s = self._settings.retry_s_max
                await asyncio.sleep(pause_s * (0.5 + self._host.random.random()))
            except PolonaiseError as error:  # whatever the coordinator says: it is no reason to end
                self._cluster.note_trouble(str(error))
                self._trouble.failed(_ASSIGNMENT, error, **self._fields)
                await asyncio.sleep(pause_s * (0.5 + self._host.random.random()))
                pause_s = min(2 * pause_s, self._settings.retry_s_max)

    async def _look(self) -> Versioned[Assignment] | None:
        """Read the assignment, see to it that it is right, and follow it; return it, or None to look again at once."""
        stretch = await self._membership.held(self._settings.coordinator_s_max)
        current = await self._coordinator.assignment()
        members = await self._members()
        now_s = self._host.clock.monotonic_s()
        names_new = max(current.value.owners, default=-1) >= self._cluster.total
        if names_new or now_s - self._cluster.described_s >= _DESCRIPTION_S:
            await self._cluster.read_description()
        candidates = self._living.candidates(members, current.value, now_s)
        now = _JudgedBy(candidates, self._living.quiet(now_s), self._cluster.total, stretch)
        if current.value is self._followed and now == self._before and not self._trouble.is_failing(_BALANCE):
            self._cluster.learn(current)
            return current
        written = await self._assign(current, candidates, rebalance=now.quiet)
        if written is None:  # another server was faster: look at what it wrote
            return None
        self._membership.check()
        if stretch != self._membership.stretch:  # what was read before may not be believed any more
            return None
        self.follow(written.value)
        self._membership.owns_again()
        self._cluster.learn(written)
        self._followed, self._before = written.value, now
        return written

    def follow(self, assignment: Assignment) -> None:
        self._owned.follow(assignment, partial(ServedPartition, self._shared))

    @property
    def _fields(self) -> dict[str, int]:
        return {"server": self._server}

    async def _members(self) -> list[Registration]:
        """Read the living servers, and register again if this one is missing; leave them while its clock is off, if
        others are there.
        """
        members = await self._coordinator.members()
        others = [member for member in members if member.server != self._server]
        if others and self._shared.clock.unfit_s > self._settings.clock_patience_s:
            await self._step_aside()
            return others
        # This server was taken for dead while it was paused or cut off, or its clock is right again. Unless it
        # registers again, others take its partitions each time it takes them back.
        if len(others) == len(members):
            await self._membership.register_again()
            members.append(replace(self._membership.registration, unable=self._unservable.told))
        return members

    async def _step_aside(self) -> None:
        """Leave the members, so that able servers take over what this one owns.

        Its clock is off, or the coordinator is too new: as a member it would be given partitions that it does not learn
        of, or could not start. Until another server takes its partitions it goes on with them.
        """
        if self._membership.left:
            return
        try:
            await self._membership.leave()
        except PolonaiseError as error:
            _log.warning("server %d could not leave the members: %s", self._server, error, extra=self._fields)

    async def _assign(
        self, current: Versioned[Assignment], candidates: Mapping[ServerId, Candidate], *, rebalance: bool
    ) -> Versioned[Assignment] | None:
        """Write the assignment for these servers, unless it is right already, and return it; None if another server
        wrote first.
        """
        # Whoever grew a topic may have assigned partitions that are not known here yet: they stay assigned.
        total = max(self._cluster.total, max(current.value.owners, default=-1) + 1)
        assignment = assign(current.value, candidates, total, rebalance=rebalance)
        self._trouble.not_needed(_BALANCE)
        if assignment == current.value:
            return current
        try:
            return await self._coordinator.set_assignment(assignment, current.version)
        except CoordinatorOutdated as error:
            # What is there is followed: partitions whose latest state nobody has any more may be among the others.
            self._trouble.failed(_BALANCE, error, level=logging.ERROR, **self._fields)
            return current

    async def hand_over(self) -> None:
        """Leave the cluster, and give this server's partitions to the others, if the coordinator answers in time."""
        try:
            async with asyncio.timeout(self._settings.coordinator_s_max):
                # First: the others would give the partitions back to a server that is still a member.
                await self._membership.leave()
                written = None
                while written is None:  # another server may just have changed it: look at that
                    current = await self._coordinator.assignment()
                    members = [each for each in await self._coordinator.members() if each.server != self._server]
                    others = self._living.candidates(members, current.value, self._host.clock.monotonic_s())
                    written = await self._assign(current, others, rebalance=False)
        except (PolonaiseError, TimeoutError) as error:  # whatever the coordinator says: the server ends as cleanly
            why = str(error) or "the coordinator gave no answer"  # a timeout says nothing
            _log.warning("server %d handed over nothing: %s", self._server, why)
