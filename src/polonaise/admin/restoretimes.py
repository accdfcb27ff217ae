"""Find the ids that were committed by a time in a store's fragments, and refuse where times do not tell that."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from polonaise.errors import BadOption
from polonaise.fragments.committimes import StillTime, last_at, time_of
from polonaise.fragments.protocol.coverage import FragmentRange
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.store import ObstoreStore
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId

_NEAR_US: Final = 10_000_000
"""By so many microseconds clocks may differ, which is told to nobody."""


async def ids_at(
    store: ObstoreStore,
    pieces: Mapping[PartitionId, Sequence[FragmentRange]],
    sizes: Mapping[FragmentName, int],
    time_us: int,
) -> dict[PartitionId, TransactionId]:
    """Return the last id of each partition that was committed at a time (microseconds UTC) or before; -1 for none.

    Raises `BadOption` if commit times stand still anywhere behind it. A batch was committed by a clock that was ahead
    then, and nothing says since when it was: so what is behind that time may have been committed before it. Two batches
    never have the same time else. Raises `FragmentDamaged` and what the store raises.
    """
    found: dict[PartitionId, TransactionId] = {}
    still: dict[PartitionId, StillTime] = {}
    for partition, parts in pieces.items():
        found[partition], stands_still = await asyncio.to_thread(last_at, store, parts, sizes, time_us)
        if stands_still is not None:
            still[partition] = stands_still
    if still:
        raise BadOption(_refusal(still, found))
    return found


async def check_now(
    store: ObstoreStore,
    pieces: Mapping[PartitionId, Sequence[FragmentRange]],
    sizes: Mapping[FragmentName, int],
    now_us: int,
) -> None:
    """Raise `BadOption` if the store holds what was committed after `now_us`, the time by this machine's clock.

    Then that clock is behind, or another was ahead: how long ago something was can't be told by it.
    """
    for partition, parts in pieces.items():
        if not parts:
            continue
        last = parts[-1].span.last
        newest = await asyncio.to_thread(time_of, store, parts[-1], sizes, last)
        if newest > now_us + _NEAR_US:
            raise BadOption(
                f"it is {_shown(now_us)} by the clock of this machine, and transaction {last} of partition {partition} "
                f"was committed at {_shown(newest)}: one of the clocks is wrong, so how long ago a time was is not "
                "known. Give the time itself, such as 2026-01-31T12:00:00Z"
            )


def _shown(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(sep=" ", timespec="seconds")


def _refusal(still: Mapping[PartitionId, StillTime], found: Mapping[PartitionId, TransactionId]) -> str:
    partition, (first, time_us) = next(iter(still.items()))
    others = "" if len(still) == 1 else f" (so they do in {len(still) - 1} more)"
    known = f"all up to {found[partition]} were" if found[partition] != NO_TRANSACTION else "none was surely"
    ids = ",".join(f"{number}={id}" for number, id in sorted(found.items()))
    return (
        f"partition {partition}: commit times stand still from id {first} on, at {_shown(time_us)}, because a clock "
        f"was ahead{others}: which of the transactions behind id {found[partition]} were committed before the given "
        "time is not known, so no time cuts all partitions at one moment. Give the last id of each partition instead, "
        f"as PARTITION=ID. Of this one, {known} committed before it. All up to these ids were: --until {ids}"
    )
