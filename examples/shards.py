"""Four shards of accounts, kept from the log by a player: each transfer reaches its shards once, whatever is killed.

    pip install 'polonaise[sql]'
    python examples/shards.py embedded:./transfers ./shards 2000

Appends transfers between accounts until the log has that many, and ends once every shard has what is its own. Kill it
on the way, and run it again: it goes on, and says at the end whether the shards hold the sums of the log.

- An account is on shard `account % 4`, a SQLite database of its own: other databases need another URL.
- A transfer between two shards is one transaction of the log, and an entry for each of them. They are not applied at
  the same moment; that none is lost or doubled is the log's part, and the player's.
- A shard that is away keeps no other waiting, and gets what it lacks when it is back.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import defaultdict
from pathlib import Path

from sqlalchemy import Column, Connection, Integer, MetaData, Table, create_engine, select

import polonaise
from polonaise.player import Player, RoutedEntry, SqlDeliveryTarget

SHARDS = 4
ACCOUNTS = 40

schema = MetaData()
accounts = Table(
    "accounts", schema, Column("account", Integer, primary_key=True), Column("balance", Integer, nullable=False)
)


def changes(body: bytes) -> list[tuple[int, int]]:
    """Return what a transfer does: accounts, and by how much the balance of each changes."""
    source, to, amount = json.loads(body)
    return [(source, -amount), (to, amount)]


def route(tx: polonaise.Transaction) -> dict[str, bytes]:
    """Give each shard the changes of its own accounts."""
    parts: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for account, change in changes(tx.data):
        parts[f"shard-{account % SHARDS}"].append((account, change))
    return {name: json.dumps(part).encode() for name, part in parts.items()}


class Accounts(SqlDeliveryTarget):
    """One shard: what `apply_entry` does is committed together with the id of the entry."""

    metadata = schema

    def apply_entry(self, partition: int, entry: RoutedEntry, db: Connection) -> None:
        for account, change in json.loads(entry.payload or b"[]"):
            row = accounts.c.account == account
            if not db.execute(accounts.update().where(row).values(balance=accounts.c.balance + change)).rowcount:
                db.execute(accounts.insert(), {"account": account, "balance": change})


def held(urls: list[str]) -> dict[int, int]:
    """Return the balances of all shards together."""
    balances = {}
    for url in urls:
        with create_engine(url).connect() as db:
            balances.update({row.account: row.balance for row in db.execute(select(accounts))})
    return balances


async def transfer(log: polonaise.Log, count: int) -> None:
    """Append transfers until there are so many. A producer counts them: a run that was killed goes on where it was."""
    producer = await log.producer("transfers", partition=0)
    for number in range(producer.last_sequence + 1, count):
        body = json.dumps([number % ACCOUNTS, number * 7 % ACCOUNTS, number % 100])
        await producer.append(number, body.encode())


async def main(address: str, urls: list[str], count: int) -> None:
    shards = {f"shard-{number}": Accounts(url) for number, url in enumerate(urls)}
    async with polonaise.connect(address, wait=30) as log, Player(log, "accounts", route, shards) as player:
        await transfer(log, count)
        sums: dict[int, int] = defaultdict(int)
        last = -1
        async for tx in log.read(0):
            last = tx.id
            for account, change in changes(tx.data):
                sums[account] += change
        for name in shards:
            await player.delivered(name, 0, last)
    for shard in shards.values():
        await shard.close()
    if held(urls) != sums:
        sys.exit("the shards do not hold the sums of the log")
    print(f"{count} transfers: the shards hold the sums of the log")


if __name__ == "__main__":
    address, directory, count = sys.argv[1:]
    Path(directory).mkdir(exist_ok=True)
    try:
        asyncio.run(main(address, [f"sqlite:///{directory}/shard-{number}.db" for number in range(SHARDS)], int(count)))
    except (polonaise.PolonaiseError, OSError, ValueError) as error:
        sys.exit(f"shards: {error}")
