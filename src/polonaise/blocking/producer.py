"""An idempotent producer for threads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from polonaise.blocking.background import Background
from polonaise.blocking.receipt import waited
from polonaise.client import producer as asynchronous
from polonaise.client.protocol.locks import Lock
from polonaise.terms import TransactionId


class Producer:
    # ---- from polonaise.client.producer by `make blocking`: change it there

    """A named writer of one partition that numbers its appends; returned by `Log.producer`.

    ::

        producer = log.producer("billing", partition=0)
        for number in range(producer.last_sequence + 1, len(invoices)):  # after a crash, it goes on from there
            producer.append(number, invoices[number])

    Only the `Producer` that was opened last under a name can append: opening another one, in any process, fences the
    one before. Numbers start at 0 and rise by one. At most 16 appends are under way at once, because the log remembers
    the last 16: each of them can be repeated after a crash, and is answered with the id of the first time.
    """

    @property
    def name(self) -> str:
        """The producer's name."""
        return self._producer.name

    @property
    def epoch(self) -> int:
        """How often the producer was opened, this time included."""
        return self._producer.epoch

    @property
    def last_sequence(self) -> int:
        """The highest number that this producer knows to be in the log; -1 for none."""
        return self._producer.last_sequence

    def append(
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
        return waited(
            self._background, lambda: self._producer.append(sequence, data, header=header, locks=locks, timeout=timeout)
        )

    # ---- by hand: what differs for threads

    def __init__(self, background: Background, producer: asynchronous.Producer) -> None:
        self._background = background
        self._producer = producer
