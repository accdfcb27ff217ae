"""Which fragment is read through next, and when: what rots in a store is found while the log can still mend it.

Every fragment is read again and again, in rounds, at a bounded rate. One that was found damaged and could not be
repaired is looked at again sooner: an operator may have restored it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

from polonaise.fragments.protocol.names import FragmentName
from polonaise.terms import PartitionId

DAMAGES_MAX: Final = 100
"""So many findings are remembered, the latest ones."""
_RESTORED: Final = 10
"""A fragment that only an operator can restore is looked at again after so many times the wait for what may pass."""
_ROUND_S_MIN: Final = 1.0
"""From the beginning of a round to that of the next one at least: there may be nothing to read."""


class FragmentDamage(NamedTuple):
    """A fragment that was not as it was written when the scrub came by."""

    partition: PartitionId
    path: str
    what: str
    found_us: int
    repaired_us: int = 0
    """When it was as it was written again; 0 while it is not."""
    why: str = ""
    """What keeps it from being repaired, and what to do; empty while nothing is known to."""


@dataclass(frozen=True, slots=True)
class FragmentsScrubbed:
    """How far the scrub of a store is, and what it found. Times are wall-clock µs; 0 for never."""

    rounds: int = 0
    """Rounds that have ended."""
    fragments: int = 0
    """Fragments that the present round, or the last one, is done with."""
    fragments_of: int = 0
    bytes: int = 0
    """Bytes that the present round, or the last one, has read."""
    started_us: int = 0
    finished_us: int = 0
    found: int = 0
    """Fragments found damaged since the server started."""
    repaired: int = 0
    damages: tuple[FragmentDamage, ...] = ()
    trouble: str = ""
    """Why the store can't be read just now; empty while it can."""


class ListStore(NamedTuple):
    """A round begins: list what is to be read in it, and call `listed` or `unreachable`."""


class Verify(NamedTuple):
    """Read this fragment through; then call `good`, `damaged`, `gone`, `unreadable` or `unreachable`."""

    name: FragmentName
    size: int


class Pause(NamedTuple):
    """Do nothing for so long, and ask again."""

    seconds: float


Step: TypeAlias = ListStore | Verify | Pause


