"""The partitions that a client uses: each is mounted at its first use, and fed to the view."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from polonaise.client.appends import PartitionAppends
from polonaise.client.applying import Applier, MarkOnly
from polonaise.client.bodies import BodyFetcher
from polonaise.client.clientparts import ClientParts, Identity, Lifetime
from polonaise.client.discovery import Discovery
from polonaise.client.links import Links
from polonaise.client.mounting import Form, Mounting
from polonaise.client.proofrequests import ProofRequests
from polonaise.client.protocol.arguments import wrong
from polonaise.client.requests import Requests
from polonaise.client.routes import Routes
from polonaise.client.settings import ClientSettings
from polonaise.client.view import RunView, View, takes_own, tell_log, watch_view
from polonaise.client.waiting import check_loop, end, own_loop
from polonaise.coordination.topics import log_key_of, where_of
from polonaise.errors import BadOption, Closed, PolonaiseError, UnknownPartition, fresh
from polonaise.host import Host
from polonaise.terms import PartitionId

_log = logging.getLogger("polonaise.client")

Partitioner: TypeAlias = Callable[[tuple[Any, ...], int], PartitionId]
"""A function that chooses the partition of a call without `partition=`: `partitioner(given, partition_count)`.

`given` is a tuple: the arguments of the context; the data given to `append`, or the group given to `append_group`,
alone; empty for every other method, such as `read` or `flush`. What the function raises for an empty `given` is raised
as `BadOption`, which asks for `partition=`.

It must return the same partition every time for the same piece of state: a lock means nothing outside its partition;
and `partition_count` rises when a topic grows. Here it does not, and the first argument of each context is an account's
number::

    polonaise.connect(address, partitioner=lambda given, count: given[0] % count)
"""


class Choices(NamedTuple):
    """What an application has chosen; see `Log`."""

    settings: ClientSettings
    encode: Callable[[Any], bytes] | None
    """The serializer's; None without one."""
    topic: str
    partitioner: Partitioner | None
    view: View | RunView | None
    partitions: Collection[PartitionId] | None
    form: Form
    wants: Callable[[int], bool] | None


class UsedPartition(NamedTuple):
    appends: PartitionAppends
    mounting: Mounting


