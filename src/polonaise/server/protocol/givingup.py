"""The partitions that a server gives up, because it can't serve them although others may.

A server that is cut off from the storage nodes alone, loses many packets, or whose certificate has expired, goes on as
a member of the cluster, and nobody but itself can notice. So it tells the others, in its registration, which partitions
it is unable to serve, and `server.assignment` gives these to able ones.

* **A grace first.** Time without a session counts, and half of the time with one counts against it; each session that a
  fault has ended counts as `_FAULT_S` seconds besides. A short fault, or one of a storage node, moves nothing.
* **A growing one.** With each giving up the grace of the partition doubles, up to `_GRACE_S_MAX`, and so does the time
  for which it stays given up. So a cluster in which nobody can serve it does not pass it around.
* **Unable together is not unable.** Where no server is able, nothing moves: that is the assignment's rule.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from polonaise.terms import PartitionId

_FAULT_S: Final = 2.0
_STEP_S_MAX: Final = 2.0
"""So many seconds between two looks show that the server was itself stopped, and tried nothing: neither the time counts
against it nor do faults. If looks stay late, the server is slow: then so many seconds of each but the first count."""
_HOLD: Final = 5.0
"""For how many times its grace a partition stays given up after the server last failed."""
_GRACE_S_MAX: Final = 120.0
_FORGIVEN: Final = 20.0
"""After how many times its grace without another giving up a partition has its first grace again."""


class Struggle(NamedTuple):
    """How a partition, or the server as a whole, fares at one look."""

    fails: bool
    """Whether it is kept from working now, by what another server may not have."""
    faults: int
    """How often it was kept so far."""


FARES_WELL: Final = Struggle(False, 0)


@dataclass(slots=True)
class _Hardship:
    """What is remembered of one partition, or of the server as a whole."""

    grace_s: float
    counted_s: float = 0.0
    faults: int = 0
    """Those that are counted in `counted_s`."""
    until_s: float | None = None
    """Until when it stays given up, if it is."""
    ended_s: float | None = None
    """When it last ceased to be given up."""

    def look(self, struggle: Struggle, step_s: float, now_s: float, *, stopped: bool) -> None:
        """Count one look, `step_s` seconds after the last; `stopped`: the server itself was stopped in between."""
        counted_s = self.counted_s
        if not struggle.fails:
            counted_s -= step_s / 2
        # All that had to be answered while the server itself was stopped fails at once when it goes on.
        if not stopped:
            counted_s += step_s if struggle.fails else 0.0
            counted_s += _FAULT_S * max(0, struggle.faults - self.faults)
        self.faults = struggle.faults
        self.counted_s = min(self.grace_s, max(0.0, counted_s))
        if self.until_s is None:
            if self.counted_s >= self.grace_s:
                self.until_s = now_s + _HOLD * self.grace_s
        elif struggle.fails:
            self.until_s = now_s + _HOLD * self.grace_s
        elif not self.counted_s:
            self.take_back(now_s)

    def owned_anew(self, faults: int) -> None:
        """Count faults from 0 if there are fewer than before: counts begin anew with each ownership."""
        self.faults = min(self.faults, faults)

    def keep(self, now_s: float) -> None:
        """Keep it given up for its grace at least: nobody can tell whether it could be served."""
        if self.until_s is not None:
            self.until_s = max(self.until_s, now_s + self.grace_s)

    def take_back(self, now_s: float) -> None:
        """Give it up no more; the next time is later."""
        self.until_s, self.ended_s, self.counted_s = None, now_s, 0.0
        self.grace_s = min(2 * self.grace_s, _GRACE_S_MAX)


class GivingUp:
    """Decides which partitions a server is to tell the others that it is unable to serve."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._looked_s: float | None = None
        self._late = False
        self._server = _Hardship(grace_s)
        self._lost: frozenset[PartitionId] = frozenset()
        """What the server has owned since it was given up as a whole, as long as it fails."""
        self._partitions: dict[PartitionId, _Hardship] = {}

    def look(
        self,
        now_s: float,
        partitions: Collection[PartitionId],
        struggles: Mapping[PartitionId, Struggle],
        server: Struggle,
        owned: Collection[PartitionId],
        *,
        connected: bool,
    ) -> frozenset[PartitionId]:
        """Return the partitions that are given up now.

        `partitions` are those that the server serves, `struggles` has those of them that fail or have failed, and
        `owned` are those that the assignment gives it. `server` fails while it can serve nothing at all: it may own
        nothing, or its certificate has expired. While too few storage nodes are connected for any session
        (`connected`), nothing is taken back that the server does not serve.
        """
        step_s = 0.0 if self._looked_s is None else min(_STEP_S_MAX, now_s - self._looked_s)
        self._looked_s = now_s
        was_late, self._late = self._late, step_s >= _STEP_S_MAX
        stopped = self._late and not was_late
        was_given_up = self._server.until_s is not None
        self._server.look(server, step_s, now_s, stopped=stopped)
        if self._server.until_s is not None and (server.fails or not was_given_up):
            self._lost |= frozenset(owned)  # also what it is given later, while no server was able
        for partition in struggles:
            if partition not in self._partitions:
                self._partitions[partition] = _Hardship(self._grace_s)
        for partition, trouble in list(self._partitions.items()):
            if partition in partitions:
                struggle = struggles.get(partition, FARES_WELL)
                trouble.owned_anew(struggle.faults)
                trouble.look(struggle, step_s, now_s, stopped=stopped)
            elif trouble.until_s is not None:
                if not connected:
                    trouble.keep(now_s)
                elif now_s >= trouble.until_s:
                    trouble.take_back(now_s)
            elif trouble.ended_s is None or now_s - trouble.ended_s > _FORGIVEN * trouble.grace_s:
                del self._partitions[partition]
        if self._server.until_s is not None and now_s >= self._server.until_s:
            self._server.take_back(now_s)
        if self._server.until_s is None:
            self._lost = frozenset()
        given_up = {partition for partition, trouble in self._partitions.items() if trouble.until_s is not None}
        return self._lost | given_up
