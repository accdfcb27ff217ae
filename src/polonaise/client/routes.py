"""The assignment and the topic as a client knows them: the id and the owner of each partition, kept up to date."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from polonaise.client.discovery import Discovery
from polonaise.client.protocol.backoff import Backoff
from polonaise.client.settings import ClientSettings
from polonaise.coordination.topics import TopicPartitions
from polonaise.coordination.values import Assignment, Owner, Versioned
from polonaise.errors import CoordinatorDamaged, CoordinatorUnavailable, NotOwner, PolonaiseError, fresh
from polonaise.host import Host, broken_off
from polonaise.terms import PartitionId

_log = logging.getLogger("polonaise.client")
_ASSIGNMENT: Final = "the assignment"
_TOLD_AGAIN_S: Final = 30.0
"""The seconds after which the log repeats why the assignment can't be read."""


class Routes:
    """Finds the owner of a partition, by an assignment that is watched, and read anew when a server refuses.

    What the `Discovery` tells may be out of date: the assignment never goes back to an earlier version.

    Only here are a topic's partition numbers turned into ids in the cluster. That a topic grows is noticed by ids in
    the assignment that are new.
    """

    def __init__(
        self,
        host: Host,
        discovery: Discovery,
        settings: ClientSettings,
        whereabouts: Callable[[], str],
        topic: TopicPartitions | None = None,
    ) -> None:
        """Begin with these partitions of a topic; None for the log's own, whose numbers are their ids. `whereabouts`
        returns what is known of the process that serves the log, for messages."""
        self._topic = topic
        self.grown: Callable[[int], None] = lambda count: None
        """Called with the number of the topic's partitions when it has risen; set by `UsedPartitions`."""
        self._host = host
        self._whereabouts = whereabouts
        self._discovery = discovery
        self._settings = settings
        self._assignment: Versioned[Assignment] = Versioned(-1, Assignment())
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when a newer assignment is read."""
        self._trouble = ""
        """Why the last attempt to read the assignment failed; empty if it did not."""
        self._told_s: dict[str, dict[str, float]] = {}
        """When failures to read something were logged last: by what can't be read, until it can be, and by the error's
        code, or its whole text if it has none."""
        self._stopped: PolonaiseError | None = None
        """Why the client has failed; None while it has not."""
        self.listeners: dict[Callable[[Assignment], None], None] = {}
        """Called with every newer assignment. A dict for its order: listeners come and go."""

    async def start(self) -> list[asyncio.Task[None]]:
        self._learn(await self._discovery.assignment())
        tasks = [self._host.spawn(self._watch(), "client: watch the assignment")]
        if self._topic is not None:
            tasks.append(self._host.spawn(self._follow_topic(self._topic), "client: watch the topic"))
        return tasks

    async def server_addresses(self) -> list[str]:
        """Return the addresses of the servers that are known. Raises `CoordinatorUnavailable`."""
        seconds = self._settings.coordinator_s_max
        try:
            async with asyncio.timeout(seconds):
                return sorted(await self._discovery.server_addresses())
        except TimeoutError:
            raise CoordinatorUnavailable(f"the coordinator did not tell of servers within {seconds:g} s") from None

    def stop(self, error: PolonaiseError) -> None:
        self._stopped = error
        changed, self._changed = self._changed, asyncio.get_running_loop().create_future()
        changed.set_result(None)

    def id_of(self, partition: PartitionId) -> PartitionId:
        return partition if self._topic is None else self._topic.id_of(partition)

    def explained(self, error: PolonaiseError, partition: PartitionId) -> PolonaiseError:
        """Return a server's error, with the number by which the application knows a topic's partition."""
        if self._topic is None:
            return error
        same, text = fresh(error), f"partition {partition} of topic {self._topic.name}"
        if text not in error.text:
            same.args = (f"{text}, which is partition {self.id_of(partition)} of the cluster: {error.text}",)
        return same

    def known(self, partition: PartitionId) -> Owner | None:
        """Return the owner of a partition, as far as this client knows; None for none."""
        return self.owner_in(self._assignment.value, partition)

    def owner_in(self, assignment: Assignment, partition: PartitionId) -> Owner | None:
        return assignment.owner_of(self.id_of(partition))

    async def owner(self, partition: PartitionId) -> Owner:
        """Return the owner of a partition; wait, without a deadline, while it has none."""
        while True:
            if self._stopped is not None:
                raise fresh(self._stopped)
            owner = self.known(partition)
            if owner is not None:
                return owner
            await asyncio.shield(self._changed)  # shared: one wait that is given up must not cancel the others

    def route(self, partition: PartitionId, owner: Owner) -> asyncio.Future[None]:
        """Return a future, shared and not to be cancelled, that is done when the assignment changes. Raises `NotOwner`
        if a later owner than this one is known already."""
        if self._stopped is not None:
            raise fresh(self._stopped)
        known = self.known(partition)
        if known is not None and known.generation > owner.generation:
            raise NotOwner(f"partition {partition} has moved from {owner.address} to {known.address}")
        return self._changed

    def waits_for(self, partition: PartitionId) -> str:
        """Return what is waited for when the partition does not answer, for messages."""
        owner = self.known(partition)
        if self._trouble:
            return f"an assignment that can be read: {self._trouble}"
        if owner is None:
            return "a server that owns it: none does, so start one (`polonaise server run`) or see why none runs"
        return f"its owner, {owner.address}{self.served_by()}"

    def served_by(self) -> str:
        """Return what is known of the process that serves the log, as the end of a sentence."""
        where = self._whereabouts()
        return f"; {where}" if where else ""

    async def reread(self) -> None:
        """Read the assignment again, because a server refused; keep the old one if that fails."""
        try:
            async with asyncio.timeout(self._settings.request_s_max):
                self._learn(await self._discovery.assignment())
        except (PolonaiseError, TimeoutError) as error:
            self._note_trouble(str(error) or "there was no answer")

    def _note_trouble(self, trouble: str) -> None:
        self._tell(_ASSIGNMENT, trouble)
        self._trouble = trouble

    def _tell(self, what: str, trouble: str) -> None:
        """Log that something can't be read: each kind of error now and then, as its text is hardly ever the same."""
        now_s, told_s = self._host.clock.monotonic_s(), self._told_s.setdefault(what, {})
        kind = trouble.partition("]")[0]
        if now_s - told_s.get(kind, float("-inf")) >= _TOLD_AGAIN_S:
            told_s[kind] = now_s
            _log.warning("%s can't be read, and is read again: %s", what, trouble)

    def _learn(self, read: Versioned[Assignment]) -> None:
        """Keep an assignment if it is newer; then end the waits for a change, and call listeners."""
        self._trouble = ""
        self._told_s.pop(_ASSIGNMENT, None)
        if read.version <= self._assignment.version:
            return
        self._assignment = read
        changed, self._changed = self._changed, asyncio.get_running_loop().create_future()
        changed.set_result(None)
        for listener in list(self.listeners):
            listener(read.value)

    async def _watch(self) -> None:
        backoff = Backoff(self._settings.retry_s_min, self._settings.retry_s_max)
        while True:
            try:
                # After a failure the present one is read: that it can be read again is to be known at once.
                known = -1 if self._trouble else self._assignment.version
                async with asyncio.timeout(self._settings.coordinator_s_max):
                    self._learn(await self._discovery.assignment_after(known))
                backoff.reset()
            except TimeoutError as error:
                # Asked again, in case the wait was lost. Mostly nothing has changed; but if it was an answer that was
                # waited for, the coordinator hangs, and must not pass for one that has nothing new to tell.
                if broken_off(error):
                    await self.reread()
            except PolonaiseError as error:
                self._note_trouble(str(error))
                await asyncio.sleep(backoff.pause_s(self._host.random.random()))

    async def _follow_topic(self, topic: TopicPartitions) -> None:
        """Read the topic's partitions again whenever the assignment names ids that the description did not have."""
        backoff = Backoff(self._settings.retry_s_min, self._settings.retry_s_max)
        what = f"the description of topic {topic.name}"
        while True:
            total = max(self._assignment.value.owners, default=-1) + 1
            if total <= topic.total:
                await asyncio.shield(self._changed)
                continue
            try:
                async with asyncio.timeout(self._settings.coordinator_s_max):
                    read = await self._discovery.topic(topic.name, topic, total)
                topic = self._grow(topic, read)
                self._told_s.pop(what, None)
                backoff.reset()
            except (PolonaiseError, TimeoutError) as error:
                self._tell(what, str(error) or "there was no answer")
                await asyncio.sleep(backoff.pause_s(self._host.random.random()))

    def _grow(self, before: TopicPartitions, read: TopicPartitions) -> TopicPartitions:
        """Keep and return the partitions that were read. Raises `CoordinatorDamaged` unless they continue `before`."""
        if not read.goes_on_from(before):
            raise CoordinatorDamaged(
                f"topic {before.name} has other partitions than before: {len(read.ids)} in description {read.version}, "
                f"and {len(before.ids)} in description {before.version}; was the description restored from a copy?"
            )
        self._topic = read
        if len(read.ids) > len(before.ids):
            _log.info("topic %s has %d partitions now", read.name, len(read.ids))
            self.grown(len(read.ids))
        return read
