"""What must be true after the bank has run. Of the bank's own code the checks use only what reads bodies.

That is `Payment` and `decode_opening`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

from sqlalchemy import Connection, create_engine, text

from polonaise.client.log import Log
from polonaise.views.dialects import database_url
from polonaise_proving.demo.bank import OPENING, PARTITION, PAYMENT, decode_opening
from polonaise_proving.demo.payments import Book, Payment
from polonaise_proving.record.history import Contents
from polonaise_proving.record.serializability import SerializabilityCheck

_SHOWN_MAX = 3


@dataclass
class Folded:
    """The whole log, folded by a client that has seen nothing before, with plain dictionaries and no database."""

    balances: dict[int, int] = field(default_factory=dict)
    payments: Counter[int] = field(default_factory=Counter)
    """The number of times that each payment is in the log, by its id."""
    lowest_of: dict[int, int] = field(default_factory=dict)
    """The lowest balance that each account ever had, in the order of the log."""
    last: int = -1
    history: SerializabilityCheck = field(default_factory=SerializabilityCheck)

    @property
    def lowest(self) -> int | None:
        """The lowest balance that any account ever had; None if there was no account."""
        return min(self.lowest_of.values(), default=None)

    def change(self, account: int, amount: int) -> None:
        """Add the log's next change, in hundredths, to the balance of an account."""
        balance = self.balances[account] = self.balances.get(account, 0) + amount
        self.lowest_of[account] = min(self.lowest_of.get(account, balance), balance)


@dataclass
class DayFindings:
    """What the bank left behind, for the checks to compare."""

    made: set[int]
    """Ids of the payments that the tellers reported as made."""
    refused: set[int]
    view: dict[int, int]
    """Balances in the tellers' database."""
    view_payments: Counter[int]
    """The number of times that each payment is in the tellers' database."""
    rebuilt: dict[int, int]
    """Balances in a second database, made from the log alone."""
    rebuilt_payments: Counter[int]
    folded: Folded
    replicas: dict[str, Contents]
    """What each storage node holds, by the name of its directory."""
    storage_nodes: int
    """Number of storage nodes in the cluster, so that one that was not examined is missed."""


@dataclass(frozen=True)
class DemoVerdict:
    what: str
    holds: bool
    detail: str


@dataclass(frozen=True)
class SparkFindings:
    """What Spark's part found in the log after the day."""

    verdicts: list[DemoVerdict] = field(default_factory=list)
    page: str = ""
    """Path of the report; empty if there is none."""
    lacking: str = ""
    """Why there is no result: no Spark, or no Java, on this machine. Empty if there is one."""

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> SparkFindings:
        fields = json.loads(text)
        return cls(**{**fields, "verdicts": [DemoVerdict(**each) for each in fields["verdicts"]]})


async def fold(log: Log) -> Folded:
    """Read the log from its beginning, and sum up its balances, payments and evidence of serializability."""
    folded = Folded()
    async for batch in log.read_batches(PARTITION, after=-1):
        folded.history.follow(batch)
        folded.last = batch.last
        for tx in batch.transactions():
            if tx.header == OPENING:
                account, balance = decode_opening(tx.data)
                folded.change(account, balance)
            elif tx.header == PAYMENT:
                payment = Payment.decode(tx.data)
                folded.payments[payment.id] += 1
                for account in payment.accounts:
                    folded.change(account, payment.change(account))
    return folded


