"""The server in memory speaks the protocol as a server of a cluster does, also where a client does not look."""

from __future__ import annotations

from polonaise.host.real import RealClock
from polonaise.log.registers import TOTAL_BYTES_MAX
from polonaise.terms import NO_SESSION, FailureReason
from polonaise.testing.memorypartition import MemoryPartition, MemoryReplica
from polonaise.testing.memoryserver import _value_of
from polonaise.wire.appends import AppendColumns, ReceivedAppends
from polonaise.wire.messages import Batches, ReadBatches
from rigs.log import PARTITION, Maker


async def test_registers_that_are_full_are_told_with_their_bound() -> None:
    columns = AppendColumns()
    columns.add(1, -1, 0, b"", 0)
    message = columns.message(1)
    message.payload = [b""]
    served = MemoryPartition(0, RealClock())
    assert _value_of(FailureReason.REGISTERS_FULL, served, ReceivedAppends(message)) == TOTAL_BYTES_MAX


async def test_batches_are_answered_up_to_the_last_one_that_ends_where_it_is_asked() -> None:
    replica = MemoryReplica()
    replica.batches = made = Maker().batches(3, count=2)
    for last, count in ((3, 2), (4, 2), (1, 1), (5, 3)):
        answer = await replica.ask_bulk(ReadBatches(NO_SESSION, 0, last, 1 << 20, 1, 0), PARTITION)
        assert isinstance(answer, Batches)
        assert answer.committed == last
        assert b"".join(bytes(part) for part in answer.payload) == b"".join(bytes(each.view) for each in made[:count])
