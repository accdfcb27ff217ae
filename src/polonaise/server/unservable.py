"""The partitions that a server can't serve: it looks for them once a second, and tells the other servers.

Which of them it gives up, `protocol.givingup` decides. The others are told of each for a while longer, so that none
comes back too early; people are not, once it is well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from polonaise.coordination import Coordinator
from polonaise.coordination.values import Assignment, PartitionValue
from polonaise.errors import PolonaiseError
from polonaise.host import Host, certificate_expired
from polonaise.server.coordinatortrouble import answered_within
from polonaise.server.ownedpartitions import OwnedPartitions
from polonaise.server.protocol.givingup import GivingUp, Struggle
from polonaise.server.sharedparts import SharedParts
from polonaise.terms import PartitionId, ServerId, counted

if TYPE_CHECKING:
    from polonaise.server.servedpartition import ServedPartition

_log = logging.getLogger(__name__)
_GIVING_UP: Final = "the partitions that this server gives up can't be told"
_LOOK_S: Final = 1.0
_NAMED_MAX: Final = 8


def is_served_by_another(partition: PartitionId, value: PartitionValue, assignment: Assignment, own: ServerId) -> bool:
    """Whether another server than `own` has the partition, by the assignment, and its last session has begun."""
    owner = assignment.owner_of(partition)
    if owner is None or owner.server == own or owner.generation != value.generation:
        return False
    return any(each.session == value.session for each in value.engagements.values())


class GivenUpPartitions:
    """Keeps why each partition was given up, and looks at the coordinator who serves it since."""

    def __init__(
        self, host: Host, coordinator: Coordinator, answer_s: float, served: Mapping[PartitionId, ServedPartition]
    ) -> None:
        """`served` are the partitions owned at present; the coordinator has `answer_s` seconds."""
        self._host = host
        self._coordinator = coordinator
        self._answer_s = answer_s
        self._served = served
        self._why: dict[PartitionId, str] = {}
        self._elsewhere: frozenset[PartitionId] = frozenset()
        self._looking: asyncio.Task[None] | None = None

    def note(self, given_up: frozenset[PartitionId], unfit: str, own: ServerId) -> None:
        """Note, once a second, what is given up. `unfit`: why the server can serve none at all, if so."""
        why, now_s = self._why, self._host.clock.monotonic_s()
        self._why = {partition: why.get(partition, unfit) for partition in given_up}
        for partition in given_up & self._served.keys():
            owner = self._served[partition].owner
            if owner.stopped is None and (why_not := owner.readiness.trouble(now_s) or owner.readiness.waits_for):
                self._why[partition] = why_not
        others = given_up - self._served.keys()
        self._elsewhere &= others
        if others and (self._looking is None or self._looking.done()):
            self._looking = self._host.spawn(self._look(others, own), "who serves what was given up")

    async def _look(self, partitions: frozenset[PartitionId], own: ServerId) -> None:
        """Look which of these another server serves; without an answer what was seen before counts."""
        try:
            async with answered_within(self._answer_s, self._coordinator):
                assignment = (await self._coordinator.assignment()).value
            elsewhere = set()
            for partition in sorted(partitions):
                async with answered_within(self._answer_s, self._coordinator):
                    value = (await self._coordinator.partition(partition)).value
                if is_served_by_another(partition, value, assignment, own):
                    elsewhere.add(partition)
            self._elsewhere = frozenset(elsewhere)
        except PolonaiseError:
            pass

    def told(self, partitions: Iterable[PartitionId]) -> dict[PartitionId, str]:
        """Return why each of these partitions was given up, without those that another server serves."""
        return {each: self._why.get(each, "") for each in partitions if each not in self._elsewhere}


class UnservablePartitions:
    """Looks which partitions this server can't serve, and has the others told by its registration."""

    def __init__(self, shared: SharedParts, owned: OwnedPartitions, store_trouble: Callable[[], str]) -> None:
        self._server = shared.server
        self._host = shared.host
        self._coordinator = shared.coordinator
        self._settings = shared.settings
        self._changes = shared.changes
        self._links = shared.links
        self._cluster = shared.cluster
        self._membership = shared.membership
        self._owned = owned
        self._trouble = shared.trouble
        self._store_trouble = store_trouble
        self._giving_up = GivingUp(self._settings.give_up_s)
        self._why = GivenUpPartitions(self._host, self._coordinator, self._settings.coordinator_s_max, owned.served)
        self.given_up: frozenset[PartitionId] = frozenset()
        """The partitions that the others were told are given up."""
        self.told: frozenset[PartitionId] = frozenset()
        """The partitions that this server tells the others that it is unable to serve: those that it has given up, and
        those that it could not begin to serve."""
        self._looked_s = 0.0
        self._expired = ""
        """Why no client connects any more, if the certificate had expired at the last look."""
        self._struggles: dict[PartitionId, Struggle] = {}
        self._struggles_at = 0
        self._telling: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Look once a second which partitions this server can't serve; tell the others what has changed."""
        now_s = self._host.clock.monotonic_s()
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        self._expired = certificate_expired(self._host.network, self._host.clock.wall_us())
        if self._struggles_at != self._changes.count:
            self._struggles_at = self._changes.count
            fare = ((partition, served.struggle) for partition, served in self._owned.served.items())
            self._struggles = {partition: struggle for partition, struggle in fare if struggle is not None}
        not_owning = self._membership.not_owning
        given_up = self._giving_up.look(
            now_s,
            self._owned.served,
            self._struggles,
            Struggle(bool(not_owning or self._expired), self._membership.stretch),
            self._owned.assigned,
            connected=self._most_storage_connected,
        )
        self._why.note(given_up, not_owning or self._expired, self._server)
        unable = given_up | self._not_to_be_started
        if (given_up, unable) == (self.given_up, self.told):
            self._trouble.not_needed(_GIVING_UP)  # there is nothing to be told any more
        elif self._telling is None or self._telling.done():
            self._telling = self._host.spawn(self._tell(given_up, unable), "partitions that are given up")

    def close(self) -> None:
        if self._telling is not None:
            self._telling.cancel()

    @property
    def _most_storage_connected(self) -> bool:
        """Whether most storage nodes are connected, too: else many partitions can't start a session."""
        links = self._links
        return links.are_connected_for(self._cluster.description.replication_factor) and (
            2 * links.connected > len(links)
        )

    @property
    def _not_to_be_started(self) -> frozenset[PartitionId]:
        """The partitions that could not begin now: the certificate has expired, or the store is away.

        Without those that it owns, and gives up after a grace if its certificate has expired; and those of which it has
        had a session: the next one needs no store.
        """
        able = set(range(self._cluster.total))
        if self._expired:
            able &= self._owned.assigned
        if self._store_trouble():
            able &= {each for each, served in self._owned.served.items() if served.owner.counts["sessions"]}
        return frozenset(range(self._cluster.total)).difference(able)

    async def _tell(self, given_up: frozenset[PartitionId], unable: frozenset[PartitionId]) -> None:
        """Tell the others which partitions this server can't serve; after a failure, the next look does."""
        fields = {"server": self._server}
        try:
            async with answered_within(self._settings.coordinator_s_max, self._coordinator):
                await self._membership.tell(replace(self._membership.registration, unable=unable))
        except PolonaiseError as error:
            self._trouble.failed(_GIVING_UP, error, **fields)
            return
        self._trouble.succeeded(_GIVING_UP)
        self.told = unable
        if given_up == self.given_up:
            return
        self.given_up = given_up
        listed = ", ".join(map(str, sorted(given_up)[:_NAMED_MAX])) + (" …" if len(given_up) > _NAMED_MAX else "")
        news = (
            f"gives up {counted(len(given_up), 'partition')} that it can't serve: {listed}"
            if given_up
            else "gives up nothing"
        )
        _log.log(logging.WARNING if given_up else logging.INFO, "server %d %s", self._server, news, extra=fields)

    @property
    def not_served_again(self) -> list[PartitionId]:
        """The partitions that it has given up, but for those that it serves again."""
        given_up = ((partition, self._owned.served.get(partition)) for partition in sorted(self.given_up))
        return [partition for partition, served in given_up if served is None or served.owner.session is None]

    @property
    def why(self) -> dict[PartitionId, str]:
        """Why each of `not_served_again` was given up, without those that another server serves."""
        return self._why.told(self.not_served_again)
