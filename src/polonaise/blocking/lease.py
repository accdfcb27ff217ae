"""A lease for threads."""

from __future__ import annotations

from typing import Self

from polonaise.blocking.background import Background
from polonaise.client import lease as asynchronous
from polonaise.terms import PartitionId


class Lease:
    """A name that one holder at a time has; returned by `Log.lease`. As `polonaise.Lease`."""

    def __init__(self, background: Background, lease: asynchronous.Lease) -> None:
        self._background = background
        self._lease = lease

    @property
    def name(self) -> str:
        """The lease's name."""
        return self._lease.name

    @property
    def partition(self) -> PartitionId:
        """The partition whose owner grants it."""
        return self._lease.partition

    @property
    def duration_s(self) -> float:
        """For how many seconds it is held without being renewed."""
        return self._lease.duration_s

    @property
    def holder(self) -> int:
        """The number by which the owner knows this holder."""
        return self._lease.holder

    @property
    def held(self) -> bool:
        """Whether this is the holder, by this process's clock."""
        return self._background.now(lambda: self._lease.held)

    def acquire(self, *, timeout: float | None = None) -> None:
        """Wait until the lease is held. As `polonaise.Lease.acquire`.

        One that was got in the moment in which the wait was broken off is given back.
        """
        self._background.call(lambda: self._acquire(timeout), undo=self._give_back)

    async def _acquire(self, timeout: float | None) -> bool:
        """Acquire the lease; return whether it was not held before."""
        before = self._lease.held
        await self._lease.acquire(timeout=timeout)
        return not before

    def _give_back(self, acquired: bool) -> None:
        """Release the lease if it was acquired just now. In the background thread."""
        if acquired:
            self._background.begin_here(self._lease.release)

    def lost(self) -> str:
        """Wait until the lease is not held any more; return why. As `polonaise.Lease.lost`."""
        return self._background.call(self._lease.lost)

    def release(self) -> None:
        """Give the lease up: others can have it at once. As `polonaise.Lease.release`.

        If the wait is broken off, that goes on to its end.
        """
        return self._background.call_to_end(self._lease.release)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
