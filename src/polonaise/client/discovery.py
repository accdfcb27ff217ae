"""The port through which a client learns its cluster's key, partitions and assignment, and gets a unique id.

Adapters: `coordination.Coordinator`, `client.serverdiscovery.ServerDiscovery`, and the test driver's.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from polonaise.coordination.topics import TopicPartitions
from polonaise.coordination.values import Assignment, Versioned
from polonaise.terms import ClusterTopics


class Described(Protocol):
    """The part of a cluster's description that a client needs."""

    @property
    def key(self) -> bytes:
        """The cluster key, 16 bytes."""

    @property
    def partitions(self) -> int:
        """The number of the log's own partitions, those in no topic."""


class ClusterShape(NamedTuple):
    """The key of a cluster, 16 bytes, and the number of the log's own partitions, as a server told them."""

    key: bytes
    partitions: int


class Discovery(Protocol):
    """The source from which a client learns about its cluster. Calls may raise `PolonaiseError`, and be repeated."""

    @property
    def trouble(self) -> str:
        """Why the call under way has no answer yet; empty if not known."""

    async def describe(self) -> Described:
        """Return the cluster's description."""

    async def topic(self, name: str, known: TopicPartitions | None = None, total: int = 0) -> TopicPartitions:
        """Return the partitions of a topic, in a description not older than the one that is `known`. The whole cluster
        has `total` partitions at least in it. Raises `UnknownTopic`."""

    async def topics(self) -> ClusterTopics:
        """Return the partitions of the whole cluster, its own ones and its topics', read from the coordinator now."""

    async def server_addresses(self) -> set[str]:
        """Return the addresses of the servers that are registered or are to be there, as far as it knows them."""

    async def unique_id(self) -> int:
        """Return a number that nobody in the cluster was given before."""

    async def assignment(self) -> Versioned[Assignment]:
        """Return the assignment as currently known, which may be older than one that was returned before."""

    async def assignment_after(self, version: int) -> Versioned[Assignment]:
        """Wait, without a deadline, for an assignment whose version is above `version`. Where that asks somebody who
        may hang, a wait that is cancelled before an answer notes so at its `CancelledError` (`broken_off`)."""

    async def close(self) -> None:
        """Release all connections and other resources; no method may be called afterwards."""
