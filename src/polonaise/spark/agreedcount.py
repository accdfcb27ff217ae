"""The number of partitions by which a sink divides a batch, agreed in the log, so that a repetition divides it alike.

A topic may grow between two attempts at one batch, and divided by another number, some rows would be doubled, and
others lost. So in a named write to a topic, unless rows name their partitions, the first task that has rows writes the
number into a register of partition 0, and every other task, of any attempt, takes that one.
"""

from __future__ import annotations

import asyncio
import random
import struct
from hashlib import sha256
from typing import Final, NamedTuple

from polonaise.client.log import Log, partitions_of
from polonaise.client.own import append_own
from polonaise.client.protocol.backoff import Backoff
from polonaise.client.protocol.draft import Change, Expectation
from polonaise.errors import AppendUnknown, DeadlineExceeded, ExpectationFailed, PolonaiseError, Retry, fault
from polonaise.redaction import redacted
from polonaise.terms import OwnKind

PARTITION: Final = 0
"""The partition whose register holds what is agreed: each log, and each topic, has it from the beginning."""
_PREFIX: Final = b"spark/\0partitions/"
"""The beginning of the register's key. The zero byte tells it from an application's register, `spark/<txnAppId>`."""
_PAUSE_S_MIN: Final = 0.05
_PAUSE_S_MAX: Final = 2.0
_LAST: Final = struct.Struct("<q")
_RUN: Final = struct.Struct("<qI")
_RUNS_MAX: Final = 64
"""The most numbers of partitions that are remembered. Batches before the oldest one's first are divided by it, too."""


class AgreedCounts(NamedTuple):
    """The decoded value of the register: by which number of partitions an application's batches are divided."""

    last: int
    """The latest batch for which the number of partitions was agreed; -1 for none."""
    runs: tuple[tuple[int, int], ...]
    """A batch, and the number of partitions from that batch on; ascending."""

    def of(self, batch: int) -> int:
        """Return by how many partitions a batch up to `last` is divided."""
        return next((count for first, count in reversed(self.runs) if first <= batch), self.runs[0][1])

    def with_batch(self, batch: int, count: int) -> AgreedCounts:
        """Return what is agreed once `batch`, which is above `last`, is divided by `count` partitions."""
        runs = self.runs if self.runs and self.runs[-1][1] == count else (*self.runs, (batch, count))
        return AgreedCounts(batch, runs[-_RUNS_MAX:])

    def pack(self) -> bytes:
        return _LAST.pack(self.last) + b"".join(_RUN.pack(*run) for run in self.runs)

    @classmethod
    def parse(cls, value: bytes, app: str) -> AgreedCounts:
        """Decode the register's value. Raises `sink_state_damaged` for bytes that no sink has written."""
        try:
            counts = cls(_LAST.unpack_from(value)[0], tuple(_RUN.iter_unpack(value[_LAST.size :])))
        except struct.error:
            counts = cls(-1, ())
        if not counts.runs or any(count < 1 for _, count in counts.runs):
            raise fault(
                "sink_state_damaged",
                f"the register of partition {PARTITION} that says how the batches of {app!r} are divided holds "
                f"{redacted(repr(value), 40)}, which no sink of this version has written; choose another txnAppId",
            )
        return counts


def counts_key(app: str) -> bytes:
    """Return the key of the register for an application."""
    return _PREFIX + sha256(app.encode()).digest()[:16].hex().encode()


async def agreed_count(log: Log, app: str, batch: int, timeout_s: float) -> int:
    """Return by how many partitions this batch of an application is divided; agree on the present number if none is.

    Raises `sink_state_damaged`, errors of the log that trying again can't mend, and `DeadlineExceeded`.
    """
    key = counts_key(app)
    backoff = Backoff(_PAUSE_S_MIN, _PAUSE_S_MAX)
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                value = await log.register(key, PARTITION, timeout=timeout_s)
                counts = AgreedCounts(-1, ()) if value is None else AgreedCounts.parse(value, app)
                if batch <= counts.last:
                    return counts.of(batch)
                expected = Expectation.absent(key) if value is None else Expectation.equals(key, value)
                change = Change.set(key, counts.with_batch(batch, log.partition_count).pack())
                try:
                    await log.ready(PARTITION)
                    partitions = partitions_of(log)
                    await append_own(partitions, PARTITION, OwnKind.BATCH, expectations=[expected], changes=[change])
                except (ExpectationFailed, AppendUnknown):
                    pass  # another task's number, or this one: the register says which has prevailed
                except PolonaiseError as error:
                    if error.retry is Retry.NEVER:
                        raise
                    await asyncio.sleep(backoff.pause_s(random.random()))
    except TimeoutError:
        raise DeadlineExceeded(
            f"by how many partitions batch {batch} of {app!r} is divided was not agreed within {timeout_s:g} s: see "
            f"what holds up partition {PARTITION}, and run the batch again"
        ) from None
