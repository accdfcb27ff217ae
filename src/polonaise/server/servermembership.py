"""The registration of a server at the coordinator, and until when the server may own partitions if it hears nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from math import isinf
from typing import Final

from polonaise.coordination import Coordinator, Membership
from polonaise.coordination.lease import RENEW_S, Tenure, renew_every_s
from polonaise.coordination.values import Registration
from polonaise.errors import Closed, PolonaiseError
from polonaise.host import Host
from polonaise.server.coordinatortrouble import CoordinatorTrouble, answered_within
from polonaise.terms import PeerClock

_log = logging.getLogger(__name__)
_LEASE: Final = "the lease can't be renewed"
_FAILED_PAUSE_S: Final = 0.25


class ServerMembership:
    """Registers a server, renews its registration, and ends its ownership in time when that does not succeed.

    Others take over what this server owns no earlier than `Membership.holds_s` after its last successful renewal began.
    Before that, by a margin, it stops owning by itself (`coordination.lease.Tenure`), and needs to hear nothing for
    that.
    """

    def __init__(
        self,
        host: Host,
        coordinator: Coordinator,
        trouble: CoordinatorTrouble,
        registration: Registration,
        on_ended: Callable[[str], None],
    ) -> None:
        """`registration` lacks the address, which is known once the server listens. `on_ended` is told, with the
        reason, when the server must own nothing until `held` returns."""
        self._host = host
        self._coordinator = coordinator
        self._trouble = trouble
        self._on_ended = on_ended
        self._tenure = Tenure()
        self.registration = registration
        """What the server is, or would be, registered by."""
        self._membership: Membership | None = None
        self._renewed = asyncio.Event()
        """Set while the registration certainly holds."""
        self.stretch = 0
        """How often the registration may have run out. What was read in one stretch is not followed in the next: others
        may have changed it meanwhile."""
        self.coordinator_clock: PeerClock | None = None
        """The clock as the last renewal that it dated has measured it; None if it has dated none."""
        self._ended = False
        """Whether the server owns nothing since its registration may have run out, until it was renewed and an
        assignment read since then is followed."""

    async def register(self, address: str) -> None:
        """Register the server at the address at which it listens; raises what `Coordinator.register` does."""
        self.registration = replace(self.registration, address=address)
        began_s = self._now_s
        self._membership = await self._coordinator.register(self.registration)
        self._note_renewed(began_s, self._membership)

    async def register_again(self) -> None:
        """Register the server again, whose registration is gone; raises what `Coordinator.register` does.

        No renewal: it may be the same registration still, which others may have judged to have run out.
        """
        self._membership = await self._coordinator.register(self.registration)

    async def tell(self, registration: Registration) -> None:
        """Replace what the registration says, now and for later.

        Raises what the coordinator raises: the caller tells it again.
        """
        self.registration = registration
        if self._membership is not None:
            await self._membership.tell(registration)

    async def leave(self) -> None:
        if self._membership is not None:
            await self._membership.leave()

    @property
    def left(self) -> bool:
        """Whether the server has left the members, or has tried to."""
        return self._membership is not None and self._membership.left

    async def held(self, seconds: float) -> int:
        """Wait until the registration holds, or raise `CoordinatorUnavailable`; return the present `stretch`."""
        self.check()
        if not self._renewed.is_set():
            silence = f"the registration of server {self.registration.server} could not be renewed within {seconds:g} s"
            async with answered_within(seconds, self._coordinator, silence):
                await self._renewed.wait()
        return self.stretch

    def check(self) -> None:
        """End the ownership now if the registration may have run out.

        To be called before what only an owner may do: a process that was stopped goes on before its timers are told.
        """
        # One that has left has no registration that could run out: it goes on until others fence it.
        if self._renewed.is_set() and not self.left and not self._tenure.holds(self._now_s):
            self._end()

    async def keep(self) -> None:
        """Renew the registration for ever, in the event loop that does all the work: if that hangs, the lease ends."""
        while True:
            began_s, every_s, pause_s = self._now_s, RENEW_S, 0.0
            try:
                if self._membership is not None:
                    every_s = renew_every_s(self._membership.holds_s)
                    # One that stepped aside has no registration that could run out. It goes on until the server that
                    # takes its partitions over fences it: it may be the last one that can serve them.
                    if self._membership.left or await self._membership.renew():
                        if not self._membership.left:
                            self._measure(began_s, self._membership.renewed_us)
                        self._note_renewed(began_s, self._membership)
                    elif not self._membership.left:  # it may have left while the answer was under way
                        await self.register_again()
                        every_s, pause_s = 0.0, _FAILED_PAUSE_S
                self._trouble.succeeded(_LEASE)
            except Closed:
                raise
            except PolonaiseError as error:
                pause_s = _FAILED_PAUSE_S
                # Not the end of this server, whatever the coordinator says: it owns until its registration may have
                # run out, and again once it is renewed.
                self._trouble.failed(_LEASE, error, **self._fields)
            # From the beginning: after a renewal that took long, the next one must not come late.
            await asyncio.sleep(max(pause_s, began_s + every_s - self._now_s))

    async def watch(self) -> None:
        """End the ownership whenever the registration may have run out; return if it never can."""
        while True:
            await self._renewed.wait()
            left_s = self._tenure.until_s - self._now_s
            if isinf(left_s):
                return
            await asyncio.sleep(RENEW_S if self.left else max(0.0, left_s))
            self.check()

    @property
    def _now_s(self) -> float:
        return self._host.clock.monotonic_s()

    @property
    def _fields(self) -> dict[str, int]:
        return {"server": self.registration.server}

    def _note_renewed(self, began_s: float, membership: Membership) -> None:
        # First: if the registration had run out before this renewal, others may own the partitions since.
        self.check()
        self._tenure.renewed(began_s, membership.holds_s)
        if self._tenure.holds(self._now_s) and not self._renewed.is_set():
            self._renewed.set()

    def _measure(self, began_s: float, renewed_us: int | None) -> None:
        if renewed_us is not None:
            now_s = self._now_s
            half_us = int((now_s - began_s) * 5e5)
            self.coordinator_clock = PeerClock(renewed_us - int(began_s * 1e6) - half_us, half_us, now_s)

    @property
    def not_owning(self) -> str:
        """Why the server owns nothing since its registration may have run out, as it is now; empty while it may own."""
        if not self._ended:
            return ""
        why = self._trouble.present(self._coordinator)
        nothing = f"server {self.registration.server} owns nothing"
        if self._renewed.is_set():
            because = f" ({why})" if why else ""
            return f"{nothing}: it has renewed its registration, and has not been able to read the assignment{because}"
        holds_s = self._membership.holds_s if self._membership else 0.0
        return (
            f"{nothing}: it could not renew its registration, which holds for {holds_s:g} s, so others may take over "
            f"its partitions ({why or 'the coordinator, or this process, has not answered in time'}). It goes on by "
            "itself once it can renew it and read the assignment"
        )

    def owns_again(self) -> None:
        """Note that the server follows an assignment that was read while the registration held."""
        if self._ended and self._renewed.is_set():
            self._ended = False
            _log.warning(
                "server %d has renewed its registration: it owns again what the assignment gives it",
                self.registration.server,
                extra=self._fields,
            )

    def _end(self) -> None:
        self._renewed.clear()
        self.stretch += 1
        self._ended = True
        _log.warning("%s", self.not_owning, extra=self._fields)
        self._on_ended(self.not_owning)
