"""Mutations of what keeps commit times near the true time."""

from __future__ import annotations

from typing import Final

from polonaise_proving.mutations.mutation import Mutation

_CLOCK: Final = "polonaise.server.protocol.commitclock"

CLOCK_MUTATIONS: Final[dict[str, Mutation]] = {
    "jumped-clock-believed": Mutation(
        _CLOCK,
        "        lasts = self._jumped_us is None or now.monotonic_s - self._jumped_s >= self._settle_s\n",
        "        lasts = True\n",
        "P3: a clock that jumps ahead stamps commits before another clock has confirmed it",
        seed=34,
    ),
    "earlier-measures-not-heard": Mutation(
        _CLOCK,
        "        if 2 * self._agreeing(told, self._wall_us) > len(told):\n",
        "        if False:\n",
        "P11: a server whose clock was wrong only when it began starts no session until it has asked others once more",
        test="tests/server/protocol/test_commit_clock.py"
        "::test_a_clock_that_was_wrong_only_at_its_first_look_is_right_as_soon_as_storage_nodes_have_said_so[58.0]",
    ),
    "believed-time-not-compared": Mutation(
        _CLOCK,
        "        return _Verdict.OFF if 2 * self._agreeing(told, trusted_us) < len(told) else _Verdict.UNKNOWN\n",
        "        return _Verdict.UNKNOWN\n",
        "P3: a server that began with a wrong clock, which has jumped since, orders by the time of its beginning",
        seed=130000254,
    ),
    "clock-bound-not-checked": Mutation(
        _CLOCK,
        "return _Verdict.OFF if 2 * self._agreeing(since, self._wall_us) < len(since) else _Verdict.WITHIN\n",
        "return _Verdict.WITHIN\n",
        "P3: an owner whose clock is off from all others goes by it",
        seed=34,
    ),
    "session-starts-by-a-wrong-clock": Mutation(
        "polonaise.server.sessionstart",
        "        self._shared.clock.check()\n",
        "",
        "P3: a server that was started with a wrong clock begins to order by it",
        seed=156,
    ),
    "jump-seen-a-tick-late": Mutation(
        _CLOCK,
        "        return -_FOLLOWED_US < now.wall_us - int(now.monotonic_s * 1e6) - trusted_us < _FOLLOWED_US\n",
        "        return True\n",
        "P3: a clock that was right once is not looked at again when a batch is ordered",
        seed=34,
    ),
}
