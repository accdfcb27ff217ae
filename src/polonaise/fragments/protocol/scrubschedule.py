"""The schedule of the scrub of fragments: which one is read through next, and when.

Every fragment is read again and again, in rounds, at a bounded rate, while the log can still mend what rots. A damaged
one that could not be repaired is looked at again sooner: an operator may have restored it. One that a read could not
use counts as damaged at once, and is looked at next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

from polonaise.fragments.protocol.names import FragmentName
from polonaise.scrubrounds import DAMAGES_MAX, ScrubRounds
from polonaise.terms import PartitionId, TransactionId

_RESTORED: Final = 10
"""The factor by which `again_s` is longer for a fragment that only an operator can restore."""


class FragmentDamage(NamedTuple):
    """A fragment that was not as it was written when it was read, or that was listed and could not be read or used."""

    partition: PartitionId
    path: str
    what: str
    """What is wrong with the fragment."""
    found_us: int
    """When the damage was found, in wall-clock µs."""
    repaired_us: int = 0
    """When the fragment was found repaired or restored, in wall-clock µs; 0 while it is damaged."""
    why: str = ""
    """What keeps the fragment from being repaired, and what to do; empty while nothing is known to."""


@dataclass(frozen=True, slots=True)
class FragmentsScrubbed:
    """How far the scrub of a store is, and what it found. Times are wall-clock µs; 0 for never."""

    rounds: int = 0
    """How many rounds have ended."""
    fragments: int = 0
    """How many fragments of the latest round, which may have ended, are done."""
    fragments_of: int = 0
    """How many fragments the latest round has in all."""
    bytes: int = 0
    """How many bytes were read since the latest round began."""
    started_us: int = 0
    """When the latest round began."""
    finished_us: int = 0
    """When a round ended last."""
    found: int = 0
    """How many fragments were found damaged since the server started."""
    repaired: int = 0
    """How many of the fragments found damaged were repaired or restored: they are again as they were first written."""
    damages: tuple[FragmentDamage, ...] = ()
    """The damages found last, at most `DAMAGES_MAX`, oldest first."""
    trouble: str = ""
    """Why the store can't be read at the moment; empty while it can."""


class ListStore(NamedTuple):
    """Begin a round: list what is to be read in it, and call `listed` or `unreachable`."""


class Verify(NamedTuple):
    """Read this fragment through; then call `good`, `damaged`, `gone`, `unreadable` or `unreachable`."""

    name: FragmentName
    size: int


class Pause(NamedTuple):
    """Do nothing for this many seconds, then call `next` again."""

    seconds: float


Step: TypeAlias = ListStore | Verify | Pause


