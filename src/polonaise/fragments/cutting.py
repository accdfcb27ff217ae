"""Cut a partition's fragments at an id: what lies above it was given up, and is moved aside within the store.

What lies below in the same fragments may be the only copy of it: storage nodes that were trimmed have dropped it.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, NamedTuple

from polonaise.errors import BadOption, FragmentDamaged, NotFound, UnsupportedFormat
from polonaise.fragments.format import batches_in
from polonaise.fragments.mark import MARK, unmarked
from polonaise.fragments.objects import ArchivedFragment, fragments_of, of_fragment, open_bytes, write_fragments
from polonaise.fragments.protocol.coverage import Span, cover
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.store import ObjectStore
from polonaise.log.batch import Batch
from polonaise.terms import PartitionId, TransactionId

GIVEN_UP: Final = "_given-up/"
"""The prefix under which fragments are kept that are of the log no more. Readers of Parquet pass over it."""


class FragmentsCut(NamedTuple):
    """The result of a cut."""

    written: tuple[ArchivedFragment, ...]
    """The fragments that hold, from then on, what those that were moved held up to the id."""
    moved: tuple[FragmentName, ...]
    """The fragments that reached above the id, and are kept under `GIVEN_UP`."""


class GivenUp(NamedTuple):
    ids: Span
    everything: bool
    """Whether the store has nothing of the partition after that."""


async def given_up_by_cut(store: ObjectStore, partition: PartitionId, last: TransactionId) -> GivenUp | None:
    """Return the ids of a partition's fragments above `last`, by their names; None if there are none."""
    listed = await fragments_of(store, partition)
    above = [name for name in listed if name.last > last]
    if not above:
        return None
    first = min(name.first for name in above)
    return GivenUp(Span(max(first, last + 1), max(name.last for name in above)), all(n.first > last for n in listed))


async def cut_fragments(store: ObjectStore, partition: PartitionId, last: TransactionId) -> FragmentsCut:
    """End a partition's fragments at `last`: those that reach above it are moved under `GIVEN_UP`.

    What they hold up to `last` is written as fragments of its own first, and verified. Nothing is deleted of which the
    store has no other copy. May be killed, and is then to be repeated.

    Raises, with nothing moved: `BadOption` for an id within a batch, `NotFound` for a store without a mark,
    `FragmentDamaged` or `UnsupportedFormat` for a fragment that can't be read, and whose ids up to `last` no other one
    holds; and what the store raises.
    """
    try:
        await store.get(MARK)
    except NotFound as error:
        raise unmarked(store) from error
    listed = await fragments_of(store, partition)
    above = [name for name in listed if name.last > last]
    staying = [name for name in listed if name.last <= last]
    written: list[ArchivedFragment] = []
    failed: list[tuple[FragmentName, FragmentDamaged | UnsupportedFormat]] = []
    for name in above:
        if name.first > last:
            continue
        # Each, also where others hold the same ids: of two that contradict each other, only the log tells which it
        # goes on from.
        try:
            written.append(await _written(store, name, last))
        except (FragmentDamaged, UnsupportedFormat) as error:
            failed.append((name, error))
    for name, damage in failed:
        if cover([*staying, *(each.fragment for each in written)], Span(name.first, last)).holes:
            raise damage
    for name in above:
        await _move(store, name)
    return FragmentsCut(tuple(written), tuple(above))


async def _written(store: ObjectStore, name: FragmentName, last: TransactionId) -> ArchivedFragment:
    raw = await store.get(name.path)
    key = open_bytes(raw, name).cluster_key
    async with aclosing(write_fragments(store, key, _up_to(raw, name, last), fragment_bytes=sys.maxsize)) as writing:
        return await anext(writing)


async def _up_to(raw: bytes, name: FragmentName, last: TransactionId) -> AsyncGenerator[Batch, None]:
    """Yield the batches of a fragment that end at or below `last`. Raises `BadOption` unless one ends there."""
    with of_fragment(name):
        for each in batches_in(raw):
            batch = Batch.parse(each)
            if batch.first > last:
                return
            if batch.last > last:
                raise BadOption(
                    f"partition {name.partition} can't be cut at {last}: in {name.path} no batch ends there, and "
                    f"batches are kept whole. The ids {batch.first} to {batch.last} are one: choose {batch.first - 1} "
                    f"or {batch.last}. Do not move that fragment out of the store, as it may have the only copy of "
                    "what lies below; but if polonaise archive verify says that others contradict it, find out first "
                    "which of them is of another life of the log: that one is to be moved"
                )
            yield batch


async def _move(store: ObjectStore, name: FragmentName) -> None:
    """Move a fragment under `GIVEN_UP`. Raises `FragmentDamaged` if the copy there does not read back as it."""
    raw, kept = await store.get(name.path), GIVEN_UP + name.path
    await store.put_if_absent(kept, raw)
    if not await store.holds(kept, raw):
        raise FragmentDamaged(f"{kept} does not read back as {name.path}: remove {kept}, and repeat the command")
    await store.delete(name.path)
