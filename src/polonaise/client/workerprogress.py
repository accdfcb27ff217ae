"""How far a worker is in a partition, kept where another worker finds it: in a register, or in a view's database.

Each worker raises an epoch when it takes a partition over, and what is kept under an earlier one is refused.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from polonaise.client.partitions import UsedPartitions, append_own
from polonaise.client.protocol.backoff import Backoff
from polonaise.client.protocol.draft import Change, Expectation
from polonaise.client.view import gone_back, takes_nothing
from polonaise.errors import AppendUnknown, BadOption, ExpectationFailed, PolonaiseError, Retry, WorkerFenced
from polonaise.log.registers import GROUPS
from polonaise.redaction import redacted
from polonaise.terms import NO_TRANSACTION, OwnKind, PartitionId, Transaction, TransactionId

Handler = Callable[[Transaction], Awaitable[None]]

Present = Callable[[], Awaitable[Collection[str]]]
"""Returns the names of the worker groups that have members at present."""

_log = logging.getLogger("polonaise.client")

_KEPT: Final = struct.Struct("<qq")


class WorkedView(Protocol):
    """A view that workers of a group can share: `polonaise.SqlView` is one."""

    async def claim(self, partition: PartitionId, group: str, present: Present) -> None: ...

    async def take_over(self, partition: PartitionId) -> tuple[TransactionId, int]: ...

    async def stepped_back(self, positions: Mapping[PartitionId, TransactionId]) -> Collection[PartitionId]: ...

    async def apply_run_under(self, epoch: int, run: Sequence[Transaction]) -> TransactionId: ...

    def failed(self, partition: PartitionId, id: TransactionId, error: Exception) -> Awaitable[None] | None: ...


class Progress(Protocol):
    """How far a worker is in one partition."""

    epoch: int
    """How often the partition was taken over, this time included; 0 before `take_over`."""
    position: TransactionId
    """The last id that was handled; -1 for none."""
    may_wait_for: str
    """What a step that takes long may be waiting for, as the end of a sentence."""
    doubtful: bool
    """Whether something was read that another worker, or an operator, may have written to take the partition over."""

    @property
    def unsaved(self) -> bool:
        """Whether transactions were handled since the position was saved."""

    async def take_over(self) -> None:
        """Raise the epoch, and read the position."""

    async def handle(self, run: Sequence[Transaction], holds: Callable[[], bool]) -> None:
        """Handle a run that follows the position, the library's own transactions included; move the position.

        Stops early when `holds()` is false. Raises `WorkerFenced`, and what the application raises: the position is
        then before the transaction to blame, or before some that come again with it; before the whole run if what was
        handled was lost (`ViewUnavailable`).
        """

    async def save(self) -> None:
        """Keep the position where the next worker finds it. Raises `WorkerFenced`."""

    async def check(self) -> None:
        """Raise `WorkerFenced` if the partition was taken over from this worker."""


class ViewProgress:
    """The progress of a view, whose database has epoch, position and effects, changed in one SQL transaction."""

    def __init__(self, view: WorkedView, partition: PartitionId, group: str, present: Present) -> None:
        self._view = view
        self._group = group
        self._present = present
        self._partition = partition
        self._singly = range(0)
        """The ids of the run that failed last: these transactions are applied one by one."""
        self.epoch = 0
        self.position = NO_TRANSACTION

    unsaved = False
    doubtful = False
    may_wait_for = ": the database may not answer, or another process holds locks in it, one that hangs or was stopped"

    async def take_over(self) -> None:
        await self._view.claim(self._partition, self._group, self._present)
        before = self.position
        self.position, self.epoch = await self._view.take_over(self._partition)
        if self.position < before:
            self._singly = range(0)
            _log.warning("worker: %s", gone_back(self._partition, before, self.position).text)

    async def handle(self, run: Sequence[Transaction], holds: Callable[[], bool]) -> None:
        while run and holds():
            before, together = self.position, run[:1] if self.position + 1 in self._singly else run
            try:
                self.position = await self._view.apply_run_under(self.epoch, together)
            except PolonaiseError:
                raise
            except Exception as error:
                if len(together) == 1:
                    told = self._view.failed(self._partition, together[0].id, error)
                    if told is not None:
                        await told
                    raise
                self._singly = range(before + 1, together[-1].id + 1)
            else:
                if self.position < before:
                    self._singly = range(0)
                    raise gone_back(self._partition, before, self.position)
                if self.position == before:
                    raise takes_nothing(self._partition, together[0].id, before)
            run = [tx for tx in run if tx.id > self.position]

    async def save(self) -> None:
        pass

    async def check(self) -> None:
        pass  # each SQL transaction compares the epoch, and nobody but a worker raises it


class HandlerProgress:
    """The progress of a handler: epoch and position in a register of the partition, saved now and then. What was
    handled since it was saved is handled again by the next worker."""

    may_wait_for = ""

    def __init__(self, partitions: UsedPartitions, group: str, partition: PartitionId, handler: Handler) -> None:
        self._partitions = partitions
        self._key = register_of(group)
        self._partition = partition
        self._handler = handler
        self._kept: bytes | None = None
        self._saved = NO_TRANSACTION
        self._saved_by = NO_TRANSACTION
        """The transaction that saved the position last."""
        self._one_saves = asyncio.Lock()
        self.doubtful = False
        self.epoch = 0
        self.position = NO_TRANSACTION

    @property
    def unsaved(self) -> bool:
        return self.position > self._saved

    async def take_over(self) -> None:
        epoch, position = await replace_kept(
            self._partitions, self._partition, self._key, lambda epoch, position: (epoch + 1, position)
        )
        self.epoch, self.position, self._saved = epoch, position, position
        self._kept = _KEPT.pack(epoch, position)

    async def handle(self, run: Sequence[Transaction], holds: Callable[[], bool]) -> None:
        for tx in run:
            if not holds():
                return
            if tx.own:
                # Passed over and not worth saving: else each saving would make the next one necessary.
                if self._saved == self.position:
                    self._saved = tx.id
                if tx.header == OwnKind.GROUP and tx.id > self._saved_by:
                    self.doubtful = True
            else:
                await self._handle(tx)
            self.position = tx.id

    async def _handle(self, tx: Transaction) -> None:
        try:
            await self._handler(tx)
        except WorkerFenced as error:  # of another group, which the handler works for
            raise RuntimeError(f"the handler raised {error!r}") from error

    async def save(self) -> None:
        async with self._one_saves:
            assert self._kept is not None
            position = self.position
            kept = _KEPT.pack(self.epoch, position)
            try:
                self._saved_by = await _keep(self._partitions, self._partition, self._key, self._kept, kept)
            except (ExpectationFailed, AppendUnknown):
                present = await self._present()
                if present != kept:
                    self._kept = present  # perhaps by a saving of ours that was given up on, and came through
                    raise
            self._kept, self._saved = kept, max(position, self._saved)

    async def check(self) -> None:
        self.doubtful = False
        await self._present()

    async def _present(self) -> bytes | None:
        """Return what the register holds. Raises `WorkerFenced` if it has another epoch than this worker's."""
        present = await self._partitions.parts.requests.register(self._partition, self._key, None)
        if parse_kept(present)[0] != self.epoch:
            raise WorkerFenced(
                f"partition {self._partition} was taken over from this worker, which had epoch {self.epoch}: it goes "
                "on there"
            )
        return present


