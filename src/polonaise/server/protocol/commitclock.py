"""The clock that commit times come from: a wall clock that is believed only as far as others confirm it.

- The time never rests on a wall clock that has just jumped by more than the bound: it goes on by the monotonic clock
  until the storage nodes' clocks confirm the new time. With nobody to ask, the jump is believed once it has lasted for
  `settle_s`.
- A storage node whose own clock has just jumped confirms nothing for as long: the nodes of one machine have the same
  clock, and would confirm its jump to each other.
- `unfit` says that the clock, or the time that is believed instead of it, is off from a majority of the storage nodes'
  clocks by more than the bound. No session starts then, until the clock is within half of the bound of at least half of
  them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

from polonaise.terms import PeerClock, StorageId, clock_words


class Moment(NamedTuple):
    """One moment, on two clocks."""

    monotonic_s: float
    """Seconds of a clock that never goes back, for durations and deadlines."""
    wall_us: int
    """Microseconds UTC, for commit times; it may jump either way."""


FRESH_S: Final = 15.0
"""For so many seconds a measure of another clock counts: several are made in that time."""
_FOLLOWED_US: Final = 500_000
"""A wall clock that moves less than this against the monotonic one is followed without a further look."""


@dataclass(frozen=True, slots=True)
class _Witness:
    """Another server's clock as it was measured last."""

    measure: PeerClock
    since_s: float
    """Since when it goes as it does now: -inf if it has not jumped since it was first measured."""


class _Verdict(Enum):
    """What the clocks of others say of this one."""

    UNKNOWN = 0
    WITHIN = 1
    OFF = 2