class FragmentScrub:
    """The decisions. Times are monotonic seconds unless they say otherwise."""

    __slots__ = ("_again", "_again_s", "_bytes_per_s", "_every_s", "_next_s", "_round_s", "_waiting", "scrubbed")

    def __init__(self, bytes_per_s: int, every_s: float, first_s: float, again_s: float = 60.0) -> None:
        """Rounds begin `every_s` after each other at the earliest, the first one at `first_s`.

        After `again_s` is tried again what may pass: a store that does not answer, a partition that is not ready.
        """
        self._bytes_per_s = bytes_per_s
        self._every_s = max(every_s, _ROUND_S_MIN)
        self._again_s = again_s
        self._round_s = first_s
        """When the next round may begin."""
        self._next_s = first_s
        """When anything may be read next."""
        self._waiting: deque[Verify] = deque()
        """What this round has still to read; the first of them is being read."""
        self._again: dict[FragmentName, tuple[float, Verify]] = {}
        """What is to be looked at again outside of a round, and when."""
        self.scrubbed = FragmentsScrubbed()

    def next(self, now_s: float) -> Step:
        """What to do now."""
        if now_s < self._next_s:
            return Pause(self._next_s - now_s)
        for due_s, verify in self._again.values():
            if due_s <= now_s:
                return verify
        if self._waiting:
            return self._waiting[0]
        if now_s >= self._round_s:
            return ListStore()
        return Pause(min([self._round_s, *(due_s for due_s, _ in self._again.values())]) - now_s)

    def listed(self, now_s: float, wall_us: int, fragments: Mapping[FragmentName, int]) -> None:
        """The round is about these, and how many bytes each has. What is not there any more is no damage."""
        self._round_s = now_s + self._every_s
        self._waiting = deque(Verify(name, size) for name, size in sorted(fragments.items()))
        there = {name.path for name in fragments}
        damages = tuple(each for each in self.scrubbed.damages if each.repaired_us or each.path in there)
        self._again = {name: again for name, again in self._again.items() if name in fragments}
        self.scrubbed = replace(
            self.scrubbed, fragments=0, fragments_of=len(fragments), bytes=0, started_us=wall_us, damages=damages,
            trouble="",
        )  # fmt: skip
        self._end_round(wall_us)

    def pace(self, now_s: float, bytes_read: int) -> float:
        """So many bytes were read: how many seconds to wait before more are."""
        self.scrubbed = replace(self.scrubbed, bytes=self.scrubbed.bytes + bytes_read, trouble="")
        self._next_s = max(self._next_s, now_s) + bytes_read / self._bytes_per_s
        return self._next_s - now_s

    def good(self, wall_us: int, name: FragmentName) -> None:
        """It is as it was written, also if it was found damaged before: then somebody has restored it."""
        self._mended(wall_us, name)
        self._done(wall_us, name)

    def gone(self, wall_us: int, name: FragmentName) -> None:
        """It is not there any more, or no concern of this server's."""
        kept = tuple(each for each in self.scrubbed.damages if each.repaired_us or each.path != name.path)
        self.scrubbed = replace(self.scrubbed, damages=kept)
        self._done(wall_us, name)

    def damaged(self, wall_us: int, name: FragmentName, what: str) -> None:
        """It is not as it was written. Call `repaired` or `not_repaired` next."""
        if self._is_known(name):
            return
        kept = (*self.scrubbed.damages, FragmentDamage(name.partition, name.path, what, wall_us))[-DAMAGES_MAX:]
        self.scrubbed = replace(self.scrubbed, found=self.scrubbed.found + 1, damages=kept)

    def repaired(self, wall_us: int, name: FragmentName) -> None:
        """It was written again, and read back."""
        self._mended(wall_us, name)
        self._done(wall_us, name)

    def not_repaired(self, now_s: float, wall_us: int, verify: Verify, why: str, *, passing: bool) -> None:
        """It could not be written again: `passing` if that may go better by itself. It is looked at again soon."""
        name = verify.name
        self._change(name, why=why)
        self._done(wall_us, name)
        self._again[name] = now_s + self._again_s * (1 if passing else _RESTORED), verify

    def unreadable(self, now_s: float, wall_us: int, verify: Verify, why: str) -> None:
        """It can't be read although the store answers. It is tried again in a while, and the others are read."""
        self.damaged(wall_us, verify.name, f"{verify.name.path} is listed and not given out")
        self.not_repaired(now_s, wall_us, verify, why, passing=True)

    def unreachable(self, now_s: float, why: str) -> None:
        """The store can't be read: nothing is known of any fragment by that. The same is tried again in a while."""
        self.scrubbed = replace(self.scrubbed, trouble=why)
        self._next_s = now_s + self._again_s

    def _is_known(self, name: FragmentName) -> bool:
        return any(each.path == name.path and not each.repaired_us for each in self.scrubbed.damages)

    def _mended(self, wall_us: int, name: FragmentName) -> None:
        if self._is_known(name):
            self._change(name, repaired_us=wall_us, why="")
            self.scrubbed = replace(self.scrubbed, repaired=self.scrubbed.repaired + 1)

    def _change(self, name: FragmentName, *, why: str, repaired_us: int = 0) -> None:
        damages = tuple(
            each._replace(why=why, repaired_us=repaired_us) if each.path == name.path and not each.repaired_us else each
            for each in self.scrubbed.damages
        )
        self.scrubbed = replace(self.scrubbed, damages=damages)

    def _done(self, wall_us: int, name: FragmentName) -> None:
        self._again.pop(name, None)
        if self._waiting and self._waiting[0].name == name:
            self._waiting.popleft()
            self.scrubbed = replace(self.scrubbed, fragments=self.scrubbed.fragments + 1)
            self._end_round(wall_us)

    def _end_round(self, wall_us: int) -> None:
        if not self._waiting:
            self.scrubbed = replace(self.scrubbed, rounds=self.scrubbed.rounds + 1, finished_us=wall_us)
