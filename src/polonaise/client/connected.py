"""The life of a client: start, mount partitions as they are used, and close with everything it holds."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple, Self, TypeAlias

from polonaise.client.appends import PartitionAppends
from polonaise.client.applying import Applier, MarkOnly
from polonaise.client.bodies import BodyFetcher
from polonaise.client.discovery import Discovery
from polonaise.client.links import Links
from polonaise.client.mounting import Form, Mounting
from polonaise.client.proofrequests import ProofRequests
from polonaise.client.protocol.arguments import checked_seconds, wrong
from polonaise.client.protocol.backoff import Backoff
from polonaise.client.receipt import Receipt
from polonaise.client.requests import Requests
from polonaise.client.routes import Routes
from polonaise.client.settings import ClientSettings
from polonaise.client.view import RunView, View, close_view, takes_own, tell_log, watch_view
from polonaise.client.waiting import check_loop, end, is_inherited, own_loop
from polonaise.coordination.topics import log_key_of, where_of
from polonaise.errors import (
    AccessDenied,
    BadOption,
    Closed,
    CoordinatorUnavailable,
    PolonaiseError,
    ProtocolError,
    UnknownPartition,
    fresh,
)
from polonaise.host import Host
from polonaise.redaction import redacted_text
from polonaise.terms import ClientId, PartitionId
from polonaise.topics import ClusterTopics
from polonaise.wire.messages import Health, HealthIs

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


class _Partition(NamedTuple):
    appends: PartitionAppends
    mounting: Mounting


class Connected:
    """The base of `Log`: connects to a cluster, mounts partitions as they are used, and closes."""

    def __init__(
        self,
        host: Host,
        discovery: Discovery,
        *,
        view: View | RunView | None,
        settings: ClientSettings,
        partitioner: Partitioner | None,
        partitions: Collection[PartitionId] | None,
        form: Form,
        wants: Callable[[int], bool] | None,
        topic: str,
    ) -> None:
        self._host = host
        self._discovery = discovery
        self._view = view
        self._settings = settings
        self._partitioner = partitioner
        self._wanted_partitions = partitions
        self._form = form
        self._wants = wants
        self.topic = topic
        """The name of the topic whose partitions these are; empty for the log's own partitions, in no topic."""
        self._partitions: dict[PartitionId, _Partition] = {}
        self._appliers: dict[PartitionId, Applier] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._submitted: dict[int, asyncio.Task[Receipt]] = {}
        """The tasks of unfinished submissions, by number."""
        self._lease_keepers: set[asyncio.Task[None]] = set()
        """The tasks that renew leases."""
        self._routes: Routes
        self._links: Links
        self._requests: Requests
        self._loop: asyncio.AbstractEventLoop
        self._closed = False
        self.whereabouts: Callable[[], str] = lambda: ""
        """Returns which process serves the log, for messages, or empty. Set by the code that opens the log."""
        self._fault: PolonaiseError | None = None
        self.client_id: ClientId = 0
        """This client's id, unique in the cluster; 0 while its coordinator has given it none. Only what appends, leases
        and views need it."""
        self._numbered_above = 0
        """What this client's appends and leases are numbered above, for others: the time at which it got its id. A
        coordinator that was put back to an older state gives an id out again. Without this, an append or a lease of the
        other client with it would be taken for one of this client."""
        self._begun = False
        """Whether there are connections to close."""
        self._without_id: PolonaiseError | None = None
        """Why this client has no id although it has begun; None if it has one."""
        self.cluster_key: bytes = b""
        """The cluster's key, 16 bytes that no other cluster has; empty before `start`."""
        self.partition_count: int = 0
        """The number of partitions of the topic, which may grow, or of the log's own; 0 before `start`."""

    # ------------------------------------------------------------------ life

    @property
    def log_key(self) -> bytes:
        """A key, 16 bytes, that no other log or topic has: the cluster's key, or for a topic one made of that and the
        name. What is kept from the log elsewhere, such as a view's marks, carries it."""
        return log_key_of(self.cluster_key, self.topic)

    @property
    def clock_ahead_s(self) -> float | None:
        """How far the clock of this machine is ahead of its server's, in seconds, below 0 if it is behind. None until
        it was measured: a second or two after a server was first asked, and always with servers before version 0.2."""
        return self._links.clock_ahead_s() if self._begun else None

    async def start(self) -> None:
        """Read the cluster's description, and begin to mount the view's partitions, or those in `partitions`.

        `async with` calls it. Returns before the partitions are mounted (`ready` waits for that). If the coordinator
        can give no id, as on a full disk, this client reads, and what it appends waits until it has one.

        Raises what finding the cluster raises, such as `NotInitialized`, `CoordinatorUnavailable`,
        `servers_unavailable` and `UnknownTopic`; `UnknownPartition` for `partitions` that there are not, `Closed` after
        `close`, and `BadOption` if the client was started before.
        """
        if self._closed:
            raise Closed("this client was closed: connect a new one")
        if self._begun:
            raise BadOption("this client was started before: `async with` starts it, and no further call is needed")
        self._loop = own_loop()
        description = await self._discovery.describe()
        self.cluster_key = description.key
        topic = await self._discovery.topic(self.topic) if self.topic else None
        self.partition_count = description.partitions if topic is None else len(topic.ids)
        if self._view is not None:
            # Before the first mark is read: a view kept from another log refuses to tell it.
            tell_log(self._view, self.log_key)
        self._identified: asyncio.Future[None] = self._loop.create_future()
        try:
            self._identify(await self._discovery.unique_id())
        except (AccessDenied, CoordinatorUnavailable) as error:
            # To be given one is a write at the coordinator, whose disk may be full. Whoever only reads needs none.
            self._without_id = error
        self._routes = Routes(self._host, self._discovery, self._settings, lambda: self.whereabouts(), topic)
        self._routes.grown = self._grow
        self._links = Links(self._host, lambda: self.client_id, description.key, self._settings)
        self._begun = True
        self._requests = Requests(self._host, self._routes, self._links, self._settings)
        self._tasks += await self._routes.start()
        if self._without_id is not None:
            _log.warning("this client can read only, because it was given no id: %s", self._without_id)
            self._tasks.append(self._host.spawn(self._keep_asking_for_an_id(), "client: ask for an id"))
        partitions = self._wanted_partitions
        if partitions is None:
            partitions = range(self.partition_count) if self._view is not None else ()
        for partition in partitions:
            self._appends_of(partition)

    def _identify(self, client_id: ClientId) -> None:
        self.client_id, self._without_id = client_id, None
        self._numbered_above = self._host.clock.wall_us()
        for partition in self._partitions.values():
            partition.appends.identify(client_id, self._numbered_above)
        self._identified.set_result(None)

    async def _keep_asking_for_an_id(self) -> None:
        backoff = Backoff(self._settings.retry_s_min, self._settings.retry_s_max)
        while self._without_id is not None:
            await asyncio.sleep(backoff.pause_s(self._host.random.random()))
            try:
                self._identify(await self._discovery.unique_id())
            except Closed:
                return
            except PolonaiseError as error:
                self._without_id = error

    def _own_id(self) -> ClientId:
        if self._without_id is not None:
            raise fresh(self._without_id)
        return self.client_id

    def _grow(self, count: int) -> None:
        """Take note that the topic has more partitions, which the view begins with unless it was given a selection."""
        before, self.partition_count = self.partition_count, count
        if self._closed or self._fault is not None or self._view is None or self._wanted_partitions is not None:
            return
        for partition in range(before, count):
            self._appends_of(partition)

    async def close(self) -> None:
        """Close the client, its tasks, submissions, connections and view. Every pending append is settled: as
        `AppendUnknown` if it was sent, as `Closed` if it was not. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._begun and is_inherited(self._loop):
            return  # in a forked child, which ends: all that there is to be closed is its parent's
        error = Closed("this client was closed: connect a new one")
        # First of all: what waits is told why it ends, before the tasks that would have served it are cancelled.
        for partition in self._partitions.values():
            partition.mounting.stop(error)
        submitted = list(self._submitted.values())
        if submitted:
            await asyncio.wait(submitted, timeout=0)  # one turn of the loop: they end with that reason, uncancelled
        ending: list[asyncio.Task[Any]] = [*self._tasks, *self._lease_keepers, *submitted]
        for task in ending:
            end(task)
        if self._begun:
            self._links.close()
        if ending:
            await asyncio.wait(ending)
        if self._begun:
            await self._links.gone()
        # Last: until its tasks have ended, one of them may be within the view.
        if self._view is not None:
            await close_view(self._view)

    def fail(self, error: BaseException) -> None:
        """Stop every partition, those to come included: this client can't be trusted any more. Called for a mistake of
        this library's own, and when this process can host its embedded log no more."""
        if self._closed or self._fault is not None:
            return
        fault = (
            error
            if isinstance(error, PolonaiseError)
            else PolonaiseError(f"the client failed: {redacted_text(error, repr)}")
        )
        self._fault = fault
        for partition in self._partitions.values():
            partition.mounting.stop(fault)
        if self._begun:  # else it has not begun with anything
            self._routes.stop(fault)
            self._links.close()

    @property
    def failure(self) -> PolonaiseError | None:
        """Why this client failed, and stopped all its work for good; None if it has not. A new one may work."""
        return self._fault

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ------------------------------------------------------------------ partitions

    def _appends_of(self, partition: PartitionId | None, given: tuple[Any, ...] = ()) -> PartitionAppends:
        """Return the partition's appends; begin to mount the partition at its first use.

        For None the partitioner chooses, by `given`. Raises `BadOption`, what the partitioner raises, and at the first
        use `UnknownPartition`, `Closed`, as `check_loop`, and the client's `failure`: afterwards the methods of stopped
        appends raise by themselves.
        """
        if partition is None:
            partition = self._choose(given)
        if type(partition) is int:  # True and 1.0 would be found where 1 is
            try:
                return self._partitions[partition].appends
            except KeyError:
                pass  # not used yet, or no partition of this log: checked below, off the hot path
        partition = self._usable(partition)
        if partition in self._partitions:
            return self._partitions[partition].appends
        id = self._routes.id_of(partition)
        appends = PartitionAppends(partition, self.client_id, self._settings, id, self._numbered_above)
        appends.proofs = ProofRequests(self._host, partition, partial(self._requests.prove, partition))
        taker: Applier | MarkOnly
        if self._view is None:
            taker = MarkOnly(appends, self._requests)
        else:
            bodies = BodyFetcher(
                self._host, partition, self._requests, self._wants, takes_own(self._view), self._settings
            )
            taker = Applier(
                self._host, self._view, partition, appends.mark, bodies, self._form, self._settings, self._requests
            )
            self._tasks.append(self._host.spawn(taker.apply_all(), f"client: apply partition {partition}"))
            if not self._appliers and (stepped_back := getattr(self._view, "stepped_back", None)) is not None:
                watching = watch_view(stepped_back, self._appliers)
                self._tasks.append(self._host.spawn(watching, "client: watch the view"))
            self._appliers[partition] = taker
        mounting = Mounting(
            self._host, appends, taker, self._routes, self._links, self._settings, self._identified, self._own_id
        )
        taker.mounting = mounting
        self._tasks.append(self._host.spawn(mounting.keep_mounted(), f"client: mount partition {partition}"))
        self._partitions[partition] = _Partition(appends, mounting)
        return appends

    def _choose(self, given: tuple[Any, ...]) -> PartitionId:
        self._check_open()
        if self._partitioner is not None:
            try:
                return self._partitioner(given, self.partition_count)
            except Exception as error:
                if given:
                    raise
                raise BadOption(
                    f"the partitioner can't choose a partition without arguments ({error!r}): give partition="
                ) from error
        if self.partition_count == 1:
            return 0
        raise BadOption(
            f"the log has {self.partition_count} partitions: pass partition=, or connect with a partitioner"
        )

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this client was closed: connect a new one")
        if not self._begun:
            raise Closed("this client was not started: use `async with`, or `await log.start()`")

    async def cluster_topics(self) -> ClusterTopics:
        """Return the partitions of the whole cluster, its own ones and its topics'. Raises `CoordinatorUnavailable`,
        `servers_unavailable`, `Closed`."""
        self._check_open()
        return await self._discovery.topics()

    async def servers_health(self) -> dict[str, dict[str, Any] | PolonaiseError]:
        """Return the health report of each server, or why there is none, by address.

        Of a cluster that is found by servers, those in its address and the owners.

        Raises `CoordinatorUnavailable`, `servers_unavailable`, `Closed`.
        """
        self._check_open()
        try:
            async with asyncio.timeout(self._settings.coordinator_s_max):
                addresses = sorted(await self._discovery.server_addresses())
        except TimeoutError:
            raise CoordinatorUnavailable(
                f"the coordinator did not tell of servers within {self._settings.coordinator_s_max:g} s"
            ) from None
        unmoved: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def ask(address: str) -> dict[str, Any] | PolonaiseError:
            try:
                connection = await self._links.bulk(address, lambda: unmoved)
                answer = await connection.request(Health(), deadline_s=self._settings.request_s_max)
                told = json.loads(answer.document) if isinstance(answer, HealthIs) else None
                return told if isinstance(told, dict) else ProtocolError(f"{address} did not answer with its health")
            except PolonaiseError as error:
                return error

        return dict(zip(addresses, await asyncio.gather(*map(ask, addresses)), strict=True))

    def id_of(self, partition: PartitionId) -> PartitionId:
        """Return the id of a partition in the cluster, by which its fragments are named. Raises `UnknownPartition`,
        `BadOption`, `Closed`, and as `check_loop`."""
        return self._routes.id_of(self._checked(partition))

    def _checked(self, partition: PartitionId) -> PartitionId:
        self._check_open()
        check_loop(self._loop)
        if not isinstance(partition, int) or isinstance(partition, bool):
            raise wrong("partition", partition, f"a partition is an integer, 0 to {self.partition_count - 1}")
        if not 0 <= partition < self.partition_count:
            raise UnknownPartition(
                f"partition {partition}; {where_of(self.topic)} has partitions 0 to {self.partition_count - 1}"
            )
        return int(partition)

    def _usable(self, partition: PartitionId | None) -> PartitionId:
        if partition is None:
            partition = self._choose(())
        partition = self._checked(partition)
        if self._fault is not None:
            raise fresh(self._fault)
        return partition

    def _answer_s(self, timeout: float | None) -> float:
        seconds = checked_seconds("timeout", timeout)
        return self._settings.answer_s_max if seconds is None else seconds
