"""The test driver for applications: a log without network, disk and processes, and faults on request.

::

    async def test_a_withdrawal_survives_a_failed_append():
        async with polonaise.testing.log(view=balances) as log:
            log.faults.fail_next_append()
            await log.run(withdraw, 1, 30)
            assert [tx.data for tx in log.transactions()] == [b"1 -30"]

Contexts, receipts, views, locks, order, registers and producers are those of production; what carries bytes between
client and server is memory. The same test does the same each time. `docs/testing.md` has more.
"""

from polonaise.testing.driver import BlockingMemoryLog, MemoryCluster, MemoryLog, blocking_log, log
from polonaise.testing.faults import Faults

__all__ = ["BlockingMemoryLog", "Faults", "MemoryCluster", "MemoryLog", "blocking_log", "log"]
