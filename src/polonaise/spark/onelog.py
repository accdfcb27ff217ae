"""Whether a store's fragments of a partition are of one log, for queries: they choose fragments by names alone.

Names do not tell a life of a log that was given up, such as by a reset of its head, from the one that goes on. Where
two fragments share ids, or meet, the batches in them tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from polonaise.errors import FragmentDamaged, NotFound, PolonaiseError, UnsupportedFormat, fault
from polonaise.fragments.agreement import MOVE_OUT, FragmentFacts, beside_each, contradictions, ids_to_compare
from polonaise.fragments.objects import looked_at
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.store import ObstoreStore
from polonaise.spark import clusters
from polonaise.terms import PartitionId

_READING_MAX: Final = 16
_TOLD_MAX: Final = 3

_KEPT_MAX: Final = 256
"""The number of partitions of stores of which a process keeps what it has compared."""

_Pair: TypeAlias = tuple[FragmentName, FragmentName]

_kept: dict[str, OneLog] = {}
"""By a partition's folder in a store, what this process has compared there."""


def one_log(store: ObstoreStore, partition: PartitionId, sizes: Mapping[FragmentName, int]) -> OneLog:
    """Return what is known of a partition's fragments; `sizes` are all that the store has now, with sizes in bytes."""
    folder = f"{store}/{partition}"
    kept = _kept.pop(folder, None)
    if kept is None or kept.store is not store or kept.sizes != sizes:
        kept = OneLog(store, sizes, () if kept is None else kept.agreeing)
    while len(_kept) >= _KEPT_MAX:
        _kept.pop(next(iter(_kept)), None)
    _kept[folder] = kept
    return kept


class OneLog:
    """The fragments of one partition in a store, by one listing: `check` compares those that have to agree."""

    def __init__(
        self, store: ObstoreStore, sizes: Mapping[FragmentName, int], agreeing: Collection[_Pair] = ()
    ) -> None:
        """`agreeing` are pairs that were compared, by whatever listing: a name holds the digest of what it names."""
        self.store = store
        self.sizes = sizes
        self.agreeing = {pair for pair in agreeing if pair[0] in sizes and pair[1] in sizes}
        self._beside = beside_each(sizes)
        self._overlapping = {
            (name, other)
            for name, others in self._beside.items()
            for other in others
            if name < other and other.first <= name.last
        }

    def check(self, cluster_key: bytes | None, read: Iterable[FragmentName] = ()) -> None:
        """Raise `history_incomplete`, with their names, if fragments are not of one log.

        Compares all that overlap, and those of `read` with their neighbours, unless they were compared before. Raises
        `FragmentDamaged` or `UnsupportedFormat` for one that can't be read and overlaps another. One that has another
        cluster key proves nothing about others; a task that is to read it refuses it.
        """
        meeting = ((min(name, other), max(name, other)) for name in read for other in self._beside[name])
        due = {each for each in (*self._overlapping, *meeting) if each not in self.agreeing}
        if not due:
            return
        names = {name for each in due for name in each}
        found = clusters.wait(lambda: self._looked_at(names))
        facts = [each for each in found.facts if _is_of(each, cluster_key)]
        if wrong := contradictions(facts):
            told = "; ".join(each.what for each in wrong[:_TOLD_MAX])
            more = f" (and {len(wrong) - _TOLD_MAX} more)" if len(wrong) > _TOLD_MAX else ""
            raise fault(
                "history_incomplete",
                f"the fragments in {self.store} are not of one log: {told}{more}: {MOVE_OUT}; polonaise archive "
                "verify STORE names all",
            )
        for each in due & self._overlapping:
            for bad, other in (each, each[::-1]):
                if error := found.bad.get(bad):
                    raise type(error)(
                        f"{error.text}. It overlaps {other.path}, and may be of the log in place of that one"
                    )
        good = {each.name for each in facts}
        # Another set: a thread may be reading this one.
        self.agreeing = self.agreeing | {each for each in due if good.issuperset(each)}

    async def _looked_at(self, names: Iterable[FragmentName]) -> _LookedAt:
        ids = ids_to_compare(names)
        limit = asyncio.Semaphore(_READING_MAX)
        found = _LookedAt([], {})

        async def look(name: FragmentName) -> None:
            async with limit:
                try:
                    found.facts.append(await looked_at(self.store, name, self.sizes[name], ids[name]))
                except NotFound:
                    pass
                except (FragmentDamaged, UnsupportedFormat) as error:
                    found.bad[name] = error

        await asyncio.gather(*map(look, ids))
        return found


class _LookedAt(NamedTuple):
    """What is to be compared of fragments, and what is wrong with those that can't be read."""

    facts: list[FragmentFacts]
    bad: dict[FragmentName, PolonaiseError]


def _is_of(facts: FragmentFacts, cluster_key: bytes | None) -> bool:
    return cluster_key is None or facts.footer.cluster_key == cluster_key
