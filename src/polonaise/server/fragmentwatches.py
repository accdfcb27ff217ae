"""What a server does with the fragment store in the background: it looks at the store, at the archive, and scrubs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from dataclasses import asdict
from math import inf
from typing import Any, Final, NamedTuple

from polonaise.errors import (
    FragmentDamaged,
    FragmentMissing,
    HistoryTrimmed,
    NotFound,
    PartitionNotReady,
    PolonaiseError,
    Retry,
    StoreUnavailable,
)
from polonaise.fragments.protocol.coverage import archived_up_to
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.protocol.scrubschedule import FragmentScrub, ListStore, Pause, Verify
from polonaise.host import Host
from polonaise.log.batch import Batch, split
from polonaise.server.archivedhistory import ArchivedHistory
from polonaise.server.ownedpartitions import OwnedPartitions
from polonaise.server.partitionreader import PartitionReader
from polonaise.server.settings import ServerSettings
from polonaise.server.sharedparts import SharedParts
from polonaise.terms import PartitionId, TransactionId

_log = logging.getLogger(__name__)
_PAUSE_S_MAX: Final = 3600.0


class FragmentScrubbing:
    """Carries out what `FragmentScrub` decides, until it is cancelled.

    Each server scrubs the fragments of the partitions that it owns, because only it can read their log, from which a
    damaged fragment is written again; also one that its reads could not use.
    """

    def __init__(
        self,
        host: Host,
        settings: ServerSettings,
        history: ArchivedHistory,
        readers: Callable[[], Mapping[PartitionId, PartitionReader]],
    ) -> None:
        """`readers` returns the readers of the partitions owned now."""
        self._clock = host.clock
        self._settings = settings
        self._history = history
        self._readers = readers
        self._random = host.random
        self._scrub = FragmentScrub(settings.scrub_bytes_per_s, settings.scrub_every_s, inf, settings.scrub_again_s)
        self._found = asyncio.Event()
        history.on_refused, history.on_sound = self._refused, self._sound

    def health(self) -> dict[str, Any]:
        """Return how far the scrub is, what it found, and of the latest damages what to do."""
        scrubbed = self._scrub.scrubbed
        damages = [damage._asdict() for damage in scrubbed.damages]
        return {
            "bytes_per_s": self._settings.scrub_bytes_per_s,
            **asdict(scrubbed),
            "unrepaired": self._scrub.unrepaired,
            "damages": damages,
        }

    def run(self) -> Coroutine[Any, Any, None]:
        """Scrub for ever, from a time on that is drawn now: not all servers begin at once."""
        after_s = self._settings.scrub_first_s * self._random.uniform(0.5, 1.5)
        self._scrub.plan_round(self._clock.monotonic_s() + after_s)
        return self._scrub_for_ever()

    async def _scrub_for_ever(self) -> None:
        while True:
            step = self._scrub.next(self._clock.monotonic_s())
            match step:
                case Pause():
                    await self._pass(min(step.seconds, _PAUSE_S_MAX))
                case ListStore():
                    await self._list()
                case Verify():
                    await self._verify(step)

    def _refused(self, name: FragmentName, transaction: TransactionId, why: str) -> None:
        known = self._scrub.is_damaged(name)
        self._scrub.refused(self._clock.monotonic_s(), self._clock.wall_us(), name, transaction, why)
        if not known:
            _log.warning("a read of %s: %s", self._history, why, extra={"partition": name.partition})
            self._found.set()

    def _sound(self, name: FragmentName) -> None:
        """Note that a fragment that could not be used was read: somebody has put it right."""
        if self._scrub.is_damaged(name):
            self._scrub.good(self._clock.wall_us(), name)
            self._warn(name, f"{name.path} can be read again")

    async def _pass(self, seconds: float) -> None:
        self._found.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._found.wait()

    async def _list(self) -> None:
        clock, owned = self._clock, self._readers()
        try:
            fragments = await self._history.held()
        except PolonaiseError as error:
            self._unreachable(error)
            return
        own = {name: size for name, size in fragments.items() if name.partition in owned}
        self._scrub.listed(clock.monotonic_s(), clock.wall_us(), own)

    async def _verify(self, step: Verify) -> None:
        """Read one fragment through, and mend it if it is damaged."""
        scrub, name = self._scrub, step.name
        reader = self._readers().get(name.partition)
        if reader is None:  # the partition has another owner by now
            scrub.gone(self._clock.wall_us(), name)
            return
        try:
            if scrub.is_damaged(name):
                step = await self._sized(name)
            await self._history.check(name, step.size, self._pause)
        except FragmentDamaged as error:
            scrub.damaged(self._clock.wall_us(), name, error.text)
            self._warn(name, error.text)
            await self._mend(reader, step)
        except NotFound:
            scrub.gone(self._clock.wall_us(), name)
        except PolonaiseError as error:
            await self._not_read(step, error)
        else:
            await self._read_again(reader, step)

    async def _sized(self, name: FragmentName) -> Verify:
        size = (await self._history.held(name.partition)).get(name)
        if size is None:
            raise NotFound(f"{name.path} is gone")
        return Verify(name, size)

    async def _read_again(self, reader: PartitionReader, step: Verify) -> None:
        """Tell the scrub that a fragment is sound, if a read that was refused succeeds now: its digest does not tell
        whether another fragment contradicts it.
        """
        refused = self._scrub.refused_id(step.name)
        if refused is not None:
            try:
                await reader.read_history(refused, refused, 1)
            except PolonaiseError as error:
                why = f"it has the digest in its name, but id {refused} still can't be read: {error}"
                self._not_mended(step, why, passing=True)
                return
        self._scrub.good(self._clock.wall_us(), step.name)

    async def _not_read(self, step: Verify, error: PolonaiseError) -> None:
        """After a failed read, find out whether the whole store can't be read, or only this fragment."""
        clock = self._clock
        try:
            await self._history.held()
        except PolonaiseError:
            self._unreachable(error)
            return
        self._scrub.unreadable(clock.monotonic_s(), clock.wall_us(), step, str(error))
        self._warn(step.name, f"{step.name.path} can't be read: {error}")

    async def _mend(self, reader: PartitionReader, step: Verify) -> None:
        """Write a damaged fragment again from the log, and read it back: only that proves the repair."""
        name = step.name
        try:
            step = step._replace(size=await self._history.mend(name, self._batches(reader, name)))
            await self._history.check(name, step.size, self._pause)
        except (HistoryTrimmed, FragmentMissing) as error:
            why = f"the storage nodes no longer hold its transactions ({error.text}): restore {name.path} from a copy"
            self._not_mended(step, why, passing=False)
        except PolonaiseError as error:
            self._not_mended(step, str(error), passing=error.retry in (Retry.AGAIN, Retry.ELSEWHERE))
        else:
            self._warn(name, f"{name.path} was written again from the log")
            await self._read_again(reader, step)

    def _not_mended(self, step: Verify, why: str, *, passing: bool) -> None:
        clock = self._clock
        self._scrub.not_repaired(clock.monotonic_s(), clock.wall_us(), step, why, passing=passing)
        self._warn(step.name, f"{step.name.path} is not repaired: {why}")

    async def _batches(self, reader: PartitionReader, name: FragmentName) -> AsyncIterator[Batch]:
        """Yield the log's batches with a fragment's ids, from the replicas or other fragments."""
        following = name.first
        while following <= name.last:
            try:
                raw = await reader.read_history(following, name.last, self._settings.copy_bytes)
            except FragmentDamaged as error:  # trimmed, and no other fragment with these ids is sound
                raise FragmentMissing(error.text) from error
            batches = split(raw)
            if not batches:
                raise PartitionNotReady(
                    f"no replica sent transaction {following} of partition {name.partition}: the repair is tried again"
                )
            for batch in batches:
                yield batch
            following = batches[-1].last + 1
            await self._pause(len(raw))

    async def _pause(self, bytes_read: int) -> None:
        await asyncio.sleep(self._scrub.pace(self._clock.monotonic_s(), bytes_read))

    def _warn(self, name: FragmentName, what: str) -> None:
        _log.warning("scrub of %s: %s", self._history, what, extra={"partition": name.partition})

    def _unreachable(self, error: PolonaiseError) -> None:
        if self._scrub.scrubbed.trouble != str(error):
            _log.warning("scrub of %s: %s", self._history, error)
        self._scrub.unreachable(self._clock.monotonic_s(), str(error))


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