def verdicts(book: Book, findings: DayFindings) -> list[DemoVerdict]:
    """Run every check. Each verdict tells what was seen."""
    folded = findings.folded
    doubled = [payment for payment, times in folded.payments.items() if times > 1]
    missing = findings.made - folded.payments.keys()
    extra = folded.payments.keys() - findings.made
    unjustified = findings.refused - _uncovered(book, folded)
    example = f", such as payment {min(unjustified)}" if unjustified else ""
    history = folded.history
    results = [
        DemoVerdict(
            "every payment that was made is in the log once, and no other",
            not doubled and not missing and not extra,
            f"{len(folded.payments):,} in the log: {len(doubled)} twice, {len(missing)} missing, {len(extra)} not made",
        ),
        DemoVerdict(
            "every payment was made or refused",
            findings.made | findings.refused == {payment.id for payment in book.payments}
            and not findings.made & findings.refused,
            f"{len(findings.made):,} made, {len(findings.refused):,} refused, {len(book.payments):,} in the input",
        ),
        DemoVerdict(
            "only payments that were not covered were refused",
            not unjustified,
            f"{len(findings.refused):,} refused: {len(unjustified):,} without a reason{example}",
        ),
        _equal("the view equals a second one, rebuilt from the log alone", findings.view, findings.rebuilt),
        _equal("the view equals the fold of the log", findings.view, folded.balances),
        DemoVerdict(
            "both views and the log hold the same payments",
            findings.view_payments == findings.rebuilt_payments == folded.payments,
            ", ".join(
                f"{payments.total():,}"
                for payments in (findings.view_payments, findings.rebuilt_payments, folded.payments)
            ),
        ),
        _equal("the view equals the input", findings.view, _replay(book, findings.made)),
        DemoVerdict(
            "the log is serializable, by its own evidence",
            not history.stale and not history.unjudged and history.judged == folded.last + 1,
            f"{history.judged:,} of {folded.last + 1:,} transactions judged, {len(history.stale)} stale",
        ),
        DemoVerdict(
            "the storage nodes hold the same batches, byte for byte",
            len(findings.replicas) == findings.storage_nodes
            and len(set(findings.replicas.values())) == 1
            and all(replica.last == folded.last for replica in findings.replicas.values()),
            f"{len(findings.replicas)} of {findings.storage_nodes}: "
            + ", ".join(
                f"{name} up to {replica.last:,}: {replica.trouble or replica.digest[:12]}"
                for name, replica in findings.replicas.items()
            ),
        ),
    ]
    if book.refuses_overdrafts:
        lowest = folded.lowest
        results.append(
            DemoVerdict(
                "no account was ever overdrawn",
                lowest is not None and lowest >= 0,
                "no balance at all" if lowest is None else f"lowest balance {lowest / 100:.2f}",
            )
        )
    if book.bank_balances:
        results.append(_like_the_bank(book, findings.view))
    return results


def _replay(book: Book, made: set[int]) -> dict[int, int]:
    balances = dict(book.opening)
    for payment in book.payments:
        if payment.id in made:
            for account in payment.accounts:
                balances[account] = balances.get(account, 0) + payment.change(account)
    return balances


def _uncovered(book: Book, folded: Folded) -> set[int]:
    """Return the ids of the payments that may have been refused: their source once held less than their amount.

    It may have held enough when the payment was refused: the log does not tell when that was. A payment without a
    source can't lack money.
    """
    if not book.refuses_overdrafts:
        return set()
    lowest_of = folded.lowest_of
    return {p.id for p in book.payments if p.source in lowest_of and lowest_of[p.source] < p.amount}


def _equal(what: str, one: dict[int, int], other: dict[int, int]) -> DemoVerdict:
    different = sorted(a for a in one.keys() | other.keys() if one.get(a) != other.get(a))
    shown = ", ".join(f"account {a}: {one.get(a, 'none')} and {other.get(a, 'none')}" for a in different[:3])
    return DemoVerdict(what, not different, shown or f"{len(one):,} accounts, to the hundredth")


def _like_the_bank(book: Book, balances: dict[int, int]) -> DemoVerdict:
    """Compare the view's balances with the bank's own. The bank rounded each row, so 0.10 per payment is allowed."""
    missing = book.bank_balances.keys() - balances.keys()
    by = {a: abs(balances[a] - balance) for a, balance in book.bank_balances.items() if a not in missing}
    off = missing | {account for account, difference in by.items() if difference > 10 * book.payments_of[account]}
    worst = max(by.values(), default=0)
    return DemoVerdict(
        "every final balance is the bank's own, to 0.10 per payment",
        not off,
        f"{len(book.bank_balances):,} accounts, largest difference {worst / 100:.2f}, {len(off)} too far off",
    )


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
