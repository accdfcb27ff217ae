"""Fetches bodies that do not come with the feed, ahead of their use."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from polonaise.checksum import crc32
from polonaise.client.clientparts import ClientParts
from polonaise.errors import BadOption, Closed, DataDamaged, PolonaiseError, ProtocolError
from polonaise.host.unawaited import retrieve
from polonaise.log.batch import Batch
from polonaise.terms import PartitionId, TransactionId
from polonaise.wire import messages
from polonaise.wire.fetches import FETCH_MAX, encode_fetch, parse_bodies

_log = logging.getLogger("polonaise.client")

_DAMAGED_MAX = 5
"""Attempts to fetch undamaged bodies."""


class BodyFetch:
    """The fetch of the bodies of one batch that the application wants."""

    __slots__ = ("_fetched", "crcs", "lengths", "transactions")

    def __init__(self, transactions: list[TransactionId], lengths: list[int], crcs: list[int]) -> None:
        self.transactions = transactions
        self.lengths = lengths
        self.crcs = crcs
        self._fetched: asyncio.Future[dict[TransactionId, bytes]] = asyncio.get_running_loop().create_future()
        self._fetched.add_done_callback(retrieve)

    @property
    def done(self) -> bool:
        return self._fetched.done()

    async def bodies(self) -> dict[TransactionId, bytes]:
        """Wait until the bodies are fetched; return them by id. Raises the error that fetching ended with."""
        return await asyncio.shield(self._fetched)  # a wait that is given up must not cancel the fetch

    def succeed(self, bodies: dict[TransactionId, bytes]) -> None:
        if not self._fetched.done():
            self._fetched.set_result(bodies)

    def fail(self, error: PolonaiseError) -> None:
        if not self._fetched.done():
            self._fetched.set_exception(error)

    def chunks(self, bytes_max: int) -> list[tuple[int, int]]:
        """Divide the bodies into parts of at most `FETCH_MAX` bodies and `bytes_max` bytes, or of one larger body.
        Returns positions in `transactions`, as (start, stop)."""
        cuts, start, size = [], 0, 0
        for position, length in enumerate(self.lengths):
            if position - start == FETCH_MAX or (size and size + length > bytes_max):
                cuts.append((start, position))
                start, size = position, 0
            size += length
        if start < len(self.lengths):
            cuts.append((start, len(self.lengths)))
        return cuts


class BodyFetcher:
    """Fetches bodies for one partition's view, several batches at once, beginning in the order of the feed."""

    def __init__(
        self, parts: ClientParts, partition: PartitionId, wants: Callable[[int], bool] | None, own: bool
    ) -> None:
        self._host = parts.host
        self._partition = partition
        self._requests = parts.requests
        self._wants = wants
        self._own = own
        self._settings = parts.settings
        self._waiting: deque[BodyFetch] = deque()
        self._running = 0

    def begin(self, batch: Batch, after: TransactionId) -> BodyFetch:
        """Begin to fetch the wanted bodies, above id `after`, of a batch that came without data. If the application's
        `wants` raises, the fetch has failed with `BadOption`."""
        ends, crcs, first = batch.data_ends.tolist(), batch.data_crcs.tolist(), batch.first
        try:
            positions = self._wanted(batch, after)
        except Exception as error:  # noqa: BLE001 - the application's own code; told to the application
            # Not raised here, where a message is received: the connection would end, for all its partitions.
            fetch = BodyFetch([], [], [])
            failure = BadOption(
                f"wants= failed on a header among transactions {first} to {batch.last} of partition "
                f"{self._partition}: {error!r}: it has to accept or refuse each header"
            )
            failure.__cause__ = error
            fetch.fail(failure)
            return fetch
        lengths = [ends[position] - (ends[position - 1] if position else 0) for position in positions]
        fetch = BodyFetch(
            [first + position for position in positions], lengths, [crcs[position] for position in positions]
        )
        if positions:
            self._waiting.append(fetch)
            self._start()
        else:
            fetch.succeed({})
        return fetch

    def _wanted(self, batch: Batch, after: TransactionId) -> list[int]:
        wants, first = self._wants, batch.first
        return [
            position
            for position, (header, generation) in enumerate(zip(batch.headers, batch.generations, strict=True))
            if first + position > after and (self._own if generation < 0 else wants is None or wants(header))
        ]

    def _start(self) -> None:
        while self._waiting and self._running < self._settings.fetches_max:
            self._running += 1
            self._host.spawn(self._fetch(self._waiting.popleft()), f"client: fetch bodies of {self._partition}")

    async def _fetch(self, fetch: BodyFetch) -> None:
        try:
            bodies: dict[TransactionId, bytes] = {}
            for start, stop in fetch.chunks(self._settings.fetch_bytes):
                bodies.update(await self._fetch_checked(fetch.transactions[start:stop], fetch.crcs[start:stop]))
            fetch.succeed(bodies)
        except PolonaiseError as error:
            fetch.fail(error)
        finally:
            # Does nothing if the fetch has ended above; it has not when the task is cancelled.
            fetch.fail(Closed(f"fetching bodies of partition {self._partition} was interrupted"))
            self._running -= 1
            self._start()

    async def _fetch_checked(self, transactions: list[TransactionId], crcs: list[int]) -> dict[TransactionId, bytes]:
        """Fetch bodies and check them against the CRCs of the feed. Raises `DataDamaged`, and as `Requests.ask`."""
        for _ in range(_DAMAGED_MAX):
            answer = await self._requests.ask(self._partition, encode_fetch(transactions), messages.Bodies, None)
            try:
                bodies = parse_bodies(answer, len(transactions))
            except ProtocolError as error:
                _log.info("bodies of partition %d arrived damaged: %s", self._partition, error)
            else:
                if all(crc32(body) == crc for body, crc in zip(bodies, crcs, strict=True)):
                    return dict(zip(transactions, bodies, strict=True))
            await asyncio.sleep(self._settings.retry_s_min)
        raise DataDamaged(
            f"bodies among transactions {transactions[0]} to {transactions[-1]} of partition {self._partition} "
            f"did not fit the CRCs of the feed in {_DAMAGED_MAX} attempts: "
            "run `polonaise segment verify` on the storage directories"
        )