def register_of(group: str) -> bytes:
    """Return the key of the register in which a group keeps its position in a partition."""
    return GROUPS + group.encode()


def parse_kept(value: bytes | None) -> tuple[int, TransactionId]:
    """Return the epoch and the position that a register has. Raises `BadOption` for bytes that no worker wrote."""
    if value is None:
        return 0, NO_TRANSACTION
    if len(value) != _KEPT.size:
        raise BadOption(
            f"a group's register holds {redacted(repr(value), 40)}, which no worker has written: name the group "
            "otherwise"
        )
    epoch, position = _KEPT.unpack(value)
    return epoch, position


async def replace_kept(
    partitions: UsedPartitions,
    partition: PartitionId,
    key: bytes,
    change: Callable[[int, TransactionId], tuple[int, TransactionId]],
) -> tuple[int, TransactionId]:
    """Change epoch and position from what they are, however often others come in between; return the new ones."""
    backoff = Backoff(partitions.parts.settings.retry_s_min, partitions.parts.settings.retry_s_max)
    while True:
        before = await partitions.parts.requests.register(partition, key, None)
        after = change(*parse_kept(before))
        try:
            await _keep(partitions, partition, key, before, _KEPT.pack(*after))
        except ExpectationFailed:
            pass  # another one has changed them: read what they are
        except AppendUnknown:
            if await partitions.parts.requests.register(partition, key, None) == _KEPT.pack(*after):
                return after
        except PolonaiseError as error:
            if error.retry is Retry.NEVER:
                raise
        else:
            return after
        await asyncio.sleep(backoff.pause_s(partitions.parts.host.random.random()))


async def _keep(
    partitions: UsedPartitions, partition: PartitionId, key: bytes, before: bytes | None, after: bytes
) -> TransactionId:
    """Set the register to `after` by an own transaction, if it is `before`; return that transaction's id."""
    expected = Expectation.absent(key) if before is None else Expectation.equals(key, before)
    await partitions.appends_of(partition).admission.wait(None)
    change = Change.set(key, after)
    receipt = append_own(partitions, partition, OwnKind.GROUP, expectations=[expected], changes=[change])
    return (await receipt).id
