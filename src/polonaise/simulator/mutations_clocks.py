"""Mutations of what keeps commit times near the true time."""

from __future__ import annotations

from typing import Final

from polonaise.simulator.mutation import Mutation

_CLOCK: Final = "polonaise.server.protocol.commitclock"

CLOCK_MUTATIONS: Final[dict[str, Mutation]] = {
    "jumped-clock-believed": Mutation(
        _CLOCK,
        "        lasts = self._jumped_us is None or now.monotonic_s - self._jumped_s >= self._settle_s\n",
        "        lasts = True\n",
        "P3: a clock that jumps ahead stamps commits before another clock has confirmed it",
    ),
    "earlier-measures-not-heard": Mutation(
        _CLOCK,
        "        if 2 * sum(within for _, within in told) > len(told):\n",
        "        if False:\n",
        "P3: a clock that was wrong only when its server began stamps commits after others have told the true time",
    ),
    "clock-bound-not-checked": Mutation(
        _CLOCK,
        "        return _Verdict.OFF if 2 * sum(since) < len(since) else _Verdict.WITHIN\n",
        "        return _Verdict.WITHIN\n",
        "P3: an owner whose clock is off from all others goes by it",
    ),
    "session-starts-by-a-wrong-clock": Mutation(
        "polonaise.server.sessionstart",
        "        self._shared.clock.check()\n",
        "",
        "P3: a server that was started with a wrong clock begins to order by it",
    ),
    "jump-seen-a-tick-late": Mutation(
        _CLOCK,
        "        return -_FOLLOWED_US < now.wall_us - int(now.monotonic_s * 1e6) - trusted_us < _FOLLOWED_US\n",
        "        return True\n",
        "P3: a clock that was right once is not looked at again when a batch is ordered",
    ),
}
