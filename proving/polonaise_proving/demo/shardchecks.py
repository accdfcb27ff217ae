"""What must be true of the shards after the bank's day. Of the bank's own code the checks use only what reads bodies.

That is `Payment` and `decode_opening`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy import Connection, create_engine, text

from polonaise.client.log import Log
from polonaise.views.dialects import database_url
from polonaise_proving.demo.bank import OPENING, PARTITION, PAYMENT, decode_opening
from polonaise_proving.demo.checks import DemoVerdict
from polonaise_proving.demo.payments import Payment

_SHOWN_MAX = 3


@dataclass
class ShardContents:
    """What a shard holds, or has to hold."""

    balances: dict[int, int] = field(default_factory=dict)
    transactions: list[int] = field(default_factory=list)
    """The ids of the transactions that concern it, in the order in which they were applied."""


@dataclass
class FoldedShards:
    """The whole log, folded by a client that has seen nothing before, for so many shards."""

    shards: list[ShardContents]
    last: int = -1
    money: int = 0
    """What all accounts together hold, summed up without the shards."""


async def fold_shards(log: Log, count: int) -> FoldedShards:
    """Read the log from its beginning, and sum up what each of `count` shards has to hold."""
    folded = FoldedShards([ShardContents() for _ in range(count)])
    async for batch in log.read_batches(PARTITION, after=-1):
        for tx in batch.transactions():
            changes: dict[int, int] = {}
            if tx.header == OPENING:
                account, balance = decode_opening(tx.data)
                changes[account] = balance
                folded.money += balance
            elif tx.header == PAYMENT:
                payment = Payment.decode(tx.data)
                changes = {account: payment.change(account) for account in payment.accounts}
                folded.money += payment.amount * ((payment.target != 0) - (payment.source != 0))
            for account, change in changes.items():
                balances = folded.shards[account % count].balances
                balances[account] = balances.get(account, 0) + change
            for number in sorted({account % count for account in changes}):
                folded.shards[number].transactions.append(tx.id)
        folded.last = batch.last
    return folded


def applied_at(url: str) -> int:
    """Return how many entries the database of a shard has applied; 0 before it has its tables."""
    with _tables_at(url) as db:
        return 0 if db is None else int(db.execute(text("SELECT count(*) FROM shard_applied")).scalar_one())


def contents_of(url: str) -> ShardContents:
    """Return what the database of a shard holds."""
    with _tables_at(url) as db:
        if db is None:
            return ShardContents()
        balances = db.execute(text("SELECT account, balance FROM shard_accounts"))
        transactions = db.execute(text("SELECT transaction_id FROM shard_applied ORDER BY position"))
        return ShardContents(
            {row.account: row.balance for row in balances}, [row.transaction_id for row in transactions]
        )


@contextmanager
def _tables_at(url: str) -> Iterator[Connection | None]:
    """Open the database of a shard; None if it has no tables yet."""
    engine = create_engine(database_url(url))
    try:
        with engine.connect() as db:
            yield db if engine.dialect.has_table(db, "shard_applied") else None
    finally:
        engine.dispose()


def shard_verdicts(folded: FoldedShards, held: Sequence[ShardContents]) -> list[DemoVerdict]:
    """Run every check. Each verdict tells what was seen."""
    numbered = list(enumerate(zip(folded.shards, held, strict=True)))
    return [
        _verdict(
            "every balance on every shard equals the fold of the log",
            [_difference(number, wanted.balances, found.balances) for number, (wanted, found) in numbered],
            f"{sum(len(each.balances) for each in held):,} accounts, to the hundredth",
        ),
        _verdict(
            "every shard has applied each of its transactions once, and no other",
            [_miscounted(number, wanted, found) for number, (wanted, found) in numbered],
            ", ".join(f"{len(each.transactions):,}" for each in held) + " entries",
        ),
        _verdict(
            "every shard has applied its transactions in the order of the log",
            [_disorder(number, found) for number, (_, found) in numbered],
            f"up to transaction {folded.last:,}",
        ),
        _money(folded, held),
    ]


def _verdict(what: str, wrong: Sequence[str], seen: str) -> DemoVerdict:
    said = [each for each in wrong if each]
    return DemoVerdict(what, not said, "; ".join(said) or seen)


def _difference(number: int, wanted: Mapping[int, int], found: Mapping[int, int]) -> str:
    different = sorted(each for each in wanted.keys() | found.keys() if wanted.get(each) != found.get(each))
    shown = ", ".join(
        f"account {each}: {found.get(each, 'none')}, and by the log {wanted.get(each, 'none')}"
        for each in different[:_SHOWN_MAX]
    )
    return f"shard {number}: {len(different):,} differ, such as {shown}" if different else ""


def _miscounted(number: int, wanted: ShardContents, found: ShardContents) -> str:
    missing = set(wanted.transactions) - set(found.transactions)
    extra = set(found.transactions) - set(wanted.transactions)
    twice = len(found.transactions) - len(set(found.transactions))
    if not (missing or extra or twice):
        return ""
    return f"shard {number}: {len(missing):,} missing, {twice:,} twice, {len(extra):,} of others"


def _disorder(number: int, found: ShardContents) -> str:
    for earlier, later in zip(found.transactions, found.transactions[1:], strict=False):
        if later < earlier:
            return f"shard {number}: {later:,} after {earlier:,}"
    return ""


def _money(folded: FoldedShards, held: Sequence[ShardContents]) -> DemoVerdict:
    money = [sum(each.balances.values()) for each in held]
    shown = " + ".join(f"{each / 100:,.2f}" for each in money)
    holds = sum(money) == folded.money
    return DemoVerdict(
        "all shards together hold the money that the log says came in and has not gone out",
        holds,
        f"{shown} = {sum(money) / 100:,.2f}" + ("" if holds else f", and by the log {folded.money / 100:,.2f}"),
    )