_ANSWER_S: Final = 5.0
"""The longest that a look may take: less than a server that has just started lives until it is given partitions."""


class StoreWatch:
    """Looks at the mark of the store every now and then: one small read, however large the store is."""

    def __init__(self, history: ArchivedHistory, look_s: float) -> None:
        self._history = history
        self._look_s = look_s
        self.trouble: str | None = None
        """Empty if the store can be used, None before the first look."""

    async def run(self) -> None:
        while True:
            trouble = await self._look()
            if trouble and not self.trouble:
                _log.warning("the fragment store can't be used: %s", trouble)
            elif self.trouble and not trouble:
                _log.warning("the fragment store %s can be used again", self._history)
            self.trouble = trouble
            await asyncio.sleep(self._look_s)

    async def _look(self) -> str:
        try:
            async with asyncio.timeout(_ANSWER_S):
                await self._history.look()
        except TimeoutError:
            text = f"{self._history} did not answer within {_ANSWER_S:g} s: see that it can be reached"
            return str(StoreUnavailable(text))
        except PolonaiseError as error:
            return str(error)
        return ""


class FragmentWatches:
    """The watches of a fragment store, with what they have found. A server without a store has none."""

    def __init__(self, history: ArchivedHistory, shared: SharedParts, owned: OwnedPartitions) -> None:
        self._host = shared.host
        self._history = history
        self._owned = owned
        settings = shared.settings
        self.store = StoreWatch(history, settings.store_look_s)
        self.archive = ArchiveWatch(
            history,
            settings.archive_look_s,
            settings.store_look_s,
            settings.archive_fragment_bytes,
            lambda: owned.readers,
        )
        self.scrubbing = FragmentScrubbing(self._host, settings, history, lambda: owned.readers)

    def spawn(self) -> list[asyncio.Task[None]]:
        """Begin to watch, in tasks that never end by themselves."""
        return [
            self._host.spawn(self.store.run(), "fragment store"),
            self._host.spawn(self.archive.run(), "archive"),
            self._host.spawn(self.scrubbing.run(), "scrub of the fragments"),
        ]

    def __str__(self) -> str:
        """Return what operators are told of where the fragments are."""
        return str(self._history)

    @property
    def missing(self) -> dict[str, str]:
        """By partition, as JSON has it, the first of the ids that nothing holds any more."""
        gone = {} if self.archive.lag is None else self.archive.lag.gone
        return {str(partition): what for partition, what in gone.items() if partition in self._owned.served}

    @property
    def failed(self) -> dict[str, str]:
        """By partition, as JSON has it, why a read of the fragments failed by a mistake of ours."""
        failed = self._history.failed
        return {str(partition): why for partition, (_, why) in failed.items() if partition in self._owned.served}
