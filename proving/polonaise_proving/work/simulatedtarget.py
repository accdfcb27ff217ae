"""A target of a schedule: applies entries to a file on a simulated disk, and can refuse, fail and hang on purpose.

Several processes of a machine may serve the same target, as several may use one database: a lock keeps their steps
apart.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from polonaise.errors import DirectoryInUse, PolonaiseError, ViewUnavailable
from polonaise.host import DirectoryLock, File, Host
from polonaise.player.deliverytarget import Acceptance, AppliedBatch, DeliverySource, Judge
from polonaise.player.protocol.entries import DeliveryBatch, Fence
from polonaise.player.protocol.reception import Reception, Verdict
from polonaise_proving.record.targetmemory import (
    MEMORY_FILE,
    FenceTaken,
    Record,
    StepTaken,
    TargetMemory,
    decode,
    encode,
)

_LOCK_FILE: Final = "lock"
_LOCK_TRIES: Final = 50
_LOCK_S: Final = 0.01

_Decide: TypeAlias = Callable[[TargetMemory], tuple[list[Record], Any]]
"""Decides on a step: the record to be written, if any, and the answer to give then. A second one is a second step."""


class TargetTrouble:
    """What goes wrong with one target on purpose. It outlives the target's processes."""

    def __init__(self, source: random.Random) -> None:
        self._random = source
        self.always = 0.0, 0.0
        """The chances of refusals and errors when nothing else is wrong."""
        self.refuse_chance = 0.0
        """The chance that one of the entries of a batch is refused."""
        self.fail_chance = 0.0
        """The chance that a batch meets an error."""
        self.hang_chance = 0.0
        """The chance that a batch is not begun for `hang_s`."""
        self.hang_s = 0.0
        self.put_back = 0
        """How often the target's disk was put back to an earlier state beneath its processes."""
        self.made_anew = 0
        """How often a process has removed the target's file: others have to open it again."""
        self.stubborn = False
        """Whether a batch that hangs goes on when it is cancelled."""

    def ease(self) -> None:
        """Let no more go wrong than was drawn for the whole schedule."""
        self.refuse_chance, self.fail_chance = self.always
        self.hang_chance = 0.0

    def end(self) -> None:
        """Let nothing more go wrong."""
        self.always = 0.0, 0.0
        self.ease()

    def strikes(self, chance: float) -> bool:
        return bool(chance) and self._random.random() < chance

    def refused(self, count: int) -> int:
        """Return the place of the first entry, of so many, that is refused; `count` if none is."""
        return self._random.randrange(count) if self.strikes(self.refuse_chance) else count

    async def befall(self) -> None:
        """Hang or raise, if that is this batch's lot."""
        if self.strikes(self.hang_chance):
            loop = asyncio.get_running_loop()
            until_s = loop.time() + self.hang_s * (0.5 + self._random.random())
            while self.hang_chance and loop.time() < until_s:
                try:
                    await asyncio.sleep(0.1)
                except asyncio.CancelledError:
                    if not self.stubborn:
                        raise
        if self.strikes(self.fail_chance):
            raise ViewUnavailable("the target fails on purpose")