class FragmentScrub:
    """Decides which fragment is read through next, and keeps which are damaged. Times are monotonic seconds unless
    their names say otherwise."""

    __slots__ = ("_again", "_again_s", "_refused", "_rounds", "_unrepaired", "scrubbed")

    def __init__(self, bytes_per_s: int, every_s: float, first_s: float, again_s: float = 60.0) -> None:
        """Read `bytes_per_s`, in rounds that begin `every_s` seconds after each other or later, the first at `first_s`.
        With 0 bytes per second there are no rounds: only what reads could not use is looked at, at any rate. After
        trouble that may pass, such as a store that does not answer, the scrub tries again in `again_s` seconds."""
        self._rounds: ScrubRounds[Verify] = ScrubRounds(bytes_per_s, every_s, first_s)
        self._again_s = again_s
        self._again: dict[FragmentName, tuple[float, Verify]] = {}
        """The fragments to read again apart from the rounds, each with the time from which that may be done."""
        self._unrepaired: set[FragmentName] = set()
        """The damaged fragments that are not repaired, also those that are no longer among the latest `damages`."""
        self._refused: dict[FragmentName, TransactionId] = {}
        """The unrepaired fragments that a read could not use, each with the id that was to be read from it."""
        self.scrubbed = FragmentsScrubbed()

    def plan_round(self, at_s: float) -> None:
        """Have the next round begin at this time. With 0 bytes per second there are none."""
        self._rounds.plan(at_s)

    @property
    def unrepaired(self) -> int:
        """The number of fragments in the store that were found damaged and are not repaired."""
        return len(self._unrepaired)

    def is_damaged(self, name: FragmentName) -> bool:
        return name in self._unrepaired

    def refused_id(self, name: FragmentName) -> TransactionId | None:
        """Return the id that a read could not get from the fragment; None if no read has said that it is damaged."""
        return self._refused.get(name)

    def next(self, now_s: float) -> Step:
        """Return what to do now."""
        rounds = self._rounds
        if now_s < rounds.free_s:
            return Pause(rounds.free_s - now_s)
        # Before the rest of the round, which may take days: an operator may have restored the fragment.
        for due_s, verify in self._again.values():
            if due_s <= now_s:
                return verify
        if rounds.next is not None:
            return rounds.next
        if now_s >= rounds.begin_s:
            return ListStore()
        return Pause(min([rounds.begin_s, *(due_s for due_s, _ in self._again.values())]) - now_s)

    def listed(self, now_s: float, wall_us: int, fragments: Mapping[FragmentName, int]) -> None:
        """Begin a round of these fragments, each with its size in bytes. Damages of others are forgotten."""
        self._rounds.begin(now_s, (Verify(name, size) for name, size in sorted(fragments.items())))
        paths = {name.path for name in fragments}
        damages = tuple(each for each in self.scrubbed.damages if each.repaired_us or each.path in paths)
        self._again = {name: again for name, again in self._again.items() if name in fragments}
        self._unrepaired &= fragments.keys()
        self._refused = {name: id for name, id in self._refused.items() if name in fragments}
        self.scrubbed = replace(
            self.scrubbed, fragments=0, fragments_of=len(fragments), bytes=0, started_us=wall_us, damages=damages,
            trouble="",
        )  # fmt: skip
        # A round without fragments is over at once.
        self._end_round(wall_us)

    def pace(self, now_s: float, bytes_read: int) -> float:
        """Note that so many bytes were read, and return how many seconds to wait before more are read."""
        self.scrubbed = replace(self.scrubbed, bytes=self.scrubbed.bytes + bytes_read, trouble="")
        self._rounds.read(now_s, bytes_read)
        return self._rounds.free_s - now_s

    def good(self, wall_us: int, name: FragmentName) -> None:
        """Note that the fragment is as it was written; if it was damaged before, it was repaired or restored."""
        if name in self._unrepaired:
            self._unrepaired.remove(name)
            self._refused.pop(name, None)
            self._change(name, repaired_us=wall_us, why="")
            self.scrubbed = replace(self.scrubbed, repaired=self.scrubbed.repaired + 1)
        self._done(wall_us, name)

    def gone(self, wall_us: int, name: FragmentName) -> None:
        """Note that the fragment does not exist any more, or is no concern of this server's."""
        damages = tuple(each for each in self.scrubbed.damages if each.repaired_us or each.path != name.path)
        self.scrubbed = replace(self.scrubbed, damages=damages)
        self._unrepaired.discard(name)
        self._refused.pop(name, None)
        self._done(wall_us, name)

    def damaged(self, wall_us: int, name: FragmentName, what: str) -> None:
        """Note that the fragment is not as it was written. Call `good` or `not_repaired` next."""
        if name in self._unrepaired:
            return
        self._unrepaired.add(name)
        damages = (*self.scrubbed.damages, FragmentDamage(name.partition, name.path, what, wall_us))[-DAMAGES_MAX:]
        self.scrubbed = replace(self.scrubbed, found=self.scrubbed.found + 1, damages=damages)

    def refused(self, now_s: float, wall_us: int, name: FragmentName, transaction: TransactionId, what: str) -> None:
        """Note that a read could not get this id from the fragment: it counts as damaged, and if new is read next."""
        self.damaged(wall_us, name, what)
        self._refused.setdefault(name, transaction)
        self._again.setdefault(name, (now_s, Verify(name, 0)))

    def not_repaired(self, now_s: float, wall_us: int, verify: Verify, why: str, *, passing: bool) -> None:
        """Note that the fragment could not be written again, and plan to read it again. In `again_s` seconds if
        `passing`, as repairing it may succeed later without an operator; else in ten times as long."""
        name = verify.name
        self._change(name, why=why)
        self._done(wall_us, name)
        self._again[name] = now_s + self._again_s * (1 if passing else _RESTORED), verify

    def unreadable(self, now_s: float, wall_us: int, verify: Verify, why: str) -> None:
        """Note that the fragment can't be read, though the store answers; it is read again in `again_s` seconds."""
        self.damaged(wall_us, verify.name, f"{verify.name.path} is listed, but can't be read")
        self.not_repaired(now_s, wall_us, verify, why, passing=True)

    def unreachable(self, now_s: float, why: str) -> None:
        """Note that the store can't be read, which says nothing of any fragment. Rests for `again_s` seconds."""
        # Everything waits, repairs too: they are written to the same store.
        self.scrubbed = replace(self.scrubbed, trouble=why)
        self._rounds.rest(now_s + self._again_s)

    def _change(self, name: FragmentName, *, why: str, repaired_us: int = 0) -> None:
        # Only of its last damage: earlier ones have been repaired, at their own times.
        damages = tuple(
            each._replace(why=why, repaired_us=repaired_us) if each.path == name.path and not each.repaired_us else each
            for each in self.scrubbed.damages
        )
        self.scrubbed = replace(self.scrubbed, damages=damages)

    def _done(self, wall_us: int, name: FragmentName) -> None:
        """Take the fragment off the round, and end the round after the last one."""
        self._again.pop(name, None)
        read = self._rounds.next
        if read is not None and read.name == name:
            self._rounds.done()
            self.scrubbed = replace(self.scrubbed, fragments=self.scrubbed.fragments + 1)
            self._end_round(wall_us)

    def _end_round(self, wall_us: int) -> None:
        if self._rounds.next is None:
            self.scrubbed = replace(self.scrubbed, rounds=self.scrubbed.rounds + 1, finished_us=wall_us)
