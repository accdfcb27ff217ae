"""The catch-up of late replicas: they are brought up to date in the background, then let in by a new session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from polonaise.errors import DeadlineExceeded, PolonaiseError, ProtocolError, invariant
from polonaise.server.archivedhistory import ToCopy, copy_on, read_to_copy
from polonaise.server.partitionreader import PartitionReader
from polonaise.server.protocol import headreset, recovery
from polonaise.server.protocol.session import Session
from polonaise.server.sessionstart import answer_of, cut_of
from polonaise.server.sharedparts import SharedParts
from polonaise.server.storagelinks import expect
from polonaise.terms import StorageId, TransactionId
from polonaise.wire.messages import Confirm, Done, LastSessionInfo, ReadBatches, SessionInfo

_log = logging.getLogger(__name__)
_LOOK_S = 0.5


class CatchUp:
    """Copies committed batches to the members that are not engaged in one session, and to one that is being added.

    A replica comes back only through a new session: when one is nearly up to date, the present session is ended, and
    the next one copies the rest and engages it.
    """

    def __init__(
        self,
        shared: SharedParts,
        reader: PartitionReader,
        session: Session,
        readmit: Callable[[StorageId], None],
        readmitted_s: float,
    ) -> None:
        """`readmit` ends the session to let a replica back in, and was last called at `readmitted_s` (monotonic)."""
        self._shared = shared
        self._reader = reader
        self._owner = reader.owner
        self._session = session
        self._readmit = readmit
        self._readmitted_s = readmitted_s

    async def run(self) -> None:
        """Bring late replicas up to date until the session ends, side by side: none keeps the others waiting."""
        late = [name for name in recovery.participants(self._session.value) if name not in self._session.engaged]
        async with asyncio.TaskGroup() as group:
            for name in late:
                group.create_task(self._bring_up_to_date(name))

    async def _bring_up_to_date(self, name: StorageId) -> None:
        link = self._shared.links[name]
        connection = link.session
        while self._owner.session is self._session:
            if link.session is None:  # no polling: in thousands of partitions that would cost much
                self._owner.readiness.replica_not_copied(name)
                await link.connected()
            # At random: a node that connects is late in all partitions, which should not look at the same moment.
            await asyncio.sleep(_LOOK_S * (0.5 + self._shared.host.random.random()))
            if link.session is not connection:
                # What kept the node's earlier life from being copied to, such as a full disk, may be over.
                connection = link.session
                self._owner.readiness.replica_late(name, "")
            # Copies go over the bulk connection. The wait above was for the session connection.
            if link.bulk is None:
                continue
            try:
                await self._copy_to(name)
                # Ends the session, and with it all of this: the next session's catch-up copies to the other nodes.
                await self._let_back_in(name)
            except PolonaiseError as error:
                self._owner.readiness.replica_not_copied(name)
                self._owner.readiness.replica_late(name, str(error))
                _log.info(
                    "partition %d: %s is not brought up to date: %s", self._owner.partition, name, error,
                    extra={
                        "partition": self._owner.partition, "generation": self._owner.generation,
                        "session": self._session.id, "storage": name,
                    },
                )  # fmt: skip

    async def _let_back_in(self, name: StorageId) -> None:
        """End the session to let `name` back in, but not too soon after the last time, or while the session rests."""
        until_s = max(self._readmitted_s + self._shared.settings.readmit_s_min, self._session.rests_until_s)
        wait_s = until_s - self._shared.host.clock.monotonic_s()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        if self._owner.session is self._session:
            self._readmit(name)

    async def _copy_to(self, name: StorageId) -> None:
        """Copy committed batches to one replica until it is nearly up to date; each round takes a turn."""
        session, ask = self._session.id, self._reader.ask
        # The request fences the replica for the present session: from now on it obeys this owner, and no older one.
        async with self._shared.copies.turn(name):
            info = expect(await ask(name, LastSessionInfo(session)), SessionInfo)
        answer = answer_of(info)
        if answer.joined == session:
            # It joined and was left out of the engagement: in this session it takes neither cuts nor copies. The caller
            # lets it in through a new one.
            return
        last: TransactionId = answer.max_synced
        value = self._session.value
        clean = headreset.clean_to(value, name, answer, self._session.closing)
        if last > clean or answer.lost_above is not None or headreset.must_be_cut(value, answer, clean):
            last = expect(await ask(name, cut_of(session, value, answer, clean)), Done).last
        self._owner.readiness.replica_reached(name, last)
        copied, worked_s = 0, 0.0
        while (missing := self._owner.committed - last) > 0:
            few = missing <= min(copied, self._shared.settings.readmit_transactions)
            # By what is missing, not by the last round: where many take turns, each round is long, and what has come
            # since may still be little. The next session copies it, and appends wait no longer than that.
            quick_s = max(self._shared.settings.gather_s / 4, self._session.pace_s)
            if few and worked_s * missing / copied <= quick_s:
                return
            self._tell_progress(name, missing)
            async with self._shared.copies.copy(name) as copy:
                committed = self._owner.committed
                read = await self._read(last + 1, committed)
                done = await copy_on(partial(ask, name), session, name, last, read)
                copy.copied_bytes = len(read.payload)
                copied, last = done.last - last, done.last
                self._owner.readiness.replica_reached(name, last)
                # The replica keeps what is confirmed through every decision, so nothing else may be.
                invariant(last <= committed, "a late replica is told as committed only what is")
                # Confirmed at once: what is confirmed is not cut again, even if the next session comes before the end.
                await ask(name, Confirm(session, last))
            worked_s = copy.worked_s

    def _tell_progress(self, name: StorageId, missing: int) -> None:
        """Tell in health that a replica falls behind, if `missing` got no less for a long time."""
        patience_s = self._shared.settings.warn_again_s
        if self._owner.readiness.replica_lacks(name, missing, self._shared.host.clock.monotonic_s(), patience_s):
            reason = (
                f"falls behind: for {patience_s:g} s it lacked no less than before, because appends come as fast as "
                f"copies; {self._shared.copies.bytes_per_s / 1e6:.1f} MB/s may be copied at present: raise "
                "copy_bytes_per_s_min or copy_share, or append less"
            )
            self._owner.readiness.replica_late(name, reason)

    async def _read(self, first: TransactionId, last: TransactionId) -> ToCopy:
        request = ReadBatches(self._session.id, first, last, self._shared.settings.copy_bytes, 1, 0)
        no_source = ProtocolError("no engaged replica is connected for copying")
        deadline_s = self._reader.patience.seconds
        try:
            return await read_to_copy(
                self._reader.ask_to_read, self._session.engaged, request, self._owner.partition, self._reader.history,
                no_source,
            )  # fmt: skip
        except DeadlineExceeded:
            self._reader.patience.exceeded(deadline_s, asyncio.get_running_loop().time())
            raise
