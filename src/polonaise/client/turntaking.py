"""Waiting for one's turn among contexts that want the same locks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from polonaise.client.protocol.turns import Turn, Turns
from polonaise.client.waiting import AppliedMark, until
from polonaise.errors import PolonaiseError, fresh
from polonaise.terms import ClientId, TransactionId


class TurnTaking:
    """Tells contexts of one partition when it is their turn, as `Turns` decides."""

    def __init__(self, client_id: ClientId, mark: AppliedMark) -> None:
        self.turns = Turns(client_id)
        self._mark = mark
        self._courteous: set[asyncio.Future[None]] = set()
        """The contexts that let rivals go first; they look again when one has gone."""
        self._waiting: set[asyncio.Future[None]] = set()
        self._stopped: PolonaiseError | None = None

    async def wait(self, turn: Turn, chance: Callable[[], float], deadline_s: float | None) -> None:
        """Until it is this one's turn. Raises `TimeoutError`, or what stopped the partition."""
        if not turn.granted:
            turn.waiter = asyncio.get_running_loop().create_future()
            await self._until(turn.waiter, self._waiting, deadline_s)
        await self._let_rivals_go(turn, chance(), deadline_s)
        await self._mark.wait(self.turns.newest(turn), deadline_s)

    async def _let_rivals_go(self, turn: Turn, chance: float, deadline_s: float | None) -> None:
        turns, loop = self.turns, asyncio.get_running_loop()
        if not turns.owed(turn):
            return
        patience_s = loop.time() + turns.patience_s(turn, chance)
        while turns.owed(turn):
            future: asyncio.Future[None] = loop.create_future()
            try:
                await self._until(future, self._courteous, min(patience_s, deadline_s or patience_s))
            except TimeoutError:
                if deadline_s is not None and loop.time() >= deadline_s:
                    raise
                turns.given_up(turn)

    async def _until(
        self, future: asyncio.Future[None], kept: set[asyncio.Future[None]], deadline_s: float | None
    ) -> None:
        if self._stopped is not None:
            raise fresh(self._stopped)
        kept.add(future)
        try:
            await until(future, deadline_s)
        finally:
            kept.discard(future)

    def leave(self, turn: Turn) -> None:
        """It is over, or given up."""
        for ready in self.turns.leave(turn):
            if ready.waiter is not None and not ready.waiter.done():
                ready.waiter.set_result(None)

    def leave_once_applied(self, turn: Turn, transaction: TransactionId, began_s: float) -> None:
        """Its append is committed as this: the next one goes when it is applied, and so known to its context."""
        loop = asyncio.get_running_loop()

        def applied(reached: asyncio.Future[None]) -> None:
            if not reached.cancelled() and reached.exception() is None:
                self.turns.took(loop.time() - began_s)
            self.leave(turn)

        self._mark.reached(transaction).add_done_callback(applied)

    def fed(self, first: TransactionId, clients: Sequence[ClientId]) -> None:
        """A batch of the feed, with who wrote each of its transactions."""
        if self.turns.watching and self.turns.fed(first, clients):
            _wake(self._courteous)

    def stop(self, error: PolonaiseError) -> None:
        """The partition goes on no more: everybody who waits is told why."""
        self._stopped = error
        for future in [*self._waiting, *self._courteous]:
            if not future.done():
                future.set_exception(fresh(error))


def _wake(waiting: set[asyncio.Future[None]]) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)
