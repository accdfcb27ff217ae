"""The entry of the test driver: opens logs in memory, and clients of them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypedDict, Unpack

from polonaise.blocking.background import Background
from polonaise.blocking.connecting import hold
from polonaise.blocking.log import Log as BlockingLog
from polonaise.client.log import Log
from polonaise.client.options import Serializer
from polonaise.client.partitions import Partitioner
from polonaise.client.settings import ClientSettings
from polonaise.client.view import RunView, View
from polonaise.errors import BadOption
from polonaise.terms import BodyForm, FailureReason, PartitionId, Transaction
from polonaise.testing.memory import MemoryCoordinator, MemoryHost
from polonaise.testing.memoryserver import ADDRESS, GENERATION, MemoryPartition, MemoryServer

_NOT_FAILURES = (FailureReason.DUPLICATE, FailureReason.GENERATION)


class Faults:
    """Arms faults of a log in memory. Faults of appends strike the next ones that reach the server; `suspend_feed`,
    `lose_connection` and what ends them act at once."""

    def __init__(self, server: MemoryServer, run: Callable[[Callable[[], None]], None]) -> None:
        """Arm faults of `server`, each by a function that `run` calls in the server's thread."""
        self._server = server
        self._run = run

    def fail_next_append(self, reason: FailureReason = FailureReason.SESSION_ENDED) -> None:
        """Fail the next append, or group: it is not in the log and never will be. A context runs again on
        SESSION_ENDED, DEADLINE, OVERLOADED, INSUFFICIENT_REPLICAS and LOCK_CONFLICT, and ends with an error on the
        others. Each call fails one more. Raises `BadOption` for DUPLICATE and GENERATION."""
        if reason in _NOT_FAILURES:
            raise BadOption(f"invalid reason {reason.name}: no append fails with it")
        self._run(lambda: self._server.armed.next_reasons.append(reason))

    def fail_next_lock(self) -> None:
        """Let the next append with a lock meet a conflict, as if another client had just changed what it guards."""

        def arm() -> None:
            self._server.armed.next_locks += 1

        self._run(arm)

    def rate(self, probability: float, seed: int = 0) -> None:
        """Fail each append from now on with this probability, for a reason that passes; 0 ends the failures. The same
        seed fails the same appends of a test. Raises `BadOption` for a probability that is not from 0 to below 1."""
        if not 0.0 <= probability < 1.0:
            raise BadOption(f"invalid probability {probability}: pass a number from 0 to below 1")

        def arm() -> None:
            self._server.armed.probability = probability
            self._server.armed.random = random.Random(seed)

        self._run(arm)

    def delay(self, seconds: float) -> None:
        """Decide each append from now on `seconds` after its arrival, in the order of arrival; 0 ends the delay. Raises
        `BadOption` below 0, and from 3600 s on."""
        if not 0.0 <= seconds < 3_600.0:
            raise BadOption(f"invalid delay of {seconds} s: pass a number from 0 to below 3600")

        def arm() -> None:
            self._server.armed.delay_s = seconds

        self._run(arm)

    def suspend_feed(self, partition: PartitionId = 0) -> None:
        """Stop the feed of a partition: appends commit, and no receipt and no view learns of it, until `resume_feed`.
        Requests such as `read` and `high_water_mark` do not go by the feed. Raises `UnknownPartition`."""
        self._run(lambda: self._server.partition(partition).suspend_feed())

    def resume_feed(self, partition: PartitionId = 0) -> None:
        """Resume the feed of a partition with what was held back. Raises `UnknownPartition`."""
        self._run(lambda: self._server.partition(partition).resume_feed())

    def lose_connection(self, *, reachable: bool = True) -> None:
        """Break all connections. Clients connect again at once; with `reachable=False`, after `reconnect`."""
        self._run(lambda: self._server.lose_connections(reachable=reachable))

    def unknown_next_append(self, *, committed: bool = True) -> None:
        """Break the connections when the next append has arrived, and keep the server out of reach. `run` with a
        timeout then raises `AppendUnknown`. `committed` says whether the append is in the log. After `reconnect` the
        client learns that it is, or sends it again."""
        self._run(lambda: self._server.armed.next_unknown.append(committed))

    def reconnect(self) -> None:
        """Let clients reach the server again."""
        self._run(self._server.reach)


SETTINGS: Final = ClientSettings(
    name="test",
    idle_flush_s=0.05,
    retry_s_min=0.001,
    retry_s_max=0.01,
    apply_retry_s_max=0.01,
    mount_s_max=0.5,
    answer_s_max=5.0,
)
"""With short pauses, so that tests do not wait long for the end of a fault."""


