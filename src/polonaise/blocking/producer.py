"""An idempotent producer for threads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from polonaise.blocking.background import Background
from polonaise.blocking.receipt import receipts_wrapped
from polonaise.client import producer as asynchronous
from polonaise.client.protocol.locks import Lock
from polonaise.terms import TransactionId


class Producer:
    """A named writer of one partition that numbers its appends; returned by `Log.producer`. As `polonaise.Producer`."""

    def __init__(self, background: Background, producer: asynchronous.Producer) -> None:
        self._background = background
        self._producer = producer

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
        self,
        sequence: int,
        data: Any,
        *,
        header: int = 0,
        locks: Iterable[Lock] = (),
        timeout: float | None = None,
    ) -> TransactionId:
        """Append `data` under the number `sequence`; return its id once committed. As `polonaise.Producer.append`."""
        append = self._producer.append
        with receipts_wrapped(self._background):
            return self._background.call(lambda: append(sequence, data, header=header, locks=locks, timeout=timeout))
