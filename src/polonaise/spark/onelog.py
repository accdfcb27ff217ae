"""Whether a store's fragments of a partition are of one log, for queries: they choose fragments by names alone.

Names do not tell a life of a log that was given up, such as by a reset of its head, from the one that goes on. Where
two fragments share ids, or one begins where the other ends, the batches in them tell whether both are of one life.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from polonaise.errors import FragmentDamaged, HistoryIncomplete, NotFound, UnsupportedFormat
from polonaise.fragments.agreement import MOVE_OUT, FragmentFacts, beside_each, contradictions, ids_to_compare
from polonaise.fragments.objects import looked_at
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.store import ObstoreStore
from polonaise.spark import clusters

_READING_MAX: Final = 16
"""How many fragments are looked at at a time."""
_TOLD_MAX: Final = 3
"""How many contradictions an error names."""

_Pair: TypeAlias = tuple[FragmentName, FragmentName]

_agreeing: dict[str, frozenset[_Pair]] = {}
"""By a partition's folder in a store, the pairs of its fragments that were found to be of one log.

A name holds the digest of what it names, so that a pair is compared once in the life of a process.
"""


class OneLog:
    """The fragments of one partition in a store, by one listing: `check` compares those that have to agree."""

    def __init__(self, store: ObstoreStore, sizes: Mapping[FragmentName, int]) -> None:
        """`sizes` are the partition's fragments, with their sizes in bytes."""
        self._store = store
        self._sizes = sizes
        self._pairs = [(name, other) for name, others in beside_each(sizes).items() for other in others if name < other]

    def check(self, cluster_key: bytes | None, read: Collection[FragmentName] = ()) -> None:
        """Raise `HistoryIncomplete`, with their names, if fragments are not of one log.

        Compares all that overlap, and those of `read` with what begins or ends right beside them. Only for pairs that
        this process has not compared yet anything is read: a little of each fragment. One that can't be read, or that
        has another cluster key, proves nothing about others; a task that is to read it refuses it.
        """
        if not self._pairs:
            return
        folder = f"{self._store}/{self._pairs[0][0].partition}"
        known = _agreeing.get(folder, frozenset())
        due = {
            (name, other) for name, other in self._pairs if other.first <= name.last or name in read or other in read
        }
        due -= known
        if not due:
            return
        names = {name for pair in due for name in pair}
        facts = [each for each in clusters.wait(lambda: self._looked_at(names)) if _is_of(each, cluster_key)]
        if wrong := contradictions(facts):
            told = "; ".join(each.what for each in wrong[:_TOLD_MAX])
            more = f" (and {len(wrong) - _TOLD_MAX} more)" if len(wrong) > _TOLD_MAX else ""
            raise HistoryIncomplete(
                f"the fragments in {self._store} are not of one log: {told}{more}: {MOVE_OUT}; polonaise archive "
                "verify STORE names all"
            )
        good = {each.name for each in facts}
        found = {pair for pair in due if good.issuperset(pair)}
        _agreeing[folder] = frozenset(
            pair for pair in (*known, *found) if pair[0] in self._sizes and pair[1] in self._sizes
        )

    async def _looked_at(self, names: Iterable[FragmentName]) -> Sequence[FragmentFacts]:
        """Return what is to be compared of these fragments, but for those that can't be read."""
        ids = ids_to_compare(names)
        limit = asyncio.Semaphore(_READING_MAX)

        async def look(name: FragmentName) -> FragmentFacts | None:
            async with limit:
                try:
                    return await looked_at(self._store, name, self._sizes[name], ids[name])
                except (FragmentDamaged, UnsupportedFormat, NotFound):
                    return None

        return [facts for facts in await asyncio.gather(*map(look, ids)) if facts is not None]


def _is_of(facts: FragmentFacts, cluster_key: bytes | None) -> bool:
    return cluster_key is None or facts.footer.cluster_key == cluster_key
