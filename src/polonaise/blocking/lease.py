"""A lease for threads."""

from __future__ import annotations

from typing import Self

from polonaise.blocking.background import Background
from polonaise.blocking.receipt import waited
from polonaise.client import lease as asynchronous
from polonaise.terms import PartitionId


class Lease:
    # ---- from polonaise.client.lease by `make blocking`: change it there

    """A lease: a name that one holder at a time has; returned by `Log.lease`.

    ::

        with log.lease("billing", duration_s=5.0) as lease:  # waits until it is held
            while lease.held:
                ...

    The owner of the partition grants it, and keeps it in memory; this client renews it until it is released, or can't
    be renewed for its duration. Both sides count by their own clock, this one from before each request, and with a
    margin: it stops to count itself the holder before another one can be.

    **A lease is for liveness, not for safety.** It keeps two processes from doing the same as long as clocks run at
    about the same speed, and nobody is stopped between a look at `held` and what is done next. Where two must never
    happen, guard the effect itself by a fence, such as the epoch of a `Producer`.
    """

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
        """The seconds for which it is held without being renewed."""
        return self._lease.duration_s

    @property
    def holder(self) -> int:
        """The number by which the owner knows this holder, which no other lease object has."""
        return self._lease.holder

    @property
    def held(self) -> bool:
        """Whether this is the holder, by this process's clock: no longer than others respect it. False in a forked
        child.
        """
        return self._background.now(lambda: self._lease.held)

    def acquire(self, *, timeout: float | None = None) -> None:
        """Wait until the lease is held. Returns at once if it is.

        After a change of the partition's owner, as when an embedded log is opened again, those who do not hold it can
        have it only once its duration has passed: the new owner does not know who does.

        Raises `DeadlineExceeded` after `timeout` seconds (without one, waits until the client is closed), `BadOption`
        if the name is held for another duration, `UnsupportedVersion` if the servers are too old, and `Closed`.

        One that was got in the moment in which the wait was broken off is given back.
        """
        return self._acquire(timeout=timeout)

    def lost(self) -> str:
        """Wait until the lease is not held any more, and return why."""
        return waited(self._background, self._lease.lost)

    def release(self) -> None:
        """Give the lease up: others can have it at once. Does nothing if it is not held, or in a forked child. If the
        owner can't be told, the lease runs out by itself.

        If the wait is broken off, that goes on to its end.
        """
        return self._release()

    # ---- by hand: what differs for threads

    def __init__(self, background: Background, lease: asynchronous.Lease) -> None:
        self._background = background
        self._lease = lease

    def _acquire(self, *, timeout: float | None) -> None:
        self._background.call(lambda: self._newly_acquired(timeout), undo=self._give_back)

    async def _newly_acquired(self, timeout: float | None) -> bool:
        """Acquire the lease; return whether it was not held before."""
        before = self._lease.held
        await self._lease.acquire(timeout=timeout)
        return not before

    def _give_back(self, acquired: bool) -> None:
        """Release the lease if it was acquired just now. In the background thread."""
        if acquired:
            self._background.begin_here(self._lease.release)

    def _release(self) -> None:
        self._background.call_to_end(self._lease.release)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
