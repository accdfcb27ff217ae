"""The copies and zones that commits need, as this server last read them from the cluster's description."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from polonaise.coordination import Coordinator
from polonaise.coordination.values import ClusterDescription, PartitionValue, Requirement, Versioned
from polonaise.errors import CoordinatorDamaged, CoordinatorUnavailable, PartitionNotReady, WrongClusterKey

_log = logging.getLogger(__name__)
_LOOK_S: Final = 300.0
"""Seconds after which the description is read again although no change of it was told."""
_AGAIN_S: Final = 1.0
"""Seconds between two tries to read it."""


class Requirements:
    """Knows the newest requirement that this server has read, and follows its changes."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._version = -1
        """The version of the description that was read last, at which changes are waited for."""
        self.current: Requirement | None = None
        """The requirement of the description that was read last; None if it has none."""

    def begin(self, described: Versioned[ClusterDescription]) -> None:
        """Take the first description, whose changes are followed from then on."""
        self._version = described.version
        self.take(described.value)

    def take(self, description: ClusterDescription) -> bool:
        """Take a description that was read; return whether it changes the requirement."""
        after = description.requirement
        if after is None or (self.current is not None and after.version <= self.current.version):
            return False
        self.current = after
        return True

    async def for_session(self, value: PartitionValue) -> Requirement | None:
        """Return the requirement of a session that is to follow the one in `value`.

        An earlier session may have acted by a newer description than this server has read: the requirement must not be
        taken back by a server that is behind. Raises `PartitionNotReady` while it is.
        """
        if value.required is not None and not self._has_read(value.required):
            self.take(await self._coordinator.describe())
            if not self._has_read(value.required):
                raise PartitionNotReady("this server has not read yet how many copies a commit needs")
        return self.current

    def _has_read(self, required: Requirement) -> bool:
        return self.current is not None and self.current.version >= required.version

    async def follow(self, described: Callable[[], None], changed: Callable[[], None]) -> None:
        """Read the description when it changes, for ever.

        `described` is called after each change of it, and `changed` after one that changes the requirement.
        """
        while True:
            try:
                try:
                    async with asyncio.timeout(_LOOK_S):
                        await self._coordinator.description_changed(self._version)
                except TimeoutError:
                    pass
                read = await self._coordinator.description()
                if read.version != self._version:
                    described()
                self._version = read.version
                if self.take(read.value):
                    _log.info("commits need %s", self.told or "a quorum, and nothing else")
                    changed()
            except (CoordinatorUnavailable, CoordinatorDamaged, WrongClusterKey):
                # Other reads of the coordinator report its trouble. What is required stays as it was read last.
                await asyncio.sleep(_AGAIN_S)

    @property
    def told(self) -> str:
        """What is required, for operators; empty if nothing is."""
        if self.current is None or not (self.current.copies or self.current.zones):
            return ""
        copies = f"{self.current.copies} copies" if self.current.copies else "copies"
        return f"{copies} in {self.current.zones} zones" if self.current.zones else copies
