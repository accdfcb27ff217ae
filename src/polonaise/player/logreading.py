"""How the active player reads the log: marks, main streams, and stretches for targets that catch up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice
from typing import Any, Final, Protocol, TypeAlias

from polonaise.client.log import Log
from polonaise.client.protocol.backoff import Backoff
from polonaise.client.protocol.subscription import Continuity
from polonaise.errors import (
    AccessDenied,
    BatchDamaged,
    BeyondLog,
    DataDamaged,
    FragmentDamaged,
    FragmentMissing,
    HistoryTrimmed,
    LogForked,
    PolonaiseError,
    Retry,
)
from polonaise.log.batch import Batch
from polonaise.log.producers import Produced
from polonaise.player.protocol.activeplayer import ActivePlayer
from polonaise.player.protocol.deliverylag import DeliveryLag, Lacking
from polonaise.player.protocol.effects import PlayerEffect, ReadForTarget
from polonaise.player.protocol.entries import Epoch, RoutedEntry, TargetName
from polonaise.player.routing import Router, Unroutable
from polonaise.terms import PartitionId, TransactionId

_log = logging.getLogger("polonaise.player")

_READ: Final = "transactions"
_MARK: Final = "the committed high-water mark"
_WATCH_S: Final = 5.0
"""Seconds between two looks at the log, and the longest wait for an answer."""
_LOOKED_UP_MAX: Final = 32
"""The most transactions that are looked up in the log after each of these looks."""
_MENDED: Final = (BatchDamaged, DataDamaged, FragmentDamaged, FragmentMissing, AccessDenied)
"""What is whole another time, although its class says that trying again does not help: a batch was damaged on its way,
or an operator or a scrub mends the archive behind the log."""
_EPOCH_LOST: Final = (
    "the epoch of this player's name in the log is {}, and this one has taken {}: the log was put back to an older "
    "state, or the register was deleted. Another player of the name would not replace this one: stop it before that"
)
Stop: TypeAlias = Callable[[PartitionId, int, str], Iterable[PlayerEffect]]
"""An event of the machine: of a partition, by the number of a request or main stream, for a reason."""
_TURN_TRANSACTIONS: Final = 10
"""The transactions that are routed in one turn of the loop for a target that catches up."""
_SKIPPED_SHARE: Final = 16
"""Divides the bytes that a read for a target passes over, to count them for the bound of the read, too."""


class ReadingEvents(Protocol):
    """The delivery, as what is told what comes of the log; see `Delivery`."""

    name: str

    def happened(self, event: Callable[..., Iterable[PlayerEffect]], *about: Any) -> None: ...

    def stopped(self, event: Stop, partition: PartitionId, number: int, reason: str) -> None: ...

    def replaced(self, epoch: Epoch) -> None: ...


class LogReading:
    """Reads the log for one active player, and tells its machine. Each coroutine is a task of the player's."""

    def __init__(self, log: Log, machine: ActivePlayer, router: Router, events: ReadingEvents) -> None:
        self._log = log
        self._machine = machine
        self._router = router
        self._settings = machine.settings
        self._events = events
        self.lag = DeliveryLag(machine)
        self._troubles: dict[tuple[PartitionId, str], str] = {}
        """By partition, and what the log was asked for (`_READ`, `_MARK`): why it did not answer the last time."""
        self._places: dict[PartitionId, Continuity] = {}
        """By partition, the last batch of its main streams, which the next one is to follow."""
        self._epoch_lost = ""
        """Why the epoch of this player is not the log's any more; empty while it is."""

    def trouble(self, partition: PartitionId) -> str:
        """Return why the log did not answer the last time, or is not that of this player; empty if neither."""
        for what in (_READ, _MARK):
            if why := self._troubles.get((partition, what)):
                return why
        return self._epoch_lost

    @property
    def silent(self) -> set[PartitionId]:
        """The partitions of which it is not known how far the log reaches by now."""
        return {partition for partition, _ in self._troubles}

    async def ask(self, partition: PartitionId, number: int) -> None:
        pauses = Backoff(self._settings.retry_s_min, self._settings.retry_s_max)
        while True:
            try:
                mark = await self._log.high_water_mark(partition)
            except PolonaiseError as error:
                if not _passes(error):
                    self._events.stopped(self._machine.mark_failed, partition, number, str(error))
                    return
                self._troubled(partition, _MARK, error)
                await asyncio.sleep(pauses.pause_s(1.0))
            else:
                self._troubles.pop((partition, _MARK), None)
                self._judged(self._machine.mark_told, partition, number, mark)
                return

    async def follow(self, partition: PartitionId, number: int, first: TransactionId) -> None:
        """Be the main stream of a partition: read it from `first` on, for ever."""
        machine = self._machine
        pauses = Backoff(self._settings.retry_s_min, self._settings.retry_s_max)
        place = self._places.get(partition)
        if place is None or place.next_id < first:
            place = self._places[partition] = Continuity(first)
        while True:
            reader = self._log.read_batches(partition, after=first - 1, follow=True)
            try:
                async for batch in reader:
                    place.follows(batch)  # which no reader knows that has just begun
                    pauses.reset()
                    self._troubles.pop((partition, _READ), None)
                    routed, unroutable = self._router.routed(batch, first - 1, batch.last)
                    through = batch.last if unroutable is None else unroutable.id - 1
                    if through >= first:
                        self._events.happened(machine.fetched, partition, number, first, through, routed)
                        self.lag.brought(partition, first, through, batch.commit_time_us, batch.length)
                        first = through + 1
                    if unroutable is not None:
                        if unroutable.trace:
                            _log.error("player %s: the route function raised:\n%s", self._events.name, unroutable.trace)
                        self._events.stopped(machine.stopped, partition, number, str(unroutable))
                        return
            except HistoryTrimmed as error:
                if error.first > first:
                    self._events.happened(machine.trimmed, partition, number, error.first)
                    return
                self._troubled(partition, _READ, error)  # who said so does not know how far; somebody may
                await asyncio.sleep(pauses.pause_s(1.0))
            except LogForked as error:
                self._judged(machine.forked, partition, number, str(error))
                return
            except PolonaiseError as error:
                if not _passes(error):
                    self._events.stopped(machine.stopped, partition, number, str(error))
                    return
                self._troubled(partition, _READ, error)
                await asyncio.sleep(pauses.pause_s(1.0))
            finally:
                await reader.aclose()

    def _judged(self, event: Callable[..., Iterable[PlayerEffect]], partition: PartitionId, *about: Any) -> None:
        """Let an event happen that may find that the log is another one than before, and log that."""
        main = self._machine.partitions[partition]
        was_lost = main.lost
        self._events.happened(event, partition, *about)
        if main.lost and not was_lost:
            _log.error(
                "player %s: partition %d is not delivered any more: %s", self._events.name, partition, main.stopped
            )

    def _troubled(self, partition: PartitionId, what: str, error: PolonaiseError) -> None:
        """Note that the log does not answer what it is asked for. Logged when that begins, once for all partitions with
        one kind of error, as while no server answers."""
        text = str(error)
        kind = text.partition("]")[0]
        if not any(asked == what and why.startswith(kind) for (_, asked), why in self._troubles.items()):
            _log.warning("player %s: partition %d does not tell %s: %s", self._events.name, partition, what, text)
        self._troubles[partition, what] = text

    async def watch(self, key: bytes) -> None:
        """Look at the log now and then: at each mark, for lags and whether the log answers, and at the epoch in the
        register `key`, because no target tells a player that delivers nothing that it was replaced."""
        while True:
            # All at once: of many that do not answer, none is to hide the others.
            looks = [self._look_at(partition) for partition in self._machine.partitions]
            await asyncio.gather(self._look_at_epoch(key), *looks)
            for lacking in list(islice(self.lag.unknown(), _LOOKED_UP_MAX)):
                await self._look_up(lacking)
            await asyncio.sleep(_WATCH_S)

    async def _look_at_epoch(self, key: bytes) -> None:
        try:
            register = await self._log.register(key, 0, timeout=_WATCH_S)
        except PolonaiseError:
            return  # no answer proves nothing; that the log does not answer shows at its marks
        epoch, own = 0 if register is None else Produced.parse(register).epoch, self._machine.epoch
        if epoch > own:
            self._events.replaced(epoch)
        elif epoch < own and not self._epoch_lost:
            # Asked for after it was taken: whoever is elected next gets the same, or a lower one.
            self._epoch_lost = _EPOCH_LOST.format(epoch or "none", own)
            _log.error("player %s: %s", self._events.name, self._epoch_lost)

    async def _look_at(self, partition: PartitionId) -> None:
        machine = self._machine
        known = machine.partitions[partition].mark
        try:
            mark = await self._log.high_water_mark(partition, timeout=_WATCH_S)
        except PolonaiseError as error:
            self._troubled(partition, _MARK, error)
            return
        self._judged(machine.mark_seen, partition, known, mark)
        self._troubles.pop((partition, _MARK), None)
        current = machine.partitions[partition].current
        if current is not None and current >= mark:
            # There is nothing to be read, so reading can't prove that it is possible again.
            self._troubles.pop((partition, _READ), None)

    async def _look_up(self, lacking: Lacking) -> None:
        """Find out when a transaction was committed that the main stream has never brought."""
        committed_us = None
        reader = self._log.read_batches(lacking.partition, after=lacking.id - 1, until=lacking.id)
        try:
            async with asyncio.timeout(_WATCH_S):
                async for batch in reader:
                    committed_us = batch.commit_time_us
                    break
        except TimeoutError:
            return  # it is asked for again
        except PolonaiseError as error:
            if _passes(error):
                return
        else:
            if committed_us is None:
                return  # the log has not brought it yet, and may do so the next time
        finally:
            await reader.aclose()
        self.lag.told(lacking, committed_us)

    async def read(self, effect: ReadForTarget) -> None:
        """Read the beginning of a stretch of the log for one target."""
        machine, (target, partition, read) = self._machine, effect
        entries: list[RoutedEntry] = []
        through, size = read.first - 1, 0
        counter = count(1)
        reader = self._log.read_batches(partition, after=read.first - 1, until=read.last)
        try:
            async for batch in reader:
                last = min(batch.last, read.last)
                found, unroutable = await self._routed_for(target, batch, through, last, counter)
                if unroutable is not None:
                    last = unroutable.id - 1
                entries += found
                size += sum(entry.size for entry in found) + batch.length // _SKIPPED_SHARE
                through = max(through, last)
                if unroutable is not None and through < read.first:
                    raise unroutable
                if unroutable is not None or size >= self._settings.recovery_bytes_max:
                    break
            if through < read.first:
                raise BeyondLog(f"the log has nothing of ids {read.first} to {read.last}")
        except (PolonaiseError, Unroutable) as error:
            self._events.happened(machine.recovery_failed, target, partition, read.number, str(error))
        else:
            self._events.happened(machine.recovered, target, partition, read.number, entries, through)
        finally:
            await reader.aclose()

    async def _routed_for(
        self, target: TargetName, batch: Batch, after: TransactionId, through: TransactionId, counter: Iterator[int]
    ) -> tuple[list[RoutedEntry], Unroutable | None]:
        """Return what `Router.routed` does, for one target; in turns, because the others are not to wait. `counter`
        counts the transactions of all batches of a read."""
        found: list[RoutedEntry] = []
        try:
            for entries in self._router.each(batch, after, through):
                found += [entry for name, entry in entries if name == target]
                if next(counter) % _TURN_TRANSACTIONS == 0:
                    await asyncio.sleep(0)
        except Unroutable as error:
            return found, error
        return found, None


def _passes(error: PolonaiseError) -> bool:
    """Return whether reading may succeed another time."""
    return error.retry is not Retry.NEVER or isinstance(error, _MENDED)
