"""The watch of how far the archive is behind the log: an archiver that no longer runs is noticed by the servers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from polonaise.errors import HistoryTrimmed, PolonaiseError
from polonaise.fragments.protocol.coverage import archived_up_to
from polonaise.fragments.protocol.names import FragmentName
from polonaise.log.batch import Batch
from polonaise.server.archivedhistory import ArchivedHistory
from polonaise.server.partitionreader import PartitionReader
from polonaise.terms import PartitionId, TransactionId

_log = logging.getLogger(__name__)
_READ_BYTES: Final = 64 * 1024
"""About how many bytes of headers are read at a time: hundreds of batches take the event loop a millisecond or two."""


class Backlog:
    """How much of one partition is in no fragment, from its first such id until it fills a fragment: what does not is
    left for a later run.
    """

    def __init__(self, first: TransactionId, fragment_bytes: int) -> None:
        """With 0 for `fragment_bytes`, one batch is a backlog."""
        self.first = first
        self.next = first
        """The first id that was not measured yet."""
        self.due_us: int | None = None
        """When the batch was committed that fills a fragment, in µs UTC; None while none is full."""
        self._room_bytes = fragment_bytes

    def brought(self, last: TransactionId, size: int, commit_time_us: int) -> None:
        """Measure the next batch, of `size` bytes, which ends with the id `last`."""
        self.next = last + 1
        self._room_bytes -= size
        if self._room_bytes <= 0 and self.due_us is None:
            self.due_us = commit_time_us


class ArchiveLag(NamedTuple):
    """How far the archive was behind the partitions of a server at the last look."""

    transactions: int | None
    """The most committed transactions of a partition that no fragment held; None for 0 when not all is known."""
    due_us: int | None
    """Since when the oldest fragment could have been written that is not there, in µs UTC: the commit that fills it. 0
    if there is none, None if none is known of and not all is known."""
    unknown: int
    """The number of partitions of which it was not known, without those in `gone`."""
    gone: Mapping[PartitionId, str] = {}
    """The partitions with trimmed ids that no fragment holds, each with the first of these in words."""


class ArchiveWatch:
    """Compares the store with what partitions have committed, by times of commits, which a new owner knows as well."""

    def __init__(
        self,
        history: ArchivedHistory,
        look_s: float,
        missing_look_s: float,
        fragment_bytes: int,
        readers: Callable[[], Mapping[PartitionId, PartitionReader]],
    ) -> None:
        """`readers` returns the readers of the partitions owned now; a look is taken every `look_s` seconds.

        While trimmed ids are missing, every `missing_look_s`: who brings them back has to see that soon. The archiver
        is taken to write fragments of `fragment_bytes` bytes of batches; with 0, all that there is.
        """
        self._history = history
        self._look_s = look_s
        self._missing_look_s = min(look_s, missing_look_s)
        self._fragment_bytes = fragment_bytes
        self._readers = readers
        self._backlogs: dict[PartitionId, Backlog] = {}
        self.lag: ArchiveLag | None = None
        """None before the first look."""
        self._missed = asyncio.Event()
        history.on_missing = self._miss

    async def run(self) -> None:
        """Look for ever. Of a store that can't be read, what it lacked stands; that it lacked nothing does not."""
        while True:
            gone = self.lag is not None and self.lag.gone
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._missing_look_s if gone else self._look_s):
                    await self._missed.wait()
            self._missed.clear()
            try:
                await self._look(await self._history.held())
            except PolonaiseError as error:
                _log.debug("how far the archive is can't be seen: %s", error)
                before = self.lag or ArchiveLag(None, None, 0)
                lag = before.transactions or None, before.due_us or None
                self.lag = ArchiveLag(*lag, len(self._readers()), before.gone)

    def _miss(self, partition: PartitionId, why: str) -> None:
        before = self.lag or ArchiveLag(None, None, len(self._readers()))
        if partition not in before.gone:
            _log.warning("partition %d: %s", partition, why, extra={"partition": partition})
            self.lag = before._replace(gone={**before.gone, partition: why})
            self._missed.set()

    async def _look(self, fragments: Iterable[FragmentName]) -> None:
        by_partition: dict[PartitionId, list[FragmentName]] = {}
        for name in fragments:
            by_partition.setdefault(name.partition, []).append(name)
        backlogs: dict[PartitionId, Backlog] = {}
        due_us: list[int] = []
        gone: dict[PartitionId, str] = {}
        lacking = unknown = 0
        for partition, reader in self._readers().items():
            committed, held = reader.owner.proved, by_partition.get(partition, ())
            first = archived_up_to(held) + 1
            if committed is None:
                unknown += 1
            elif first <= committed:
                lacking = max(lacking, committed + 1 - first)
                backlog = backlogs[partition] = self._backlog(partition, first, held)
                try:
                    unknown += not await self._measure(reader, backlog, committed)
                except HistoryTrimmed:
                    gone[partition] = (
                        f"no fragment in {self._history} holds id {backlog.next}, and no storage node does: "
                        "bring the fragment back, or the store that has it"
                    )
                    if self.lag is None or partition not in self.lag.gone:
                        _log.warning("partition %d: %s", partition, gone[partition], extra={"partition": partition})
                if backlog.due_us is not None:
                    due_us.append(backlog.due_us)
        self._backlogs = backlogs
        # When what is gone was committed, nobody knows.
        no_age = None if unknown or gone else 0
        self.lag = ArchiveLag(lacking or (None if unknown else 0), min(due_us) if due_us else no_age, unknown, gone)

    def _backlog(self, partition: PartitionId, first: TransactionId, held: Iterable[FragmentName]) -> Backlog:
        """Return what was measured from `first` on, anew after more was archived."""
        before = self._backlogs.get(partition)
        if before is not None and before.first == first:
            return before
        # Ids below those of a fragment make a fragment of their own, however few they are.
        return Backlog(first, 0 if any(name.first > first for name in held) else self._fragment_bytes)

    async def _measure(self, reader: PartitionReader, backlog: Backlog, committed: TransactionId) -> bool:
        """Measure until a fragment is full or all was measured; return whether that was possible."""
        try:
            while backlog.due_us is None and backlog.next <= committed:
                raw, start = await reader.read_held(backlog.next, committed, _READ_BYTES), 0
                if not raw:
                    return False
                while start < len(raw):
                    batch = Batch.parse(raw, start, verify=False)
                    backlog.brought(batch.last, batch.length + batch.data_bytes, batch.commit_time_us)
                    start += batch.length
        except HistoryTrimmed:
            raise
        except PolonaiseError as error:
            _log.debug("partition %d: transaction %d can't be read: %s", reader.owner.partition, backlog.next, error)
            return False
        return True
