"""Requests to the owner of a partition, over bulk connections; repeated, at another server if the owner changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from polonaise.client.links import Links, check_knows
from polonaise.client.protocol.backoff import Backoff
from polonaise.client.routes import Routes
from polonaise.client.settings import PATIENCES, ClientSettings
from polonaise.errors import BeyondLog, DeadlineExceeded, OwnTransaction, PolonaiseError, ProtocolError, Retry
from polonaise.host import Host
from polonaise.log.batch import Batch
from polonaise.log.registers import after, sets_of
from polonaise.patience import SyncPatience
from polonaise.terms import PartitionId, Transaction, TransactionId
from polonaise.wire.codec import Message
from polonaise.wire.copies import COPIES_VERSION, CopiesProved, Needs, ProveCopies
from polonaise.wire.leases import (
    LEASES_VERSION,
    AnsweredLease,
    AskedLease,
    HoldLeases,
    LeasesAre,
    LeasesReleased,
    ListedLease,
    ReleaseLeases,
    encode_asked,
    encode_names,
    parse_answered,
    parse_listed,
)
from polonaise.wire.messages import (
    PROTOCOL_VERSION_MIN,
    Batches,
    GetRegister,
    HighWaterMark,
    HighWaterMarkIs,
    ListRegisters,
    Read,
    RegisterIs,
    RegistersListed,
    request_words,
)

M = TypeVar("M", bound=Message)

_log = logging.getLogger("polonaise.client")


class Requests:
    """Sends requests to owners that can be repeated: making their change twice is the same as once."""

    def __init__(self, host: Host, routes: Routes, links: Links, settings: ClientSettings) -> None:
        self._host = host
        self.wall_us = links.wall_us
        self._routes = routes
        self._links = links
        self._settings = settings
        self._patience: dict[PartitionId, SyncPatience] = {}
        """How long an owner is waited for, by partition: each has its own disks."""

    def id_of(self, partition: PartitionId) -> PartitionId:
        return self._routes.id_of(partition)

    async def ask(
        self,
        partition: PartitionId,
        request: Message,
        answer: type[M],
        timeout: float | None,
        *,
        wait_s: float = 0.0,
        version: int = PROTOCOL_VERSION_MIN,
        report: Callable[[PolonaiseError], None] | None = None,
        since_s: float | None = None,
    ) -> M:
        """Send a request to the partition's owner, and return the answer.

        After an error that may pass, the request is sent again after a pause, to whichever server is the owner then;
        when an answer did not come in time, the next one is waited for longer. Raises other errors and `BeyondLog`, and
        `DeadlineExceeded` after `timeout` seconds over all attempts.

        The request lets the server wait for `wait_s` seconds. `report` is called with each error after which it is sent
        again. A server whose protocol does not reach `version` raises `UnsupportedVersion`. `since_s` is when the
        silence that the error tells of began, if before this call.
        """
        backoff = Backoff(self._settings.retry_s_min, self._settings.retry_s_max)
        trouble: PolonaiseError | None = None
        try:
            async with asyncio.timeout(timeout):
                while True:
                    try:
                        return await self._ask_once(partition, request, answer, wait_s, version)
                    except BeyondLog as error:
                        # The caller's to judge: the log may get there.
                        raise self._routes.explained(error, partition) from None
                    except PolonaiseError as error:
                        if error.retry not in (Retry.AGAIN, Retry.ELSEWHERE):
                            raise self._routes.explained(error, partition) from error.__cause__
                        _log.info("partition %d: %s is sent again: %s", partition, type(request).__name__, error)
                        trouble = error
                        if report is not None:
                            report(error)
                        if error.retry is Retry.ELSEWHERE:
                            await self._routes.reread()
                    await asyncio.sleep(backoff.pause_s(self._host.random.random()))
        except TimeoutError:
            because = f" (the last trouble: {trouble})" if trouble else ""
            # Not of this call alone: its timeout may be what was left of a longer one, next to nothing.
            silent_s = timeout if since_s is None else round(self._host.clock.monotonic_s() - since_s, 2)
            raise DeadlineExceeded(
                f"partition {partition} was asked for {request_words(request)} and did not answer within "
                f"{silent_s:g} s: it waited for {self._routes.waits_for(partition)}{because}"
            ) from trouble

    async def _ask_once(
        self, partition: PartitionId, request: Message, answer: type[M], wait_s: float, version: int
    ) -> M:
        owner = await self._routes.owner(partition)
        connection = await self._links.bulk(owner.address, partial(self._routes.route, partition, owner))
        check_knows(connection, version, f"a request for {request_words(request)}")
        patience, clock = self._patience_of(partition), self._host.clock
        id, began_s, deadline_s = self._routes.id_of(partition), clock.monotonic_s(), patience.seconds
        try:
            received = await connection.request(request, partition=id, deadline_s=deadline_s + wait_s)
        except DeadlineExceeded:
            patience.exceeded(deadline_s, clock.monotonic_s())
            raise
        now_s = clock.monotonic_s()
        patience.answered(max(0.0, now_s - began_s - wait_s), now_s)
        if isinstance(received, answer):
            return received
        raise ProtocolError(
            f"{owner.address} sent {type(received).__name__}, which is no answer to {type(request).__name__}"
        )

    def _patience_of(self, partition: PartitionId) -> SyncPatience:
        patience = self._patience.get(partition)
        if patience is None:
            least_s = self._settings.request_s_max
            patience = self._patience[partition] = SyncPatience(least_s, PATIENCES * least_s)
        return patience

    async def high_water_mark(
        self, partition: PartitionId, timeout: float | None, report: Callable[[PolonaiseError], None] | None = None
    ) -> TransactionId:
        """Return the committed high-water mark, proved by the owner after the request arrived. Raises as `ask`."""
        answer = await self.ask(partition, HighWaterMark(), HighWaterMarkIs, timeout, report=report)
        return answer.high_water_mark

    async def prove(self, partition: PartitionId, id: TransactionId, needs: Needs) -> TransactionId:
        """Wait until a committed transaction is proved to be on what it needs; return the last id of which that is
        proved. Raises as `ask`, which has `UnsupportedVersion` for an owner that knows no such requests."""
        answer = await self.ask(partition, ProveCopies(id, *needs), CopiesProved, None, version=COPIES_VERSION)
        return answer.id

    async def hold_leases(
        self,
        partition: PartitionId,
        holder: int,
        duration_s: float,
        asked: Sequence[AskedLease],
        prefix: str | None,
        timeout: float,
        since_s: float | None = None,
    ) -> tuple[list[AnsweredLease], list[ListedLease]]:
        """Ask for leases; return the owner's answer for each, and all leases whose names begin with `prefix`, if any. A
        lease that was granted is held for `duration_s` from the moment of this call. Raises as `prove`."""
        request = HoldLeases(
            holder, round(duration_s * 1000), prefix is not None, encode_asked(asked), "" if prefix is None else prefix
        )
        answer = await self.ask(partition, request, LeasesAre, timeout, version=LEASES_VERSION, since_s=since_s)
        answered = parse_answered(answer.answered)
        if len(answered) != len(asked):
            raise ProtocolError(
                f"the owner of partition {partition} was asked for {len(asked)} leases, and answered for "
                f"{len(answered)}"
            )
        return answered, parse_listed(answer.listed)

    async def release_leases(self, partition: PartitionId, holder: int, names: Sequence[str], timeout: float) -> None:
        request = ReleaseLeases(holder, encode_names(names))
        await self.ask(partition, request, LeasesReleased, timeout, version=LEASES_VERSION)

    async def transaction(self, partition: PartitionId, id: TransactionId, timeout: float) -> Transaction:
        """Return one transaction, its bytes checked. Raises as `ask`, and `OwnTransaction`."""
        request = Read(first=id, bytes_max=1, wait_ms=0, with_data=1, after_time_us=0)
        answer = await self.ask(partition, request, Batches, timeout)
        batch = Batch.parse(answer.payload[0]) if answer.payload else None
        if batch is not None and batch.partition == self.id_of(partition) and batch.first <= id <= batch.last:
            batch.partition = partition
            tx = next(batch.transactions(id - 1, own=True))
            if tx.own:
                raise OwnTransaction(
                    f"transaction {id} of partition {partition} is the library's own, and no application's: "
                    "log.read passes over such transactions, and `polonaise segment dump` shows them"
                )
            return tx
        raise BeyondLog(f"transaction {id} of partition {partition} is not in the log, or not committed yet")

    async def register(self, partition: PartitionId, key: bytes, timeout: float | None) -> bytes | None:
        """Return a register's value, proved by the owner after the request arrived; None if it is absent."""
        answer = await self.ask(partition, GetRegister(key), RegisterIs, timeout)
        return answer.value if answer.present else None

    async def registers(self, partition: PartitionId, prefix: bytes, timeout: float | None) -> dict[bytes, bytes]:
        """Return the registers whose keys begin with `prefix`, in the order of keys, each page proved by the owner.
        `timeout` is over all pages. Raises as `ask`."""
        values: dict[bytes, bytes] = {}
        clock, first, more = self._host.clock, prefix, 1
        began_s = clock.monotonic_s()
        until_s = None if timeout is None else began_s + timeout
        while more:
            left_s = None if until_s is None else max(until_s - clock.monotonic_s(), 0.0)
            listed = await self.ask(partition, ListRegisters(first, prefix), RegistersListed, left_s, since_s=began_s)
            page = dict(sets_of(listed.snapshot))
            if not all(key >= first and key.startswith(prefix) for key in page) or (listed.more and not page):
                raise ProtocolError(
                    f"the owner of partition {partition} was asked for registers from {first!r} on with the prefix "
                    f"{prefix!r}, and sent others, or none although there are more"
                )
            values |= page
            more = listed.more
            first = after(max(page, default=first))
        return values
