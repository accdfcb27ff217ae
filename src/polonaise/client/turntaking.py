"""Lets contexts that want the same locks wait for their turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from polonaise.client.protocol.turns import Turn, Turns
from polonaise.client.waiting import AppliedMark, fail_all, until, wake
from polonaise.errors import PolonaiseError, fresh
from polonaise.terms import ClientId, TransactionId


class TurnTaking:
    """Wakes the contexts of one partition that want the same locks when it is their turn, as `Turns` decides."""

    def __init__(self, client_id: ClientId, mark: AppliedMark) -> None:
        self.turns = Turns(client_id)
        self._mark = mark
        # Dicts for their order: with sets, who is woken first would depend on where in memory the futures are.
        self._courteous: dict[asyncio.Future[None], None] = {}
        """Contexts that let rivals go first."""
        self._waiting: dict[asyncio.Future[None], None] = {}
        """Contexts that wait for others of this client."""
        self._stopped: PolonaiseError | None = None

    async def wait(self, turn: Turn, chance: Callable[[], float], deadline_s: float | None) -> None:
        """Wait until the context with this turn may run. `chance` returns a random number from 0 to 1. Raises
        `TimeoutError` after the deadline, a time of the loop, and the error that stopped the partition."""
        if not turn.granted:
            turn.waiter = asyncio.get_running_loop().create_future()
            await self._until(turn.waiter, self._waiting, deadline_s)
        await self._let_rivals_go(turn, chance(), deadline_s)
        # On a state without the rivals' last commits the context would only be refused.
        await self._mark.wait(self.turns.newest(turn), deadline_s)

    async def _let_rivals_go(self, turn: Turn, chance: float, deadline_s: float | None) -> None:
        """Wait until the rivals that go first have committed, or `Turns.patience_s` is over. Raises as `wait`."""
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
        self, future: asyncio.Future[None], waiting: dict[asyncio.Future[None], None], deadline_s: float | None
    ) -> None:
        if self._stopped is not None:
            raise fresh(self._stopped)
        waiting[future] = None
        try:
            await until(future, deadline_s)
        finally:
            waiting.pop(future, None)

    def leave(self, turn: Turn) -> None:
        wake(ready.waiter for ready in self.turns.leave(turn) if ready.waiter is not None)

    def leave_once_applied(self, turn: Turn, transaction: TransactionId, began_s: float) -> None:
        """Give up a turn once this client has applied its append, which is committed: only then does the next context
        see it. `began_s` is the loop's time at which the run began."""
        loop = asyncio.get_running_loop()

        def applied(reached: asyncio.Future[None]) -> None:
            if not reached.cancelled() and reached.exception() is None:
                self.turns.took(loop.time() - began_s)
            self.leave(turn)  # also when the mark rises no more: the others must not wait for ever

        self._mark.reached(transaction).add_done_callback(applied)

    def fed(self, first: TransactionId, clients: Sequence[ClientId]) -> None:
        """Note who wrote each transaction of a fed batch; if a rival did, wake the contexts in `_courteous`."""
        if self.turns.watching and self.turns.fed(first, clients):
            wake(self._courteous)

    def stop(self, error: PolonaiseError) -> None:
        self._stopped = error
        fail_all([*self._waiting, *self._courteous], error)
