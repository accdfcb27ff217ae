"""Trim: drop archived history from the storage nodes, after every fragment that is relied upon was verified."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from polonaise.admin.archive import batch_at
from polonaise.client.log import Log
from polonaise.errors import BeyondLog, FragmentDamaged, PolonaiseError, UnsupportedFormat, WrongClusterKey, fault
from polonaise.fragments.agreement import MOVE_OUT, FragmentFacts, contradictions, ids_to_compare
from polonaise.fragments.mark import is_marked, unmarked
from polonaise.fragments.objects import fragments_of, looked_at, verified
from polonaise.fragments.protocol.coverage import Span, archived_up_to, cover
from polonaise.fragments.protocol.names import FragmentName, fingerprint
from polonaise.fragments.store import ObjectStore
from polonaise.terms import NO_TRANSACTION, PartitionId, StorageId, TransactionId

_TRIM_S_MAX: Final = 300.0
"""Seconds to wait for one answer to a trim. The server may have to read a whole fragment first."""


class TrimReport(NamedTuple):
    """The result of a trim for a partition."""

    before: TransactionId
    """The id below which everything was to be dropped."""
    first: TransactionId
    """The id from which on all storage nodes of the session still hold the log."""
    held_from: TransactionId
    """The id from which on all storage nodes of the session held the log before the trim."""
    taking_part: tuple[StorageId, ...] = ()
    """The storage nodes of the session."""
    left_out: tuple[StorageId, ...] = ()
    """The other members: they keep what they have until they take part in a later trim."""

    @property
    def dropped(self) -> bool:
        """Whether all that took part hold less than before."""
        return self.first > self.held_from


async def trim(
    log: Log,
    store: ObjectStore,
    partition: PartitionId,
    *,
    before: TransactionId | None = None,
    timeout: float | None = None,
) -> TrimReport:
    """Make the storage nodes drop what lies below id `before` (or all that is archived), in whole segments, for good.

    First verifies every fragment that is relied upon from then on: its digest, each of its batches, and that no
    fragment contradicts it. The server checks that its own store has these, and each storage node keeps what it does
    not know to be committed. May be interrupted and repeated at any time. `timeout` bounds each request to the log, in
    seconds. None stands for `ClientSettings.answer_s_max`, but for 300 s with each answer to a trim.

    Raises `not_archived` for ids that no fragment holds, or if the server relies upon another store; `FragmentDamaged`,
    `WrongClusterKey`, `BeyondLog` for a `before` that is not committed, `NotFound` for a store that holds nothing, not
    even a mark: it may not be mounted; and what reading and the store raise.
    """
    committed = await log.high_water_mark(partition, timeout=timeout)
    if committed == NO_TRANSACTION and before is None:
        return TrimReport(0, 0, 0)
    fragments = await fragments_of(store, log.id_of(partition))
    archived = archived_up_to(fragments)
    if archived < 0 and not await is_marked(store, log.cluster_key):
        raise unmarked(store, ", nor any fragment of partition " + str(partition))
    if archived < 0 or (before is not None and before > archived + 1):
        raise fault(
            "not_archived",
            f"partition {partition} is archived up to {archived} in {store}; only what is archived can be trimmed: "
            "run polonaise archive run first",
        )
    if before is not None and before > committed:
        raise BeyondLog(f"partition {partition} is committed up to {committed}: choose an id up to that")
    below = min(archived + 1, committed) if before is None else before
    names = [piece.fragment for piece in cover(fragments, Span(0, below - 1)).pieces]
    await _check_all(log, store, partition, fragments, names)
    limit_s = _TRIM_S_MAX if timeout is None else timeout
    # Below id 0 there is nothing to drop: the answer only tells what the storage nodes hold.
    held_from, _ = await log.trim(partition, 0, fingerprint([]), timeout=limit_s)
    health = (await log.health(partition, timeout=limit_s))["partitions"].get(str(log.id_of(partition)), {})
    engaged = tuple(health.get("engaged") or ())
    left_out = tuple(name for name in health.get("members") or () if name not in engaged)
    while True:
        first, done = await log.trim(partition, below, fingerprint(names), timeout=limit_s)
        if done:
            return TrimReport(below, first, held_from, engaged, left_out)


async def _check_all(
    log: Log,
    store: ObjectStore,
    partition: PartitionId,
    fragments: Mapping[FragmentName, int],
    names: Collection[FragmentName],
) -> None:
    """Verify the fragments `names`, make them durable, and compare them with all others of the partition."""
    ids = ids_to_compare(fragments)
    good: list[FragmentFacts] = []
    for name in names:
        # Durable before it is relied upon: the storage nodes' copy is about to go.
        await store.make_durable(name.path)
        good.append(await verified(store, name, ids[name]))
        if good[-1].footer.cluster_key != log.cluster_key:
            raise WrongClusterKey(f"{name.path} in {store} is of another cluster: give the store of this log")
    # Nothing relies upon the others, and damage in them is no reason to refuse: but they may be read in place of these.
    for name in fragments.keys() - set(names):
        try:
            good.append(await looked_at(store, name, fragments[name], ids[name]))
        except (FragmentDamaged, UnsupportedFormat):
            continue
    if wrong := contradictions(good):
        told = "; ".join(each.what for each in wrong)
        concerned = [facts for facts in good if any(facts.name in (each.one, each.other) for each in wrong)]
        strays = [facts.name.path for facts in concerned if await _is_of_another_life(log, partition, facts)]
        which = f"; by their last batches {', '.join(strays)} are not" if strays else ""
        raise FragmentDamaged(f"nothing was trimmed: {told}: {MOVE_OUT}{which}")


async def _is_of_another_life(log: Log, partition: PartitionId, facts: FragmentFacts) -> bool:
    """Tell whether the log has another batch where a fragment ends; False if that can't be read."""
    last = facts.footer.last
    try:
        batch = await batch_at(log, partition, last)
    except (PolonaiseError, StopAsyncIteration):
        return False
    return (batch.last, batch.crc) != (last, facts.footer.last_crc)
