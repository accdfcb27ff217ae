"""The bank's accounts on shards: which shard gets what of a transaction, how it keeps that, and the process of a shard.

    python -m polonaise_proving.demo.shards JOB

Reads a `ShardJob`, prints the address that it serves at, and stops on SIGTERM and when standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import BigInteger, Column, Connection, Integer, MetaData, Table, bindparam

from polonaise.host.real import run
from polonaise.host.stopsignals import stop_when_stdin_ends
from polonaise.player import RoutedEntry, SqlDeliveryTarget, serve
from polonaise.terms import PartitionId, Transaction
from polonaise_proving.demo.bank import OPENING, PAYMENT, decode_opening
from polonaise_proving.demo.payments import Payment

SHARDS: Final = 4

schema = MetaData()
accounts = Table(
    "shard_accounts",
    schema,
    Column("account", Integer, primary_key=True, autoincrement=False),
    Column("balance", BigInteger, nullable=False),
)
applied = Table(
    "shard_applied",
    schema,
    Column("position", Integer, primary_key=True, autoincrement=True),
    Column("transaction_id", BigInteger, nullable=False),
)
"""Every entry that was applied, in the order in which that was done: what is applied twice stands here twice."""

_CREDIT = (
    accounts.update()
    .where(accounts.c.account == bindparam("at"))
    .values(balance=accounts.c.balance + bindparam("amount"))
)


def shard_name(number: int) -> str:
    return f"shard-{number}"


def route(tx: Transaction) -> Mapping[str, bytes]:
    """Give each shard what its own accounts get: account `n` is on shard `n % SHARDS`.

    A payment between two shards becomes an entry for each.
    """
    if tx.header == OPENING:
        account, balance = decode_opening(tx.data)
        return {shard_name(account % SHARDS): json.dumps({"opens": [account, balance]}).encode()}
    changes: dict[str, list[tuple[int, int]]] = defaultdict(list)
    if tx.header == PAYMENT:
        payment = Payment.decode(tx.data)
        for account in payment.accounts:
            changes[shard_name(account % SHARDS)].append((account, payment.change(account)))
    return {name: json.dumps({"changes": its}).encode() for name, its in changes.items()}


class ShardAccounts(SqlDeliveryTarget):
    """One shard: its accounts, and what it has applied."""

    metadata = schema

    def apply_entries(self, partition: PartitionId, entries: Sequence[RoutedEntry], db: Connection) -> None:
        sums: Counter[int] = Counter()
        opened: list[dict[str, int]] = []
        for entry in entries:
            said: dict[str, Any] = json.loads(entry.payload or b"{}")
            if "opens" in said:
                account, balance = said["opens"]
                opened.append({"account": account, "balance": balance})
            for account, change in said.get("changes", ()):
                sums[account] += change
        if opened:
            db.execute(accounts.insert(), opened)
        if sums:
            db.execute(_CREDIT, [{"at": account, "amount": sums[account]} for account in sorted(sums)])
        db.execute(applied.insert(), [{"transaction_id": entry.id} for entry in entries])


@dataclass
class ShardJob:
    """What the process of a shard is told, in a file: a database's URL may have a password."""

    database: str
    listen: str

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> ShardJob:
        return cls(**json.loads(path.read_text()))


async def main(job: ShardJob) -> None:
    shard = ShardAccounts(job.database)
    try:
        async with serve(shard, job.listen) as server:
            print(server.address, flush=True)  # noqa: T201 - to the process that has started this one
            await server.ended()
    finally:
        await asyncio.shield(shard.close())


if __name__ == "__main__":
    stop_when_stdin_ends()
    job = ShardJob.read(Path(sys.argv[1]))
    run(lambda _: main(job))
