"""Requests to a partition's owner for the proof of copies: one at a time for each kind of needs, whoever waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from polonaise.client.waiting import end, fail_all, wake
from polonaise.errors import BeyondLog, PolonaiseError, fresh
from polonaise.host import Host
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId
from polonaise.wire.copies import Needs


class ProofRequests:
    """Asks the owner of one partition, on behalf of all the receipts that wait for what they need. An answer tells how
    far it is proved, so one request for the first of them serves thousands of waits."""

    def __init__(
        self, host: Host, partition: PartitionId, ask: Callable[[TransactionId, Needs], Awaitable[TransactionId]]
    ) -> None:
        """Begin with nothing proved. `ask` is `Requests.prove` for this partition."""
        self._host = host
        self._partition = partition
        self._ask = ask
        self._kinds: dict[Needs, _Kind] = {}
        self._mount = 0
        self._stopped: PolonaiseError | None = None

    async def prove(self, id: TransactionId, needs: Needs) -> None:
        """Return once a committed transaction is proved to be on what it needs. Raises as `ask`, and the error of
        `stop`."""
        if self._stopped is not None:
            raise fresh(self._stopped)
        kind = self._kinds.setdefault(needs, _Kind())
        if id <= kind.proved:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        kind.waiting[future] = id
        if kind.task is None:
            name = f"client: prove copies in partition {self._partition}"
            kind.task = self._host.spawn(self._prove_all(kind, needs), name)
        try:
            await future
        finally:
            kind.waiting.pop(future, None)
            if not kind.waiting:
                kind.end()

    async def _prove_all(self, kind: _Kind, needs: Needs) -> None:
        """Ask until nobody waits any more, each time for the first transaction that is waited for."""
        while kind.waiting:
            first, mount = min(kind.waiting.values()), self._mount
            try:
                proved = await self._ask(first, needs)
            except BeyondLog as error:
                # Of this transaction alone, the first one: the log's head was reset below it.
                fail_all(kind.taken(first), error)
                continue
            except PolonaiseError as error:
                fail_all(kind.taken(), error)
                break
            if mount != self._mount:
                continue  # it may be of the log before a reset of its head
            kind.proved = max(kind.proved, proved)
            wake(kind.taken(proved))
        kind.task = None

    def forget(self) -> None:
        """Take nothing for proved any more, because the partition was mounted anew."""
        self._mount += 1
        for kind in self._kinds.values():
            kind.proved = NO_TRANSACTION

    def stop(self, error: PolonaiseError) -> None:
        self._stopped = error
        for kind in self._kinds.values():
            fail_all(kind.taken(), error)
            kind.end()


class _Kind:
    """The waits for one kind of needs."""

    __slots__ = ("proved", "task", "waiting")

    def __init__(self) -> None:
        self.proved: TransactionId = NO_TRANSACTION
        """The last id that is proved since the partition was mounted; -1 for none. It stays so, but for a reset of the
        head, which ends the mount: only then do replicas cut what is committed."""
        self.waiting: dict[asyncio.Future[None], TransactionId] = {}
        self.task: asyncio.Task[None] | None = None

    def taken(self, upto: TransactionId | None = None) -> list[asyncio.Future[None]]:
        """Take out the waits for ids up to `upto`, by default all, and return their futures."""
        taken = [future for future, id in self.waiting.items() if upto is None or id <= upto]
        for future in taken:
            del self.waiting[future]
        return taken

    def end(self) -> None:
        task, self.task = self.task, None
        if task is not None:
            end(task)
