"""The clock of a server: it feeds the decision about commit times, and tells what is wrong with clocks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from polonaise.errors import PartitionNotReady
from polonaise.host import Host
from polonaise.server.protocol.commitclock import FRESH_S, CommitClock, Moment
from polonaise.server.settings import ServerSettings
from polonaise.server.storagelinks import StorageLink
from polonaise.terms import PeerClock, StorageId, clock_words

_log = logging.getLogger(__name__)


class ServerClock:
    """Brings a `CommitClock` what the clocks of the machine and of storage nodes say, several times a second."""

    def __init__(
        self,
        host: Host,
        settings: ServerSettings,
        links: Mapping[StorageId, StorageLink],
        coordinator: Callable[[], PeerClock | None] = lambda: None,
    ) -> None:
        """`coordinator` returns the last measure of the coordinator's clock, which is told and decides nothing."""
        self._coordinator = coordinator
        self._clock = host.clock
        self._settings = settings
        self._links = links
        self._commit = CommitClock(settings.clock_off_s_max, settings.clock_settle_s)
        self._told = ""

    def now(self) -> Moment:
        """Return this moment, with the time that a commit gets now for its wall clock."""
        clock = self._clock
        now = Moment(clock.monotonic_s(), clock.wall_us())
        return now if self._commit.follows(now) else self.look(now)

    def look(self, now: Moment | None = None) -> Moment:
        """Judge the clock anew, log what begins or ends to be wrong with it, and return this moment like `now`."""
        if now is None:
            now = Moment(self._clock.monotonic_s(), self._clock.wall_us())
        self._commit.slept(self._clock.slept_s())
        for name, link in self._links.items():
            if link.session is not None and (measured := link.session.clock.measured) is not None:
                self._commit.measured(name, measured)
        time_us = self._commit.look(now)
        self._tell()
        return Moment(now.monotonic_s, time_us)

    def _tell(self) -> None:
        trouble = self.trouble
        kind = "".join(each for each in trouble if not each.isdigit())  # the figures change all the time
        if kind != self._told:
            self._told = kind
            _log.warning("%s", trouble or "the clocks of this server and of its storage nodes agree again")

    @property
    def trouble(self) -> str:
        """What is wrong with the clock of this server, or of others; empty if nothing is."""
        lines = [self._commit.trouble(self._clock.monotonic_s())]
        ahead_s = self._coordinator_ahead_s
        if ahead_s is not None and abs(ahead_s) > self._settings.clock_off_s_max:
            lines.append(f"the coordinator's clock is {clock_words(ahead_s)} that of this server: set the clocks (NTP)")
        return "; ".join(each for each in lines if each)

    @property
    def _coordinator_ahead_s(self) -> float | None:
        """By how much the coordinator's clock (of ZooKeeper's leader) is ahead; None if not measured lately."""
        measured, now_s = self._coordinator(), self._clock.monotonic_s()
        if measured is None or now_s - measured.at_s > FRESH_S:
            return None
        return (measured.offset_us - (self._clock.wall_us() - int(now_s * 1e6))) / 1e6

    @property
    def unfit_s(self) -> float:
        """For how many seconds the clock has been off from a majority of the storage nodes; 0 if it is not."""
        return self._clock.monotonic_s() - self._commit.unfit_since_s if self._commit.unfit else 0.0

    def check(self) -> None:
        """Raise `PartitionNotReady` if no session may start by this clock."""
        self.look()
        if self._commit.unfit:
            raise PartitionNotReady(self._commit.trouble(self._clock.monotonic_s()))

    def health(self) -> dict[str, Any]:
        """Return what is known of clocks as a JSON-ready document: seconds, above 0 if ahead of this server's."""
        skews = self._commit.skews_s(self._clock.monotonic_s())
        coordinator_s = self._coordinator_ahead_s
        return {
            "trouble": self.trouble,
            "unfit": self._commit.unfit if skews or self._commit.unfit else None,
            "not_believed_s": round(self._commit.jumped_s, 3),
            "bound_s": self._settings.clock_off_s_max,
            "jumps": self._commit.jumps,
            "last_jump_s": round(self._commit.last_jump_s, 3),
            "coordinator": None if coordinator_s is None else round(coordinator_s, 3),
            "storage": {name: round(skew, 3) for name, skew in sorted(skews.items())},
        }
