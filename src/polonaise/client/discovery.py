"""The port through which a client learns its cluster's key, partitions and assignment, and gets a unique id.

Adapters: `coordination.Coordinator`, which asks the coordinator itself, and `client.serverdiscovery.ServerDiscovery`,
which asks servers. The test driver has its own.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from polonaise.coordination.topics import TopicPartitions
from polonaise.coordination.values import Assignment, Versioned
from polonaise.topics import ClusterTopics


class Described(Protocol):
    """The part of a cluster's description that a client needs."""

    @property
    def key(self) -> bytes:
        """The cluster key, 16 bytes."""

    @property
    def partitions(self) -> int:
        """The number of the log's own partitions, those in no topic."""


class ClusterShape(NamedTuple):
    """The key of a cluster and the number of the log's own partitions, as a server told them."""

    key: bytes
    """The cluster key, 16 bytes."""
    partitions: int


class Discovery(Protocol):
    """The source from which a client learns about its cluster.

    Every call may raise `PolonaiseError`, and may be repeated after that.
    """

    @property
    def trouble(self) -> str:
        """Why the call under way has no answer yet, as far as that is known; empty if nothing is: for messages of who
        waits no longer."""

    async def describe(self) -> Described:
        """Return the cluster's description."""

    async def topic(self, name: str, known: TopicPartitions | None = None, total: int = 0) -> TopicPartitions:
        """Return the partitions of a topic, in a description that is not older than the one that is `known`.

        `total` is a number of partitions of the whole cluster that the description must have at least. Raises
        `UnknownTopic` if there is no such topic now.
        """

    async def topics(self) -> ClusterTopics:
        """Return the partitions of the whole cluster, its own ones and its topics', read from the coordinator for this
        call."""

    async def server_addresses(self) -> set[str]:
        """Return the addresses of the servers that are registered or are to be there, also of those without partitions;
        as far as it knows them."""

    async def unique_id(self) -> int:
        """Return a number that nobody in the cluster was given before."""

    async def assignment(self) -> Versioned[Assignment]:
        """Return the assignment as currently known, which may be older than one that was returned before."""

    async def assignment_after(self, version: int) -> Versioned[Assignment]:
        """Wait until the assignment's version is above `version`, and return the assignment.

        Waits for ever unless the caller sets a deadline.
        """

    async def close(self) -> None:
        """Release all connections and other resources. No method may be called after this one."""
