"""Right and wrong ways to run a context, for a type checker: a line that ends with `# wrong` must be refused."""

from __future__ import annotations

import uuid

import polonaise
from polonaise import blocking


def withdraw(tx: polonaise.Draft, account: int, amount: int) -> int:
    tx.write_lock("account", account)
    tx.append(b"%d" % amount)
    return amount


async def transfer(tx: polonaise.Draft, source: str, target: str, amount: int = 1) -> None:
    tx.write_lock("account", source)
    tx.append(f"{source} {target} {amount}".encode())


def nothing(tx: polonaise.Draft) -> None:
    tx.append(b"")


class Teller:
    def pay(self, tx: polonaise.Draft, amount: int) -> None:
        tx.append(b"%d" % amount)


async def with_asyncio(log: polonaise.Log) -> None:
    await log.run(withdraw, 1, 500, partition=3, timeout=10)
    await log.run(transfer, "a", "b", 5)
    await log.run(transfer, "a", "b")
    await log.run(nothing)
    await log.run(lambda tx: tx.append(b"x"), partition=0)
    await log.run(Teller().pay, 7)
    log.submit(withdraw, 1, 500)
    await log.submit(transfer, "a", "b", 5, timeout=1.0)
    await log.run(withdraw, 1)  # wrong
    await log.run(withdraw, 1, "500")  # wrong
    await log.run(withdraw, 1, 500, 7)  # wrong
    await log.run(transfer, 1, 2, 3)  # wrong
    await log.run(Teller().pay)  # wrong
    await log.run(nothing, 1)  # wrong
    await log.run(withdraw, 1, 500, partitions=3)  # wrong
    await log.run(withdraw, 1, 500, timeout="10")  # wrong
    await log.run(lambda tx: tx.apend(b"x"))  # wrong
    log.submit(withdraw)  # wrong
    log.submit(withdraw, "1", 500)  # wrong


def with_threads(log: blocking.Log) -> None:
    log.run(withdraw, 1, 500, partition=3, timeout=10)
    log.submit(nothing, timeout=1.0)
    log.run(withdraw, 1)  # wrong
    log.run(withdraw, 1, None)  # wrong
    log.submit(nothing, 1)  # wrong


def with_locks(tx: polonaise.Draft) -> None:
    tx.write_lock("account", 1)
    tx.read_lock("account", "DE89 3704")
    tx.append_lock("account", uuid.uuid4())
    tx.write_lock("account", 1.5)  # wrong
    tx.write_lock("account", None)  # wrong
    tx.write_lock(7, 1)  # wrong
