"""The process of a bare program: it only sends the entries of transactions."""

from __future__ import annotations

import asyncio

import uvloop
from benchmarks.deliveries.bare import BareSender, bare_senders
from benchmarks.deliveries.children import answer, usage
from benchmarks.deliveries.form import Workload, entries_of
from benchmarks.deliveries.pace import at_rate


class Sending:
    def __init__(self) -> None:
        self._senders: dict[str, BareSender] = {}

    async def start(self, kind: str, addresses: dict[str, str]) -> None:
        """Connect to the targets."""
        self._senders = await bare_senders(kind, addresses)

    async def send(self, workload: dict[str, int], rate: float, first: int, count: int) -> None:
        """Send the entries of transactions at a rate; return when all are answered."""
        transactions = Workload(**workload).transactions()
        goal = sum(sender.answered for sender in self._senders.values())

        def send(number: int) -> None:
            nonlocal goal
            for name, payload in entries_of(transactions.transaction(number)):
                self._senders[name].send(payload)
                goal += 1

        await at_rate(send, rate, first, count)
        while sum(sender.answered for sender in self._senders.values()) < goal:
            for sender in self._senders.values():
                sender.check()
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        for sender in self._senders.values():
            await sender.close()


async def main() -> None:
    sending = Sending()
    await answer({"start": sending.start, "send": sending.send, "usage": usage}, sending.close)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
