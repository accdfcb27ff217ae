"""Appends that need copies, and zones, beside their commit: they succeed once that is proved, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

from polonaise.client.condition import PartitionCondition
from polonaise.client.receipt import Receipt
from polonaise.client.waiting import check_loop
from polonaise.errors import CopiesUnproved, DeadlineExceeded, PolonaiseError
from polonaise.wire.copies import Needs


class CopiedReceipt(Receipt):
    """The receipt of an append that needs copies, or zones: as `Receipt`, but `done` only once these are proved.
    `committed` says whether the append is in the log. The owner is asked for the proof while somebody awaits the
    receipt; where it can be had no more, awaiting raises `CopiesUnproved`."""

    __slots__ = ("needs", "proved")

    def __init__(self, condition: PartitionCondition, count: int, size: int, needs: Needs) -> None:
        super().__init__(condition, count, size)
        self.needs = needs
        self.proved = False
        """Whether the append is proved to be on the copies and zones that it needs: only once it was awaited."""

    @property
    def done(self) -> bool:
        """Whether the receipt is settled: proved, failed, or unknown for good (`AppendUnknown`)."""
        return self.proved or self.failure is not None

    @property
    def error(self) -> PolonaiseError | None:
        """The error that awaiting the receipt raises; None while it would go on waiting, and once proved."""
        if self.id >= 0 and not self.proved and self._condition.stopped is not None:
            return self.unproved(str(self._condition.stopped))
        return super().error

    def __await__(self) -> Generator[None, None, Receipt]:
        yield from super().__await__()
        if not self.proved:
            yield from self._prove().__await__()
        return self

    async def wait(self, deadline_s: float | None) -> None:
        async with asyncio.timeout_at(deadline_s):
            await super().wait(None)
            if self.failure is None:
                await self._prove()

    async def _prove(self) -> None:
        if self.proved:
            return
        check_loop(self._condition.loop)
        try:
            await self._condition.prove(self.last_id, self.needs)
        except PolonaiseError as error:
            raise self.unproved(str(error)) from error
        self.proved = True

    def unproved(self, why: str) -> CopiesUnproved:
        later = "await the error's receipt to wait on"
        if self._condition.stopped is not None:
            later = "this client can't wait for the proof any more, and a new one finds the append under that id"
        return CopiesUnproved(
            f"append {self.sequence} to partition {self.partition} is in the log as {self.id}, for good, and is not "
            f"proved to be on {self.needs}: {why}. Do not append it again; {later}",
            self,
        )

    async def applied(self, timeout: float | None = None) -> None:
        """Wait as `Receipt.applied` does; raises `CopiesUnproved` instead of `DeadlineExceeded` for what is committed
        and not proved."""
        try:
            await super().applied(timeout)
        except DeadlineExceeded as error:
            if self.id < 0 or self.proved:
                raise
            raise self.unproved(self.late(timeout)) from error

    def late(self, timeout: float | None) -> str:
        return f"the {timeout or 0:g} s are over{self._condition.because()}"