class CommitClock:
    """Tells the time for commits, by what it is told of clocks.

    Offsets are wall less monotonic time, in microseconds.
    """

    def __init__(self, bound_s: float, settle_s: float) -> None:
        """`bound_s` is the largest error that is believed unconfirmed, `settle_s` how long a jump has to last."""
        self._bound_us = bound_s * 1e6
        self._settle_s = settle_s
        self._trusted_us: int | None = None
        self._wall_us = 0
        self._jumped_us: int | None = None
        """Where the wall clock has jumped to, while that is not believed."""
        self._jumped_s = float("-inf")
        self._witnesses: dict[StorageId, _Witness] = {}
        self._slept_s = 0.0
        self.unfit = False
        self.unfit_since_s = 0.0
        self.jumps = 0
        """How often the wall clock has jumped by more than the bound."""
        self.last_jump_s = 0.0
        """By how many seconds it was ahead of the believed time after its last jump."""

    # ------------------------------------------------------------------ what is seen

    def measured(self, name: StorageId, measure: PeerClock) -> None:
        """Note a measure of a storage node's clock; one that was noted before changes nothing."""
        known = self._witnesses.get(name)
        since_s = float("-inf")
        if known is not None:
            if known.measure.at_s >= measure.at_s:  # the shell brings the last one again with each look
                return
            # Only what the errors of both measures can't explain is a jump.
            moved_us = abs(measure.offset_us - known.measure.offset_us) - measure.within_us - known.measure.within_us
            since_s = measure.at_s if moved_us > self._bound_us else known.since_s
        self._witnesses[name] = _Witness(measure, since_s)

    def slept(self, slept_s: float) -> None:
        """Note for how long the machine has slept since its start, while the monotonic clock stood still."""
        more_us, self._slept_s = int((slept_s - self._slept_s) * 1e6), slept_s
        if self._trusted_us is not None and more_us:
            # The wall clocks have gone on, while the monotonic one, which offsets are counted from, stood still.
            self._trusted_us += more_us
            self._witnesses = {
                name: replace(each, measure=each.measure._replace(offset_us=each.measure.offset_us + more_us))
                for name, each in self._witnesses.items()
            }

    def follows(self, now: Moment) -> bool:
        """Whether the wall clock goes as it did at the last look, and is believed: then it is the time for commits."""
        trusted_us = self._trusted_us
        if trusted_us is None or self._jumped_us is not None or self.unfit:
            return False
        return -_FOLLOWED_US < now.wall_us - int(now.monotonic_s * 1e6) - trusted_us < _FOLLOWED_US

    def look(self, now: Moment) -> int:
        """Judge the wall clock, and return the time for a commit now, in microseconds UTC."""
        monotonic_us = int(now.monotonic_s * 1e6)
        wall_us = self._wall_us = now.wall_us - monotonic_us
        if self._trusted_us is None:
            self._trusted_us = wall_us
        if abs(wall_us - self._trusted_us) <= self._bound_us:
            self._jumped_us, self._jumped_s = None, float("-inf")
        elif self._jumped_us is None or abs(wall_us - self._jumped_us) > self._bound_us:
            # A jump away from one that is not believed yet has to last by itself.
            self._jumped_us, self._jumped_s = wall_us, now.monotonic_s
            self.jumps += 1
            self.last_jump_s = (wall_us - self._trusted_us) / 1e6
        verdict = self._verdict(now.monotonic_s, self._trusted_us)
        if verdict is _Verdict.OFF and not self.unfit:
            self.unfit, self.unfit_since_s = True, now.monotonic_s
        elif verdict is _Verdict.WITHIN:
            self.unfit = False
        lasts = self._jumped_us is None or now.monotonic_s - self._jumped_s >= self._settle_s
        if verdict is _Verdict.WITHIN or (verdict is _Verdict.UNKNOWN and not self.unfit and lasts):
            self._trusted_us, self._jumped_us, self._jumped_s = wall_us, None, float("-inf")
        return self._trusted_us + monotonic_us

    def _verdict(self, now_s: float, trusted_us: int) -> _Verdict:
        told = [each.measure for each in self._witnesses.values() if self._counts(each, now_s)]
        if 2 * self._agreeing(told, self._wall_us) > len(told):
            return _Verdict.WITHIN
        # What was measured before the wall clock jumped can only speak for it, as when it was wrong for a moment and is
        # right again: on one machine all clocks jump together, and an earlier measure of them would speak against all.
        since = [measure for measure in told if measure.at_s > self._jumped_s]
        if since:
            return _Verdict.OFF if 2 * self._agreeing(since, self._wall_us) < len(since) else _Verdict.WITHIN
        # But it speaks against the time that is believed instead, which has not jumped.
        return _Verdict.OFF if 2 * self._agreeing(told, trusted_us) < len(told) else _Verdict.UNKNOWN

    def _agreeing(self, measures: Sequence[PeerClock], offset_us: int) -> int:
        # Once it is unfit it has to come well within the bound, or it would be so by turns.
        bound_us = self._bound_us / 2 if self.unfit else self._bound_us
        return sum(abs(offset_us - measure.offset_us) - measure.within_us <= bound_us for measure in measures)

    def _counts(self, witness: _Witness, now_s: float) -> bool:
        """Whether a clock was measured lately, and has not jumped itself for `settle_s`."""
        measure = witness.measure
        return now_s - measure.at_s <= FRESH_S and measure.at_s - witness.since_s >= self._settle_s

    # ------------------------------------------------------------------ what is told

    def skews_s(self, now_s: float) -> dict[StorageId, float]:
        """Return by storage node how far its clock is ahead of this one's, in seconds, as measured lately."""
        return {
            name: (each.measure.offset_us - self._wall_us) / 1e6
            for name, each in self._witnesses.items()
            if now_s - each.measure.at_s <= FRESH_S
        }

    @property
    def jumped_s(self) -> float:
        """How far the wall clock is ahead of the time that is believed, in seconds; 0 while it is believed itself."""
        held = self._trusted_us is not None and (self._jumped_us is not None or self.unfit)
        return (self._wall_us - (self._trusted_us or 0)) / 1e6 if held else 0.0

    def trouble(self, now_s: float) -> str:
        """Return what is wrong with this clock, or with a storage node's; empty if nothing is."""
        bound_s = self._bound_us / 1e6
        skews = {name: skew for name, skew in sorted(self.skews_s(now_s).items()) if abs(skew) > bound_s}
        others = ", ".join(f"{clock_words(-skew)} {name}" for name, skew in skews.items())
        if self.unfit:
            return (
                f"the clock of this server is off by more than {bound_s:g} s from those of a majority of the storage "
                f"nodes ({others or 'as they were measured last'}): it starts no session until the clock is set right "
                "(NTP)"
            )
        if self._jumped_us is not None:
            return (
                f"the clock of this server has jumped, and is {clock_words(self.jumped_s)} the time before: no other "
                f"clock confirms it, so commit times go on as before until it has lasted for {self._settle_s:g} s"
            )
        if skews:
            return f"clocks differ by more than {bound_s:g} s: this server is {others}: set the clocks (NTP)"
        return ""
