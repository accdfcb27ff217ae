"""The decisions for how long a silent ZooKeeper server is waited for, and which of several is asked next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

_GAIN: Final = 1 / 8
_SPREAD_GAIN: Final = 1 / 4
_SPREADS: Final = 4
"""The weights of a new sample in the mean and in the spread, and how many spreads above the mean are waited for, as in
TCP (RFC 6298)."""


class AnswerPatience:
    """How long an answer is waited for: a short time at first, longer where answers are seen to take longer. A server
    that has died without a word must be left soon, and one that is slow not each time: the next would be as slow."""

    def __init__(self, least_s: float, most_s: float) -> None:
        self._least_s = least_s
        self._most_s = max(least_s, most_s)
        self._mean_s = 0.0
        self._spread_s = 0.0
        self.seconds = least_s

    def answered(self, took_s: float) -> None:
        self._spread_s += _SPREAD_GAIN * (abs(took_s - self._mean_s) - self._spread_s)
        self._mean_s += _GAIN * (took_s - self._mean_s)
        self.seconds = min(max(self._mean_s + _SPREADS * self._spread_s, self._least_s), self._most_s)

    def gave_up(self) -> None:
        """Note that no answer came within `seconds`: it would have taken longer, nobody knows how long."""
        self.answered(2 * self.seconds)


class _Silence(NamedTuple):
    times: int
    until_s: float


class HostTrials:
    """Says in which order servers are tried: one that was silent is left out for a while, if others are at work. One
    that ends connections at once, as all do until they have elected a leader, costs hardly any time, and is tried again
    and again meanwhile."""

    LEFT_OUT_S: Final = 4.0
    """For how long at first; doubled each time, up to the next."""
    LEFT_OUT_S_MAX: Final = 30.0

    def __init__(self) -> None:
        self._silent: dict[str, _Silence] = {}
        self._down: set[str] = set()
        """Those to which no connection could be made: nobody listens, or TLS fails."""

    def order(self, servers: Sequence[str], now_s: float) -> list[str]:
        """Return the servers to try now, in this order; all of them if none is at work."""
        self._silent = {server: silence for server, silence in self._silent.items() if server in servers}
        self._down.intersection_update(servers)
        due = [server for server in servers if self._until_s(server) <= now_s]
        if self._down.issuperset(due):
            due += sorted(({*servers} - {*due}), key=self._until_s)
        return due

    def silent(self, server: str, now_s: float) -> None:
        self._down.discard(server)
        times = self._silent[server].times + 1 if server in self._silent else 1
        left_out_s = min(self.LEFT_OUT_S * 2 ** (times - 1), self.LEFT_OUT_S_MAX)
        self._silent[server] = _Silence(times, now_s + left_out_s)

    def spoke(self, server: str) -> None:
        """Note that a server took a connection and said something, or ended it."""
        self._silent.pop(server, None)
        self._down.discard(server)

    def refused(self, server: str) -> None:
        """Note that no connection to a server could be made, which took no time."""
        self._silent.pop(server, None)
        self._down.add(server)

    def _until_s(self, server: str) -> float:
        return self._silent[server].until_s if server in self._silent else 0.0
