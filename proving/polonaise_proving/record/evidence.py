"""Collects the history of a run, partition by partition: from servers, files, databases and journals."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Final, Protocol

import polonaise
from polonaise.errors import PolonaiseError
from polonaise.log.batch import Batch
from polonaise.storage.files import find, trimmed_in
from polonaise.storage.offline import batches_of
from polonaise_proving.record.bankledger import BankLedger, database_of
from polonaise_proving.record.history import Contents, LineKind, PartitionHistory
from polonaise_proving.record.journal import lines_of
from polonaise_proving.record.partitionrecord import seen_of
from polonaise_proving.record.serializability import SerializabilityCheck

_EQUAL_S_MAX: Final = 30.0
"""Seconds within which all replicas have to hold the log up to its last id."""
_LOOK_S: Final = 0.3
_READ_BYTES: Final = 4 * 1024 * 1024
_READ_S: Final = 60.0


class LeavesEvidence(Protocol):
    """A client, as far as evidence is collected of it."""

    name: str

    @property
    def life(self) -> int:
        """How often it was started."""
        ...


class EvidencePlaces(Protocol):
    """Where the evidence of a run is."""

    directory: Path
    """Has the journals and databases of all clients."""
    store: Path
    """Has the archive."""

    @property
    def storage_directories(self) -> Mapping[str, Path]:
        """The directories of the storage nodes, by their names."""
        ...

    @property
    def clients(self) -> Sequence[LeavesEvidence]: ...


async def history_of(town: EvidencePlaces, log: polonaise.Log, partition: int) -> PartitionHistory:
    """Collect the history of a partition. The cluster runs, all clients are through, and the archive is complete.

    If the log can't be read to its end, the history's `contents` say why. Raises what asking for the partition's
    high-water mark raises, and faults of the databases.
    """
    history = PartitionHistory(partition, copies=len(town.storage_directories))
    await read_log(log, history)
    history.archive = await _archived(town.store, log.cluster_key, partition, history.contents.last)
    history.replicas = await replicas(town.storage_directories, partition, history.contents.last)
    for client in town.clients:
        ledger = BankLedger(database_of(town.directory, client.name), create=False)
        try:
            history.fed[client.name] = await asyncio.to_thread(ledger.all_fed, partition)
            history.views[client.name] = await asyncio.to_thread(ledger.all_balances, partition)
        finally:
            await ledger.close()
        lines = await asyncio.to_thread(lines_of, town.directory, client.name, client.life)
        history.lines += [line for line in lines if line.partition == partition or line.kind is LineKind.QUIET]
    return history


async def read_log(log: polonaise.Log, history: PartitionHistory) -> None:
    """Read the log from its beginning, as a client that has seen nothing before."""
    check = SerializabilityCheck()
    last = await log.high_water_mark(history.partition, timeout=_READ_S)

    async def followed() -> AsyncIterator[Batch]:
        if last < 0:
            return
        async with aclosing(log.read_batches(history.partition, until=last, timeout=_READ_S)) as batches:
            async for batch in batches:
                check.follow(batch)
                history.batches.append(seen_of(batch))
                history.entries += [(tx.id, tx.data) for tx in batch.transactions()]
                yield batch

    history.contents = await _contents(followed())
    history.without_evidence = check.unjudged
    history.stale = [str(each) for each in check.stale]


async def _contents(batches: AsyncIterable[Batch], first: int = 0) -> Contents:
    """Return what these batches hold, or up to where they can be read."""
    total, last = hashlib.sha256(), first - 1
    try:
        async for batch in batches:
            if batch.first != last + 1:
                return Contents(first, last, "", f"a batch begins with {batch.first} after {last}")
            total.update(batch.view)
            last = batch.last
    except PolonaiseError as error:
        return Contents(first, last, "", str(error))
    return Contents(first, last, total.hexdigest())


async def _archived(store: Path, cluster_key: bytes, partition: int, last: int) -> Contents:
    """Return what the archive holds of a partition, whose log ends with `last`."""
    from polonaise.fragments.history import open_history  # needs more than the demo, which collects other evidence

    history = open_history(str(store), cluster_key)

    async def batches(highest: int) -> AsyncIterator[Batch]:
        after = -1
        while after < highest:
            for batch in await history.read(partition, after + 1, highest, _READ_BYTES):
                yield batch
                after = batch.last

    try:
        return await _contents(batches(await history.highest(partition, last)))
    except PolonaiseError as error:
        return Contents(0, -1, "", str(error))


async def replicas(directories: Mapping[str, Path], partition: int, last: int) -> dict[str, Contents]:
    """Return what storage nodes have in their files, once all reach `last`, or after `_EQUAL_S_MAX` seconds.

    A node without files of the partition is left out.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + _EQUAL_S_MAX
    while True:
        found = {name: each for name, path in directories.items() if (each := await _replica(path, partition))}
        if loop.time() > until_s or (len(found) == len(directories) and all(e.last == last for e in found.values())):
            return found
        await asyncio.sleep(_LOOK_S)


async def _replica(directory: Path, partition: int) -> Contents | None:
    """Return what a storage node's files hold of a partition; None if there are none."""
    try:
        for files in find(str(directory)):
            if files.partition == partition:
                async with aclosing(batches_of(files)) as batches:
                    return await _contents(batches, trimmed_in(files).first)
    except PolonaiseError as error:
        return Contents(0, -1, "", str(error))
    return None
