"""The bank as an application of the log: its tables, its transactions, and the transaction context of a payment."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Final

from sqlalchemy import BigInteger, Column, Connection, Integer, MetaData, Table, bindparam, select

from polonaise.client.protocol.draft import Draft
from polonaise.terms import Transaction
from polonaise.views.sql import SqlView
from polonaise_proving.demo.payments import Payment

PARTITION: Final = 0
OPENING: Final = 1
"""Header of a transaction that opens an account."""
PAYMENT: Final = 2
"""Header of a payment's transaction."""

ALREADY_MADE: Final = "it is made already"
NO_MONEY: Final = "insufficient funds"
NO_ACCOUNT: Final = "its source is not opened yet"

schema = MetaData()
accounts = Table(
    "accounts",
    schema,
    Column("account", Integer, primary_key=True, autoincrement=False),
    Column("balance", BigInteger, nullable=False),
)
made = Table(
    "made",
    schema,
    Column("transaction", BigInteger, primary_key=True, autoincrement=False),
    Column("payment", BigInteger, nullable=False, index=True),
)

_CREDIT = (
    accounts.update()
    .where(accounts.c.account == bindparam("at"))
    .values(balance=accounts.c.balance + bindparam("amount"))
)
_BALANCE = select(accounts.c.balance).where(accounts.c.account == bindparam("at"))
_MADE = select(made.c.transaction).where(made.c.payment == bindparam("number")).limit(1)


def encode_opening(account: int, balance: int) -> bytes:
    return json.dumps([account, balance]).encode()


def decode_opening(data: bytes) -> tuple[int, int]:
    """Return (account, balance in hundredths)."""
    account, balance = json.loads(data)
    return account, balance


class Accounts(SqlView):
    """Balances, and which payments were made: all that the bank knows, kept from the log in a database."""

    metadata = schema

    def apply(self, tx: Transaction, db: Connection) -> None:
        self.apply_many([tx], db)

    def apply_many(self, transactions: Sequence[Transaction], db: Connection) -> None:
        sums: Counter[int] = Counter()
        opened: dict[int, int] = {}
        numbers = []
        for tx in transactions:
            if tx.header == OPENING:
                account, balance = decode_opening(tx.data)
                opened[account] = balance
            elif tx.header == PAYMENT:
                payment = Payment.decode(tx.data)
                numbers.append({"transaction": tx.id, "payment": payment.id})
                for account in payment.accounts:
                    sums[account] += payment.change(account)
        # Before the payments: one of this run may be from an account that was opened in it.
        if opened:
            db.execute(accounts.insert(), [{"account": a, "balance": b} for a, b in opened.items()])
        if numbers:
            db.execute(made.insert(), numbers)
            # In the same order in every process: two that lock rows in different orders would wait for each other.
            db.execute(_CREDIT, [{"at": account, "amount": sums[account]} for account in sorted(sums)])

    def balances(self) -> dict[int, int]:
        """Return the balance of every account, in hundredths."""
        with self.reading() as db:
            return {row.account: row.balance for row in db.execute(select(accounts))}

    def payments(self) -> Counter[int]:
        """Return how often each payment was made."""
        with self.reading() as db:
            return Counter(db.execute(select(made.c.payment)).scalars())


def transfer(tx: Draft, view: Accounts, payment: Payment, refuses_overdrafts: bool) -> None:
    """Transfer money: the transaction context of a payment.

    The log refuses the payment if its accounts have changed since they were read. Whether the payment was made already
    is read under the same locks. So a teller may try again what it, or a killed teller before it, has tried without
    learning the outcome: the payment is made once.
    """
    for account in payment.accounts:
        tx.write_lock("account", account)
    with view.reading() as db:
        if db.execute(_MADE, {"number": payment.id}).first() is not None:
            tx.abandon(ALREADY_MADE)
            return
        if refuses_overdrafts and payment.source:
            balance = db.execute(_BALANCE, {"at": payment.source}).scalar()
            if balance is None:
                tx.abandon(NO_ACCOUNT)
                return
            if balance < payment.amount:
                tx.abandon(NO_MONEY)
                return
    tx.append(payment.encode(), header=PAYMENT)