class SimulatedTarget:
    """One process's way to the target of its machine: `DeliveryTarget`."""

    def __init__(self, host: Host, trouble: TargetTrouble) -> None:
        self._host = host
        self._trouble = trouble
        self._turn = asyncio.Lock()
        self._file: File | None = None
        self._memory = TargetMemory()
        """What this process knows to be on the disk; the other process of the target may have gone on since."""
        self._put_back = trouble.put_back
        self._made_anew = trouble.made_anew
        self._steps: set[asyncio.Task[None]] = set()

    async def accept(self, offered: Fence, source: DeliverySource) -> Acceptance:
        """Accept a stream, unless the memory has another fence that is as high."""

        def decide(memory: TargetMemory) -> tuple[list[Record], Acceptance]:
            if not Reception.accepts(memory.fence, offered):
                return [], Acceptance(False, memory.fence, {})
            return [FenceTaken(offered)], Acceptance(True, offered, dict(memory.applied))

        acceptance: Acceptance = await self._step(decide)
        return acceptance

    async def apply(self, batch: DeliveryBatch, judge: Judge) -> AppliedBatch:
        """Apply a batch as `judge` says, up to an entry that is refused."""
        await self._trouble.befall()

        def decide(memory: TargetMemory) -> tuple[list[Record], AppliedBatch]:
            partition, last = batch.partition, memory.last(batch.partition)
            verdict = judge(memory.fence, last, batch)
            if verdict is not Verdict.APPLY:
                return [], AppliedBatch(verdict, last, memory.fence)
            entries = batch.entries[: self._trouble.refused(len(batch.entries))]
            refusal = "" if len(entries) == len(batch.entries) else "refused on purpose"
            if not entries:
                return [], AppliedBatch(verdict, last, memory.fence, refusal)
            last = entries[-1].id
            effects = [entry for entry in entries if entry.payload is not None]
            return [StepTaken(partition, last, effects)], AppliedBatch(verdict, last, memory.fence, refusal)

        applied: AppliedBatch = await self._step(decide)
        return applied

    async def close(self) -> None:
        """Let go of the file, after the steps that are under way."""
        while self._steps:
            await asyncio.wait(self._steps)
        if self._file is not None:
            await self._file.close()

    # ------------------------------------------------------------------ steps

    async def _step(self, decide: _Decide) -> Any:
        """Make a step, and return its answer. It is made whole, too, if the caller is cancelled meanwhile."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        task = self._host.spawn(self._make(decide, answer), "step of a target")
        self._steps.add(task)
        task.add_done_callback(self._steps.discard)
        return await asyncio.shield(answer)

    async def _make(self, decide: _Decide, answer: asyncio.Future[Any]) -> None:
        async with self._turn:
            try:
                lock = await self._locked()
                try:
                    told = await self._decided(decide)
                finally:
                    lock.release()
            except PolonaiseError as error:
                self._memory = TargetMemory()  # what is in the file now is not known
                if not answer.done():
                    answer.set_exception(ViewUnavailable(str(error)))
                return
        if not answer.done():
            answer.set_result(told)

    async def _locked(self) -> DirectoryLock:
        for _ in range(_LOCK_TRIES):
            try:
                return await self._host.disk.lock(_LOCK_FILE)
            except DirectoryInUse:
                await asyncio.sleep(_LOCK_S)
        raise ViewUnavailable("another process of this target holds the lock")

    async def _decided(self, decide: _Decide) -> Any:
        file = await self._caught_up()
        records, answer = decide(self._memory)
        for record in records:
            raw, end = encode(record), self._memory.length
            await file.write(end, [raw], sync=True)
            self._memory.take(decode(raw), end)
        return answer

    async def _give_up(self, file: File) -> None:
        """Let go of the file, and of its name if it holds nothing, after a sync of the directory that has failed.

        Such a name may be lost with the power, whatever succeeds later. One that holds something was durable before.
        """
        empty = not await file.size()
        await file.close()
        if empty:
            await self._host.disk.remove(MEMORY_FILE)
            self._trouble.made_anew += 1

    async def _caught_up(self) -> File:
        """Read what is new in the file, make it durable, and cut off what was broken off."""
        file = self._file
        if file is not None and self._made_anew != self._trouble.made_anew:
            await file.close()
            file = self._file = None
            self._memory = TargetMemory()
        self._made_anew = self._trouble.made_anew
        if file is None:
            file = await self._host.disk.open(MEMORY_FILE, create=True)
            try:
                await self._host.disk.sync_directory("")
            except PolonaiseError:
                await self._give_up(file)
                raise
            self._file = file
        if self._put_back != self._trouble.put_back:
            self._put_back, self._memory = self._trouble.put_back, TargetMemory()
        start, size = self._memory.length, await file.size()
        if size > start:
            raw = await file.read(start, size - start)
            self._memory.take(decode(raw), start)
            whole = self._memory.length
            if whole < size:
                await file.truncate(whole)
            # Written anew: what a process wrote that is dead, or whose sync failed, may read back and yet be lost.
            await file.write(start, [raw[: whole - start]], sync=True)
        return file
