"""The SQL view of a client of the smoke test: the balances of all accounts, and what the client was fed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from sqlalchemy import BigInteger, Column, Connection, Integer, MetaData, Table, bindparam, select

from polonaise.terms import Transaction
from polonaise.views.sql import SqlView
from polonaise_proving.record.bank import OPENING_BALANCE, BankOperation, Fold, digest_of
from polonaise_proving.record.history import Fed

schema = MetaData()
balances = Table(
    "balances",
    schema,
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("account", Integer, primary_key=True, autoincrement=False),
    Column("balance", BigInteger, nullable=False),
)
fed = Table(
    "fed",
    schema,
    # Nothing here is unique but the row's own number: what is fed twice, or out of order, is to be seen.
    Column("row", Integer, primary_key=True),
    Column("partition", Integer, nullable=False),
    Column("transaction", BigInteger, nullable=False),
    Column("digest", BigInteger, nullable=False),
)

_SET = (
    balances.update()
    .where(balances.c.partition == bindparam("of"), balances.c.account == bindparam("at"))
    .values(balance=bindparam("to"))
)


def database_of(directory: Path, name: str) -> str:
    """Return the URL of the database in which a client of this name has its ledger, through all its lives."""
    return f"sqlite:///{directory / f'{name}.db'}"


class BankLedger(SqlView):
    """Balances by partition and account, and a row for each transaction that was fed, in the order of the feed."""

    metadata = schema

    def apply(self, tx: Transaction, db: Connection) -> None:
        self.apply_many([tx], db)

    def apply_many(self, transactions: Sequence[Transaction], db: Connection) -> None:
        partition = transactions[0].partition if transactions else -1
        folded = Fold()
        before = _balances(db, partition)
        folded.balances.update(before)
        folded.follow(_operations(transactions))
        changed = [
            {"of": partition, "at": account, "to": balance}
            for account, balance in folded.balances.items()
            if before.get(account) != balance
        ]
        if new := [each for each in changed if each["at"] not in before]:
            db.execute(
                balances.insert(),
                [{"partition": each["of"], "account": each["at"], "balance": each["to"]} for each in new],
            )
        if moved := [each for each in changed if each["at"] in before]:
            db.execute(_SET, moved)
        if transactions:
            rows = [
                {"partition": tx.partition, "transaction": tx.id, "digest": digest_of(tx.data)} for tx in transactions
            ]
            db.execute(fed.insert(), rows)

    def seen(self, partition: int, accounts: Sequence[int]) -> list[int]:
        """Return the balances of these accounts of a partition, in their order."""
        with self.reading() as db:
            rows = db.execute(
                select(balances.c.account, balances.c.balance).where(
                    balances.c.partition == partition, balances.c.account.in_(accounts)
                )
            )
            found = {row.account: row.balance for row in rows}
        return [found.get(account, OPENING_BALANCE) for account in accounts]

    def all_balances(self, partition: int) -> dict[int, int]:
        """Return, by account, the balances of a partition's accounts that ever had a transfer."""
        with self.reading() as db:
            return _balances(db, partition)

    def all_fed(self, partition: int) -> list[Fed]:
        """Return what was fed of a partition, in the order of the feed."""
        with self.reading() as db:
            rows = db.execute(
                select(fed.c.transaction, fed.c.digest).where(fed.c.partition == partition).order_by(fed.c.row)
            )
            return [Fed(row.transaction, row.digest) for row in rows]


def _operations(transactions: Sequence[Transaction]) -> Iterator[tuple[int, BankOperation]]:
    for tx in transactions:
        try:
            operation = BankOperation.decode(tx.data)
        except ValueError:
            continue  # a damaged body: judges tell of it, by its digest and by what the log has there
        yield tx.id, operation


def _balances(db: Connection, partition: int) -> dict[int, int]:
    rows = db.execute(select(balances.c.account, balances.c.balance).where(balances.c.partition == partition))
    return {row.account: row.balance for row in rows}
