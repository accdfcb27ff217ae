"""The scrub of a fragment store: a server reads its partitions' fragments in the background, and mends damaged ones."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import asdict
from math import inf
from typing import Any, Final

from polonaise.errors import (
    FragmentDamaged,
    FragmentMissing,
    HistoryTrimmed,
    NotFound,
    PartitionNotReady,
    PolonaiseError,
    Retry,
)
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.protocol.scrubschedule import FragmentScrub, ListStore, Pause, Verify
from polonaise.host import Host
from polonaise.log.batch import Batch, split
from polonaise.server.archivedhistory import ArchivedHistory
from polonaise.server.partitionreader import PartitionReader
from polonaise.server.settings import ServerSettings
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