class MemoryLogOptions(TypedDict, total=False):
    """The options of a client in memory: those of `polonaise.connect` that have a meaning there."""

    view: View | RunView | None
    settings: ClientSettings | None
    """None, the default, stands for `SETTINGS`."""
    serializer: Serializer | None
    partitioner: Partitioner | None
    bodies: BodyForm
    wants: Callable[[int], bool] | None
    header_filter: tuple[int, int] | None


class MemoryCluster:
    """A cluster in memory: one server, with everything that was ever committed. `seed` draws the pauses of its clients.
    Raises `BadOption` for less than one partition."""

    def __init__(self, partitions: int = 1, seed: int = 1) -> None:
        if partitions < 1:
            raise BadOption(f"invalid number of partitions {partitions}: a log has at least one")
        self.host = MemoryHost(seed)
        self.coordinator = MemoryCoordinator(partitions)
        self.server = MemoryServer(self.host, partitions)
        for partition in range(partitions):
            self.coordinator.assign(partition, ADDRESS, GENERATION)

    def partition(self, partition: PartitionId) -> MemoryPartition:
        """Return a partition of the server. Raises `UnknownPartition`."""
        return self.server.partition(partition)

    @asynccontextmanager
    async def connect(self, **options: Any) -> AsyncIterator[MemoryLog]:
        """Connect one more client to this cluster, as another process of the application would.

        ::

            async with log.cluster.connect(view=Balances()) as second: ...

        Takes the options of `polonaise.connect` but `wait` and `tls`. Raises `BadOption`, and at the end of the context
        the first error that ended a task of this cluster or of its clients.
        """
        async with MemoryLog(self, **options) as log:
            yield log
        if self.host.failures:
            raise self.host.failures[0]


class MemoryLog(Log):
    """A `polonaise.Log` in memory: the real client, with `faults` to arm, and with the committed log to look at."""

    def __init__(self, cluster: MemoryCluster, **options: Any) -> None:
        """Make a client of `cluster`, with the options of `polonaise.Log`; `settings` are `SETTINGS` by default."""
        options["settings"] = options.get("settings") or SETTINGS
        super().__init__(cluster.host, cluster.coordinator, **options)
        self.cluster = cluster
        self.faults = Faults(cluster.server, lambda do: do())

    def transactions(self, partition: PartitionId = 0) -> list[Transaction]:
        """Return the partition's committed transactions, without the library's own. Raises `UnknownPartition`."""
        return self.cluster.partition(partition).transactions()

    def registers(self, partition: PartitionId = 0) -> dict[bytes, bytes]:
        """Return the partition's committed registers. Raises `UnknownPartition`."""
        return dict(self.cluster.partition(partition).registers)


class BlockingMemoryLog(BlockingLog):
    """A `polonaise.blocking.Log` in memory: `MemoryLog` for threads."""

    def __init__(self, background: Background, log: MemoryLog, close: Callable[[], Awaitable[None]]) -> None:
        super().__init__(background, log, close)
        self._memory = log
        self.faults = Faults(log.cluster.server, background.now)

    def transactions(self, partition: PartitionId = 0) -> list[Transaction]:
        """Return the partition's committed transactions, without the library's own. Raises `UnknownPartition`."""
        return self._background.now(lambda: self._memory.transactions(partition))

    def registers(self, partition: PartitionId = 0) -> dict[bytes, bytes]:
        """Return the partition's committed registers. Raises `UnknownPartition`."""
        return self._background.now(lambda: self._memory.registers(partition))


@asynccontextmanager
async def log(*, partitions: int = 1, seed: int = 1, **options: Unpack[MemoryLogOptions]) -> AsyncIterator[MemoryLog]:
    """Open a new, empty log in memory, and connect a client to it.

    ::

        async with polonaise.testing.log(view=balances) as log:
            log.faults.fail_next_append()
            await log.run(withdraw, 1, 30)

    `seed` draws the client's pauses. The other options are those of `polonaise.connect`; with the default `settings`
    all pauses are short. Raises `BadOption` and, when the context ends, the first error that ended a task of a client.
    """
    cluster = MemoryCluster(partitions, seed)
    try:
        async with cluster.connect(**options) as connected:
            yield connected
    finally:
        cluster.server.close()


def blocking_log(*, partitions: int = 1, seed: int = 1, **options: Unpack[MemoryLogOptions]) -> BlockingMemoryLog:
    """Open a log in memory for threads: `with polonaise.testing.blocking_log(view=view) as log`. Takes the options of
    `log`, and raises as it does."""
    return hold(lambda: log(partitions=partitions, seed=seed, **options), "polonaise in memory", BlockingMemoryLog)
