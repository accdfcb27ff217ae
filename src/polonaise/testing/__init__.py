"""The test driver for applications: a log in memory, without network, disk and processes, with faults on request.

::

    async def test_a_withdrawal_survives_a_failed_append():
        async with polonaise.testing.log(view=balances) as log:
            log.faults.fail_next_append()
            await log.run(withdraw, 1, 30)
            assert [tx.data for tx in log.transactions()] == [b"1 -30"]

The client is that of production, and so are the server's decisions on locks, order, registers and producers; only what
carries and stores bytes is memory. A test runs the same way each time (`docs/testing.md`).

Begin with `driver`: what a test opens, and the faults that it can arm.
"""

from polonaise.testing.driver import BlockingMemoryLog, Faults, MemoryCluster, MemoryLog, blocking_log, log

__all__ = ["BlockingMemoryLog", "Faults", "MemoryCluster", "MemoryLog", "blocking_log", "log"]
