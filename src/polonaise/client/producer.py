"""Idempotent producers: the application numbers its appends, and no number is in the log twice, whatever crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from polonaise.client.appends import PartitionAppends
from polonaise.client.clientparts import ClientParts
from polonaise.client.protocol.arguments import checked_id, checked_seconds, encoded, wrong
from polonaise.client.protocol.backoff import Backoff
from polonaise.client.protocol.draft import Expectation, checked_body, checked_header, joined, operations
from polonaise.client.protocol.locks import Lock
from polonaise.errors import (
    AppendUnknown,
    BadOption,
    DeadlineExceeded,
    ExpectationFailed,
    PolonaiseError,
    ProducerFenced,
    ProducerSequence,
    Retry,
)
from polonaise.log import registers
from polonaise.log.producers import IDS_KEPT, KEY_PREFIX, OPEN, Produced, pack_request
from polonaise.terms import ChangeKind, TransactionId
from polonaise.wire.appends import CHANGE

_PRODUCE = CHANGE + ChangeKind.PRODUCE


class Producer:
    """A named writer of one partition that numbers its appends; returned by `Log.producer`.

    ::

        producer = await log.producer("billing", partition=0)
        for number in range(producer.last_sequence + 1, len(invoices)):  # after a crash, it goes on from there
            await producer.append(number, invoices[number])

    Only the `Producer` that was opened last under a name can append: opening another one, in any process, fences the
    one before. Numbers start at 0 and rise by one. At most 16 appends are under way at once, because the log remembers
    the last 16: each of them can be repeated after a crash, and is answered with the id of the first time.
    """

    def __init__(
        self, name: str, key: bytes, produced: Produced, parts: ClientParts, appends: PartitionAppends
    ) -> None:
        self.name = name
        """The producer's name."""
        self.epoch: int = produced.epoch
        """How often the producer was opened, this time included."""
        self.last_sequence: int = produced.last_sequence
        """The highest number that this producer knows to be in the log; -1 for none."""
        self._key = key
        self._appends = appends
        self._host = parts.host
        self._encode = parts.encode
        self._settings = parts.settings
        self._slots = asyncio.Semaphore(IDS_KEPT)
        self._under_way: dict[int, asyncio.Future[None]] = {}

    async def append(
        self, sequence: int, data: Any, *, header: int = 0, locks: Iterable[Lock] = (), timeout: float | None = None
    ) -> TransactionId:
        """Append `data` under the number `sequence`, wait until it is committed, and return its transaction id.

        A repetition appends nothing, and returns the id of the first time. Failures that may pass are tried again.

        Raises `ProducerFenced` when the producer has been opened again, in any process; `ProducerSequence` for a number
        that is neither the next nor one of the last 16; `ProducerDiffers` for one that is in the log with another body
        or header. `AppendUnknown`, after `timeout` seconds or when the client or the partition ends meanwhile: append
        again with the same number, by a producer of a new client if this one is closed, to learn what became of it.
        Further `LockConflict`, `BodyTooLarge`, `TooManyLocks`, `RegistersFull`, `BadOption`, `Closed`.
        """
        checked_id("sequence", sequence, 0, "a producer's numbers are integers from 0 to 2**63 - 1")
        checked_seconds("timeout", timeout)
        checked_header(header)
        limits = self._settings.limits
        body = checked_body(data if self._encode is None else self._encode(data), limits)
        lock_bytes = joined(locks, limits)
        try:
            async with asyncio.timeout(timeout):
                return await self._append(sequence, body, header, lock_bytes)
        except TimeoutError:
            raise AppendUnknown(
                f"append {sequence} of producer {self.name!r} is not decided after {timeout:g} s: "
                f"call append again with the same number{self._appends.silence()}"
            ) from None

    async def _append(self, sequence: int, body: bytes, header: int, locks: bytes) -> TransactionId:
        async with self._slots:
            over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            earlier, self._under_way[sequence] = self._under_way.get(sequence), over
            try:
                if earlier is not None:
                    # The same number twice at a time: the second is sent when the first is over, so `_under_way` needs
                    # one place for both. Shielded: giving up the second must not cancel the future of the first.
                    await asyncio.shield(earlier)
                return await self._append_until_decided(sequence, body, header, locks)
            finally:
                if self._under_way.get(sequence) is over:
                    del self._under_way[sequence]
                over.set_result(None)

    async def _append_until_decided(self, sequence: int, body: bytes, header: int, locks: bytes) -> TransactionId:
        backoff = Backoff(self._settings.retry_s_min, self._settings.retry_s_max)
        produce = [(_PRODUCE, self._key, pack_request(self.epoch, sequence))]
        while True:
            await self._appends.admission.wait(None)
            try:
                receipt = await self._appends.append(body, header, None, locks, produce)
            except ProducerSequence:
                # A lower number may have failed for a passing reason and be on its way again: this one comes after it.
                earlier = [future for number, future in self._under_way.items() if number < sequence]
                if not earlier:
                    raise
                await asyncio.wait(earlier)
                continue
            except PolonaiseError as error:
                if error.retry is not Retry.AGAIN:
                    raise
                await asyncio.sleep(backoff.pause_s(self._host.random.random()))
                continue
            self.last_sequence = max(self.last_sequence, sequence)
            return receipt.id


async def open_producer(name: str, parts: ClientParts, appends: PartitionAppends, timeout: float) -> Producer:
    if not isinstance(name, str):
        raise wrong("name", name, "a producer's name is text")
    key = KEY_PREFIX + encoded("name", name)
    if not name or len(key) > registers.KEY_BYTES_MAX:
        raise BadOption(
            f"a producer's name of {len(key) - len(KEY_PREFIX)} bytes; "
            f"it has to have 1 to {registers.KEY_BYTES_MAX - len(KEY_PREFIX)}"
        )
    settings = parts.settings
    backoff = Backoff(settings.retry_s_min, settings.retry_s_max)
    try:
        async with asyncio.timeout(timeout):
            while True:
                register = await parts.requests.register(appends.partition, key, timeout)
                produced = Produced() if register is None else Produced.parse(register)
                try:
                    await _open(key, register, produced, appends)
                except (ExpectationFailed, ProducerFenced):
                    pass  # it was opened elsewhere since the register was read: read it anew, and fence that one
                except PolonaiseError as error:
                    if error.retry is not Retry.AGAIN:
                        raise
                else:
                    opened = produced.opened(produced.epoch + 1)
                    return Producer(name, key, opened, parts, appends)
                await asyncio.sleep(backoff.pause_s(parts.host.random.random()))
    except TimeoutError:
        raise DeadlineExceeded(
            f"producer {name!r} could not be opened within {timeout:g} s: {appends.why_it_waits()}"
        ) from appends.trouble


async def _open(key: bytes, register: bytes | None, produced: Produced, appends: PartitionAppends) -> None:
    expectation = Expectation.absent(key) if register is None else Expectation.equals(key, register)
    produce = (_PRODUCE, key, pack_request(produced.epoch + 1, OPEN))
    await appends.admission.wait(None)
    await appends.append(b"", 0, None, b"", [*operations([expectation], []), produce])
