"""The port by which a client finds its cluster: its key and partitions, a unique id, and who owns what.

Adapters: `coordination.Coordinator`, which asks the coordinator itself, and `client.serverdiscovery.ServerDiscovery`,
which asks servers.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from polonaise.coordination.values import Assignment, Versioned


class Described(Protocol):
    """What a client has to know of a cluster's description."""

    @property
    def key(self) -> bytes:
        """The cluster key, 16 bytes."""

    @property
    def partitions(self) -> int:
        """The number of partitions."""


class ClusterShape(NamedTuple):
    """What servers tell of their cluster's description."""

    key: bytes
    partitions: int


class Discovery(Protocol):
    """How a client finds its cluster. Every call may raise `PolonaiseError`, and may be made again after that."""

    async def describe(self) -> Described:
        """Return the cluster's description."""

    async def unique_id(self) -> int:
        """Return a number that nobody in the cluster was given before."""

    async def assignment(self) -> Versioned[Assignment]:
        """Return the assignment as it is known now. It may be older than one that was returned before."""

    async def assignment_after(self, version: int) -> Versioned[Assignment]:
        """Return the assignment once its version is above `version`. Waits for ever, unless the caller sets a
        deadline."""

    async def close(self) -> None:
        """Give up everything that is held; nothing is called after that."""
