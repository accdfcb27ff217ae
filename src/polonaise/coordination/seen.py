"""The decision whether what the coordinator holds is believed, by what this process has seen there."""

from __future__ import annotations

from typing import Final, NamedTuple

from polonaise.coordination.backend import Entry
from polonaise.coordination.values import DESCRIPTION, CoordinatorValue, PartitionValue, made_again
from polonaise.terms import NO_SESSION, SessionId

CALM_S: Final = 5.0
"""For so long a process changes nothing after what it had seen is back: longer than a server that doubts takes to look
again, so that each finds its values as it knew them. Where processes find the coordinator again one by one, that time
comes on top (`Backend.found_again_s`)."""


class SeenValue(NamedTuple):
    """An entry that this process has read or written, and its decoded value."""

    entry: Entry
    value: CoordinatorValue


class SeenValues:
    """Keeps the latest entry of each value that this process knows, and which of them the coordinator has lost since.

    A value that is of an earlier version than before, or can't have followed from what was there, shows that the
    coordinator was put back to an older state. Changes that are made there raise versions past any that was seen. So
    the value stays *doubted*, and with it the whole coordinator, until the very entry is back that was known; a later
    one does not prove that. Values that were made again, all of them at once, have versions far above the lost ones and
    end every doubt.

    A partition's replicas may prove the same, to a process that has seen nothing later. Then all that it knows may be
    of the older state, and is held against nothing until the partition's value is one of which the replicas can know.

    What is read while any is doubted does not count as known. What this process has not seen it can't miss.
    """

    def __init__(self, calm_s: float) -> None:
        self._calm_s = calm_s
        self._known: dict[str, SeenValue] = {}
        self._doubted: set[str] = set()
        self._proved: dict[str, SessionId] = {}
        self._calm_until_s = float("-inf")

    def known(self, key: str) -> SeenValue | None:
        return self._known.get(key)

    def version(self, key: str) -> int:
        """Return the latest known version of a value; -1 for none."""
        known = self._known.get(key)
        return -1 if known is None else known.entry.version

    @property
    def doubted(self) -> list[str]:
        """The values to look at before anything is believed; the description shows that all were made again."""
        return sorted({*self._doubted, DESCRIPTION}, key=lambda key: (key != DESCRIPTION, key)) if self._doubted else []

    def calm_s(self, now_s: float) -> float:
        """Return for how many seconds this process changes nothing yet; 0 if it may."""
        return max(0.0, self._calm_until_s - now_s)

    @property
    def proved(self) -> dict[str, SessionId]:
        """By the value's key a session that a partition's replicas know, and the coordinator did not."""
        return dict(self._proved)

    def prove_older(self, key: str, session: SessionId) -> None:
        self._proved[key] = max(session, self._proved.get(key, session))

    def _is_evidence(self, key: str) -> bool:
        """Whether what is known of this value is of the latest state, as far as this process can tell."""
        return not self._proved or key in self._doubted

    def went_back(self, key: str, version: int, floor: int) -> bool:
        """Whether this version is older than the one known when it was asked for (`floor`); then doubt it. One that has
        become known since is no measure: answers may overtake each other."""
        if version >= floor or not self._is_evidence(key):
            return False
        self._doubted.add(key)
        return True

    def is_as_known(self, key: str, entry: Entry, now_s: float) -> bool:
        """Whether this is the very entry that was known, and doubt the value no more then."""
        known = self._known.get(key)
        if known is None or known.entry != entry:
            return False
        if key in self._doubted:
            self._doubted.remove(key)
            self._be_calm(now_s)
        return True

    def _be_calm(self, now_s: float) -> None:
        if not self.doubted:
            self._calm_until_s = now_s + self._calm_s

    def follows(self, key: str, entry: Entry, value: CoordinatorValue, now_s: float) -> bool:
        """Whether an entry may be of the same history as what is known; else doubt the value. One of an earlier version
        may be: it was asked for before (`went_back`). So may the very entry that is known: what this process has
        written may have been read before the answer to the change is here."""
        if key in self._proved and isinstance(value, PartitionValue):
            self._look_at_proof(key, value, now_s)
        if not self._is_evidence(key):
            return True
        known = self._known.get(key)
        if known is None or entry == known.entry or entry.version < known.entry.version:
            return True
        if made_again(known.entry.version, entry.version):
            self._doubted.clear()
            self._proved.clear()
            return True
        if entry.version == known.entry.version or key in self._doubted or not value.may_follow(known.value):
            self._doubted.add(key)
            return False
        return True

    def _look_at_proof(self, key: str, value: PartitionValue, now_s: float) -> None:
        """End the proof if the value knows of its session, and then hold nothing that is known against what is read. A
        mark says that it is still the older value, whose later sessions were all tried in vain."""
        if value.outdated == NO_SESSION and value.session >= self._proved[key]:
            del self._proved[key]
            if not self._proved:
                self._known = {each: known for each, known in self._known.items() if each in self._doubted}
                self._be_calm(now_s)

    def remember(self, key: str, entry: Entry, value: CoordinatorValue) -> None:
        """Keep the entry and its value, unless a later one is known, or a value is doubted."""
        if not self._doubted and (self._proved or self.version(key) <= entry.version):
            self._known[key] = SeenValue(entry, value)

    def forget(self) -> None:
        self._known.clear()
        self._doubted.clear()
        self._proved.clear()
