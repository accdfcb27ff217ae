"""Leases for applications: a name that one holder at a time has, for as long as it renews it."""

from __future__ import annotations

import asyncio
from typing import Final, Self

from polonaise.client.clientparts import ClientParts
from polonaise.client.protocol.arguments import checked_seconds, encoded, wrong
from polonaise.client.protocol.groupleases import GROUP_LEASES
from polonaise.client.waiting import check_loop, end, is_inherited, own_loop, wake
from polonaise.coordination.lease import Tenure
from polonaise.errors import BadOption, Closed, DeadlineExceeded, Overloaded, PolonaiseError, Retry
from polonaise.terms import PartitionId
from polonaise.wire.leases import (
    DURATION_MS_MAX,
    DURATION_MS_MIN,
    NAME_BYTES_MAX,
    NOTE_BYTES_MAX,
    AnsweredLease,
    AskedLease,
    LeaseAnswer,
)

_ASK_S: Final = 0.2
"""The longest pause, in seconds, before a lease that another holder has is asked for again."""
_PER_DURATION: Final = 4
"""How often a lease is renewed within its duration, so that some renewals may fail."""


class Lease:
    """A lease: a name that one holder at a time has; returned by `Log.lease`.

    ::

        async with log.lease("billing", duration_s=5.0) as lease:  # waits until it is held
            while lease.held:
                ...

    The owner of the partition grants it, and keeps it in memory; this client renews it until it is released, or can't
    be renewed for its duration. Both sides count by their own clock, this one from before each request, and with a
    margin: it stops to count itself the holder before another one can be.

    **A lease is for liveness, not for safety.** It keeps two processes from doing the same as long as clocks run at
    about the same speed, and nobody is stopped between a look at `held` and what is done next. Where two must never
    happen, guard the effect itself by a fence, such as the epoch of a `Producer`.
    """

    def __init__(
        self, parts: ClientParts, partition: PartitionId, name: str, duration_s: float, note: bytes, holder: int
    ) -> None:
        self.name = name
        """The lease's name."""
        self.partition = partition
        """The partition whose owner grants it."""
        self.duration_s = duration_s
        """The seconds for which it is held without being renewed."""
        self.holder = holder
        """The number by which the owner knows this holder, which no other lease object has."""
        self._host = parts.host
        self._requests = parts.requests
        self._life = parts.life
        self._note = note
        self._loop = own_loop()
        self._tenure = Tenure()
        self._acquiring = False
        self._keeper: asyncio.Task[None] | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self._why = "it was never held"
        self._trouble = ""
        self._silent_since_s: float | None = None
        """When the first request was made that has had no answer, nor any after it; None if there is none."""

    @property
    def held(self) -> bool:
        """Whether this is the holder, by this process's clock: no longer than others respect it. False in a forked
        child."""
        return self._keeper is not None and self._tenure.holds(self._now_s()) and not is_inherited(self._loop)

    async def acquire(self, *, timeout: float | None = None) -> None:
        """Wait until the lease is held. Returns at once if it is.

        After a change of the partition's owner, as when an embedded log is opened again, those who do not hold it can
        have it only once its duration has passed: the new owner does not know who does.

        Raises `DeadlineExceeded` after `timeout` seconds (without one, waits until the client is closed), `BadOption`
        if the name is held for another duration, `UnsupportedVersion` if the servers are too old, and `Closed`.
        """
        check_loop(self._loop)
        timeout_s = checked_seconds("timeout", timeout)
        if self.held:
            return
        if self._acquiring:
            raise BadOption(f"lease {self.name!r} is being acquired already: make a Lease for each task that wants it")
        self._acquiring, self._silent_since_s = True, None
        self._trouble = "no answer yet"
        try:
            async with asyncio.timeout(timeout_s):
                await self.lost()  # it has run out, and the task that kept it is about to find that out
                await self._acquire()
        except TimeoutError:
            raise DeadlineExceeded(
                f"lease {self.name!r} of partition {self.partition} could not be had within {timeout:g} s: "
                f"{self._trouble}"
            ) from None
        finally:
            self._acquiring = False

    async def _acquire(self) -> None:
        """Ask until the lease is held; keep in `_trouble` what it waits for."""
        while True:
            began_s = self._now_s()
            pause_s = _ASK_S
            try:
                answered = await self._ask(renews=False, timeout_s=self.duration_s / 2)
            except PolonaiseError as error:
                if error.retry not in (Retry.AGAIN, Retry.ELSEWHERE):
                    raise
                self._trouble = str(error)
            else:
                if answered.answer is LeaseAnswer.HELD:
                    self._tenure.renewed(began_s, self.duration_s)
                    if self._tenure.holds(self._now_s()):
                        self._keeper = self._host.spawn(self._keep(), f"client: keep lease {self.name}")
                        self._life.lease_keepers.add(self._keeper)
                        self._keeper.add_done_callback(self._kept)
                        return
                self._trouble = self._meaning(answered)
                if answered.answer is LeaseAnswer.OTHER_DURATION:
                    raise BadOption(self._trouble)
                if answered.remaining_ms:
                    pause_s = min(pause_s, answered.remaining_ms / 1000)
            # Not all that wait at the same moments: whoever comes first after a release has it.
            await asyncio.sleep(pause_s * (0.75 + self._host.random.random() / 4))

    async def lost(self) -> str:
        """Wait until the lease is not held any more, and return why."""
        check_loop(self._loop)
        while self._keeper is not None:
            future: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(future)
            try:
                await future
            finally:
                if future in self._waiting:
                    self._waiting.remove(future)
        return self._why

    async def release(self) -> None:
        """Give the lease up: others can have it at once. Does nothing if it is not held, or in a forked child. If the
        owner can't be told, the lease runs out by itself."""
        if is_inherited(self._loop):
            return
        check_loop(self._loop)
        if self._keeper is None:
            return
        left_s = self._tenure.until_s - self._now_s()
        keeper = self._keeper
        self._end("it was released")
        end(keeper)
        # The one that renews first: a renewal behind the release would take the lease again.
        await asyncio.wait([keeper])
        if left_s > 0:
            try:
                await self._requests.release_leases(self.partition, self.holder, [self.name], left_s)
            except PolonaiseError:
                pass

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    # ------------------------------------------------------------------ renewals

    async def _keep(self) -> None:
        trouble = ""
        next_s = self._now_s() + self.duration_s / _PER_DURATION
        while True:
            await asyncio.sleep(max(0.0, min(next_s, self._tenure.until_s) - self._now_s()))
            began_s = self._now_s()
            if not self._tenure.holds(began_s):
                break
            next_s = began_s + self.duration_s / _PER_DURATION
            left_s = self._tenure.until_s - began_s
            try:
                answered = await self._ask(renews=True, timeout_s=min(left_s, self.duration_s / 2))
            except Closed as error:
                self._end(str(error))
                return
            except PolonaiseError as error:
                trouble = f" (the last trouble: {error})"
                next_s = min(next_s, self._now_s() + _ASK_S)
                continue
            if not self._tenure.holds(self._now_s()):
                # It had run out before the answer came, and so another one may have had it since: an answer that
                # comes late gives nothing back.
                break
            if answered.answer is LeaseAnswer.HELD:
                self._tenure.renewed(began_s, self.duration_s)
                trouble = ""
            elif answered.answer is LeaseAnswer.FULL:
                trouble = f" (the last trouble: {self._meaning(answered)})"
            else:
                self._end(self._meaning(answered))
                return
        self._end(f"it could not be renewed for {self.duration_s:g} s{trouble}")

    async def _ask(self, *, renews: bool, timeout_s: float) -> AnsweredLease:
        asked = AskedLease(self.name, self._note, renews)
        if self._silent_since_s is None:
            self._silent_since_s = self._now_s()
        answered, _ = await self._requests.hold_leases(
            self.partition, self.holder, self.duration_s, [asked], None, timeout_s, self._silent_since_s
        )
        self._silent_since_s = None
        return answered[0]

    def _kept(self, keeper: asyncio.Task[None]) -> None:
        self._life.lease_keepers.discard(keeper)
        if keeper is self._keeper:
            # It was cancelled: by the end of the client, or by others, and then the client has failed by now.
            self._end(str(self._life.failure or "this client was closed"))

    def _end(self, why: str) -> None:
        if self._keeper is None:
            return
        self._keeper = None
        self._tenure = Tenure()
        self._why = why
        waiting, self._waiting = self._waiting, []
        wake(waiting)

    def _meaning(self, answered: AnsweredLease) -> str:
        left_s = answered.remaining_ms / 1000
        match answered.answer:
            case LeaseAnswer.HELD:
                return "the answer came too late"
            case LeaseAnswer.TAKEN:
                return f"holder {answered.holder} has it for {left_s:g} s more, unless it renews it"
            case LeaseAnswer.TOO_EARLY:
                return f"the owner of the partition is new, and grants it in {left_s:g} s"
            case LeaseAnswer.LOST:
                return "the owner of the partition knows it no more"
            case LeaseAnswer.FULL:
                return str(Overloaded(f"partition {self.partition} has no room for more leases"))
            case LeaseAnswer.OTHER_DURATION:
                return (
                    f"lease {self.name!r} is held for another duration than {self.duration_s:g} s: all that ask for "
                    "one name have to give the same"
                )

    def _now_s(self) -> float:
        return self._host.clock.monotonic_s()


def checked_lease(name: str, duration_s: float, note: bytes) -> tuple[str, float, bytes]:
    if not isinstance(name, str):
        raise wrong("name", name, "a lease's name is text")
    size = len(encoded("name", name))
    if not 0 < size <= NAME_BYTES_MAX:
        raise BadOption(f"a lease's name of {size} bytes; it has to have 1 to {NAME_BYTES_MAX}")
    if name.startswith(GROUP_LEASES):
        raise wrong("name", name, f"leases under {GROUP_LEASES!r} are those of worker groups: begin yours otherwise")
    seconds = checked_seconds("duration_s", duration_s)
    if seconds is None or not DURATION_MS_MIN / 1000 <= seconds <= DURATION_MS_MAX / 1000:
        raise BadOption(
            f"duration_s={duration_s!r}: a lease lasts {DURATION_MS_MIN / 1000:g} to {DURATION_MS_MAX / 1000:g} seconds"
        )
    if not isinstance(note, bytes) or len(note) > NOTE_BYTES_MAX:
        raise BadOption(f"a lease's note is bytes, at most {NOTE_BYTES_MAX} of them")
    return name, seconds, note
