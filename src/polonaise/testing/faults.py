"""The faults that a test can arm."""

from __future__ import annotations

import random
from collections.abc import Callable

from polonaise.errors import BadOption
from polonaise.terms import FailureReason, PartitionId
from polonaise.testing.memoryserver import MemoryServer

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
