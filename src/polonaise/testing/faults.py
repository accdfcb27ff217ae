"""Faults on request: what a test can have go wrong."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeAlias

from polonaise.errors import BadOption
from polonaise.terms import FailureReason, PartitionId
from polonaise.testing.server import MemoryServer

There: TypeAlias = Callable[[Callable[[], Any]], Any]
"""Has something done where the server lives."""


_NOT_FAILURES = (FailureReason.DUPLICATE, FailureReason.GENERATION)


class Faults:
    """What a test can have go wrong. Each takes effect with the next message that the server gets."""

    def __init__(self, server: MemoryServer, there: There) -> None:
        self._server = server
        self._there = there

    def fail_next_append(self, reason: FailureReason = FailureReason.SESSION_ENDED) -> None:
        """The next append, or group, fails: it is not in the log and never will be.

        A context runs again on SESSION_ENDED, DEADLINE, OVERLOADED, INSUFFICIENT_REPLICAS and LOCK_CONFLICT, and ends
        with an error on the others. Called several times, it fails as many appends. Raises `BadOption` for DUPLICATE
        and GENERATION, which are no failures.
        """
        if reason in _NOT_FAILURES:
            raise BadOption(f"{reason.name} is not how an append fails")
        self._there(lambda: self._server.armed.next_reasons.append(reason))

    def fail_next_lock(self) -> None:
        """The next append that carries a lock meets a conflict, as if somebody had just changed what it covers."""

        def arm() -> None:
            self._server.armed.next_locks += 1

        self._there(arm)

    def rate(self, probability: float, seed: int = 0) -> None:
        """From now on each append fails with this probability, for a reason that passes; 0 ends it.

        The same seed fails the same appends of a test that appends in the same order.
        """
        if not 0.0 <= probability < 1.0:
            raise BadOption(f"a probability from 0 to below 1, not {probability}")

        def arm() -> None:
            self._server.armed.probability = probability
            self._server.armed.random = random.Random(seed)

        self._there(arm)

    def delay(self, seconds: float) -> None:
        """From now on appends are decided this much after they arrive, in their order; 0 ends it."""
        if not 0.0 <= seconds < 3_600.0:
            raise BadOption(f"a delay from 0 to an hour, not {seconds} s")

        def arm() -> None:
            self._server.armed.delay_s = seconds

        self._there(arm)

    def suspend_feed(self, partition: PartitionId = 0) -> None:
        """Feed nothing of this partition: appends commit, and nobody hears of it, until `resume_feed`."""
        self._there(lambda: self._server.partition(partition).suspend_feed())

    def resume_feed(self, partition: PartitionId = 0) -> None:
        """Feed what was held back."""
        self._there(lambda: self._server.partition(partition).resume_feed())

    def lose_connection(self, *, reachable: bool = True) -> None:
        """Every client's connections break. They connect again at once, or `reachable=False`, when told `reconnect`."""
        self._there(lambda: self._server.lose_connections(reachable=reachable))

    def unknown_next_append(self, *, committed: bool = True) -> None:
        """The next append arrives, and then the connections are lost, and the server can't be reached.

        So nobody knows of its fate: `run` with a timeout raises `AppendUnknown`. After `reconnect` it is found out,
        and is what `committed` says.
        """
        self._there(lambda: self._server.armed.next_unknown.append(committed))

    def reconnect(self) -> None:
        """The server can be reached again."""
        self._there(self._server.reach)