class UsedPartitions:
    """The partitions that one client uses, of those that its topic has."""

    def __init__(self, parts: ClientParts, choices: Choices, count: int) -> None:
        self.parts = parts
        self._life = parts.life
        self._choices = choices
        self.count = count
        """The number of partitions of the topic, or of the log's own."""
        self.used: dict[PartitionId, UsedPartition] = {}
        self._appliers: dict[PartitionId, Applier] = {}
        parts.routes.grown = self._grow
        parts.identity.given = self._identify

    async def start(self) -> None:
        """Begin to mount those that the application has chosen; by default all if there is a view."""
        parts, partitions = self.parts, self._choices.partitions
        self._life.tasks += await parts.routes.start()
        if parts.identity.without is not None:
            _log.warning("this client can read only, because it was given no id: %s", parts.identity.without)
            self._life.tasks.append(parts.host.spawn(parts.identity.keep_asking(), "client: ask for an id"))
        if partitions is None:
            partitions = range(self.count) if self._choices.view is not None else ()
        for partition in partitions:
            self.appends_of(partition)

    def _identify(self) -> None:
        identity = self.parts.identity
        for partition in self.used.values():
            partition.appends.identify(identity.client_id, identity.numbered_above)

    def _grow(self, count: int) -> None:
        """Take note that the topic has more partitions, which the view begins with unless it was given a selection."""
        before, self.count, life = self.count, count, self._life
        if life.closed or life.failure is not None or self._choices.view is None:
            return
        if self._choices.partitions is None:
            for partition in range(before, count):
                self.appends_of(partition)

    async def close(self, submitted: Collection[asyncio.Task[Any]]) -> None:
        """End what is waited for, the tasks, with those of submissions, and the connections."""
        # First of all: what waits is told why it ends, before the tasks that would have served it are cancelled.
        self._stop(Closed("this client was closed: connect a new one"))
        submissions = list(submitted)
        if submissions:
            await asyncio.wait(submissions, timeout=0)  # one turn of the loop: they end with that reason, uncancelled
        ending: list[asyncio.Task[Any]] = [*self._life.tasks, *self._life.lease_keepers, *submissions]
        for task in ending:
            end(task)
        self.parts.links.close()
        if ending:
            await asyncio.wait(ending)
        await self.parts.links.gone()

    def fail(self, error: PolonaiseError) -> None:
        self._stop(error)
        self.parts.routes.stop(error)
        self.parts.links.close()

    def _stop(self, error: PolonaiseError) -> None:
        for partition in self.used.values():
            partition.mounting.stop(error)

    def appends_of(self, partition: PartitionId | None, given: tuple[Any, ...] = ()) -> PartitionAppends:
        """Return the partition's appends; begin to mount the partition at its first use.

        For None the partitioner chooses, by `given`. Raises `BadOption`, what the partitioner raises, and at the first
        use `UnknownPartition`, `Closed`, as `check_loop`, and the client's failure: afterwards the methods of stopped
        appends raise by themselves.
        """
        if partition is None:
            partition = self._choose(given)
        if type(partition) is int:  # True and 1.0 would be found where 1 is
            try:
                return self.used[partition].appends
            except KeyError:
                pass  # not used yet, or no partition of this log: checked below, off the hot path
        partition = self.usable(partition)
        if partition in self.used:
            return self.used[partition].appends
        parts, view, wants = self.parts, self._choices.view, self._choices.wants
        spawn, tasks, identity = parts.host.spawn, self._life.tasks, parts.identity
        id = parts.routes.id_of(partition)
        appends = PartitionAppends(partition, identity.client_id, parts.settings, id, identity.numbered_above)
        appends.proofs = ProofRequests(parts.host, partition, partial(parts.requests.prove, partition))
        taker: Applier | MarkOnly
        if view is None:
            taker = MarkOnly(appends, parts.requests)
        else:
            bodies = BodyFetcher(parts, partition, wants, takes_own(view))
            taker = Applier(parts, view, partition, appends.mark, bodies, self._choices.form)
            tasks.append(spawn(taker.apply_all(), f"client: apply partition {partition}"))
            if not self._appliers and (stepped_back := getattr(view, "stepped_back", None)) is not None:
                tasks.append(spawn(watch_view(stepped_back, self._appliers), "client: watch the view"))
            self._appliers[partition] = taker
        mounting = taker.mounting = Mounting(parts, appends, taker)
        tasks.append(spawn(mounting.keep_mounted(), f"client: mount partition {partition}"))
        self.used[partition] = UsedPartition(appends, mounting)
        return appends

    def _choose(self, given: tuple[Any, ...]) -> PartitionId:
        self._life.check_open()
        if self._choices.partitioner is not None:
            try:
                return self._choices.partitioner(given, self.count)
            except Exception as error:
                if given:
                    raise
                raise BadOption(
                    f"the partitioner can't choose a partition without arguments ({error!r}): give partition="
                ) from error
        if self.count == 1:
            return 0
        raise BadOption(f"the log has {self.count} partitions: pass partition=, or connect with a partitioner")

    def known(self, partition: PartitionId) -> PartitionId:
        """Return the number of a partition that there is. Raises `UnknownPartition`, `BadOption`, `Closed`, and as
        `check_loop`."""
        self._life.check_open()
        check_loop(self.parts.loop)
        if not isinstance(partition, int) or isinstance(partition, bool):
            raise wrong("partition", partition, f"a partition is an integer, 0 to {self.count - 1}")
        if not 0 <= partition < self.count:
            where = where_of(self._choices.topic)
            raise UnknownPartition(f"partition {partition}; {where} has partitions 0 to {self.count - 1}")
        return int(partition)

    def usable(self, partition: PartitionId | None) -> PartitionId:
        """Return the number of a partition to which requests can be made; for None the partitioner chooses. Raises as
        `known`, and the client's failure."""
        if partition is None:
            partition = self._choose(())
        partition = self.known(partition)
        if self._life.failure is not None:
            raise fresh(self._life.failure)
        return partition


async def find_partitions(
    host: Host, discovery: Discovery, choices: Choices, life: Lifetime, whereabouts: Callable[[], str]
) -> UsedPartitions:
    """Find the cluster and get an id; connect to nothing yet. Raises what `Log.start` raises."""
    loop, settings, encode = own_loop(), choices.settings, choices.encode
    description = await discovery.describe()
    topic = await discovery.topic(choices.topic) if choices.topic else None
    key, log_key = description.key, log_key_of(description.key, choices.topic)
    if choices.view is not None:
        # Before the first mark is read: a view kept from another log refuses to tell it.
        tell_log(choices.view, log_key)
    identity = Identity(host, discovery, settings)
    await identity.ask()
    routes = Routes(host, discovery, settings, whereabouts, topic)
    links = Links(host, lambda: identity.client_id, key, settings)
    requests = Requests(host, routes, links, settings)
    parts = ClientParts(host, settings, encode, loop, life, key, log_key, identity, routes, links, requests)
    return UsedPartitions(parts, choices, description.partitions if topic is None else len(topic.ids))
