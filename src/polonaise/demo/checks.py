"""What must be true after the bank has run: compared from three sides that share no code with the log."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from polonaise.client.log import Log
from polonaise.demo.bank import PAYMENT, Balances
from polonaise.demo.payments import Book, Payment
from polonaise.log.serializability import History


@dataclass
class Audit:
    """The whole log, folded by a client that has seen nothing before."""

    balances: dict[int, int]
    payments: Counter[int] = field(default_factory=Counter)
    """How often each payment is in the log."""
    history: History = field(default_factory=History)


@dataclass(frozen=True)
class Verdict:
    what: str
    holds: bool
    detail: str


async def audit(log: Log, book: Book) -> Audit:
    """Read the log from its beginning and fold it."""
    found = Audit(dict(book.opening))
    async for batch in log.read_batches(0, after=-1):
        found.history.follow(batch)
        for tx in batch.transactions():
            if tx.header != PAYMENT:
                continue
            payment = Payment.decode(tx.data)
            found.payments[payment.id] += 1
            for account in payment.accounts:
                found.balances[account] = found.balances.get(account, 0) + payment.change(account)
    return found


def verdicts(book: Book, found: Audit, view: Balances, committed: set[int], refused: set[int]) -> list[Verdict]:
    """Every check, with what it saw."""
    doubled = [payment for payment, times in found.payments.items() if times > 1]
    missing = committed - found.payments.keys()
    extra = found.payments.keys() - committed
    results = [
        Verdict(
            "every payment that was made is in the log once, and no other",
            not doubled and not missing and not extra,
            f"{len(found.payments):,} in the log: {len(doubled)} twice, {len(missing)} missing, {len(extra)} not made",
        ),
        Verdict(
            "every payment was made or refused",
            len(committed) + len(refused) == len(book.payments),
            f"{len(committed):,} made, {len(refused):,} refused, {len(book.payments):,} in the input",
        ),
        _equal("the view equals the fold of the log", view.all(), found.balances),
        _equal("the fold of the log equals the input", found.balances, _replay(book, committed)),
        Verdict(
            "the log is serializable, by its own evidence",
            not found.history.stale and not found.history.unjudged,
            f"{found.history.judged:,} transactions judged, {len(found.history.stale)} stale",
        ),
    ]
    if book.refuses_overdrafts:
        results.append(
            Verdict("no account was ever overdrawn", view.lowest >= 0, f"lowest balance {view.lowest / 100:.2f}")
        )
    if book.bank_balances:
        results.append(_like_the_bank(book, found.balances))
    return results


def _replay(book: Book, committed: set[int]) -> dict[int, int]:
    balances = dict(book.opening)
    for payment in book.payments:
        if payment.id in committed:
            for account in payment.accounts:
                balances[account] = balances.get(account, 0) + payment.change(account)
    return balances


def _equal(what: str, one: dict[int, int], other: dict[int, int]) -> Verdict:
    different = sorted(a for a in one.keys() | other.keys() if one.get(a, 0) != other.get(a, 0))
    shown = ", ".join(f"account {a}: {one.get(a, 0)} and {other.get(a, 0)}" for a in different[:3])
    return Verdict(what, not different, shown or f"{len(one):,} accounts, to the hundredth")


def _like_the_bank(book: Book, balances: dict[int, int]) -> Verdict:
    """The bank rounded each row, so its balance may differ from ours by 0.10 per payment."""
    off = {
        account: abs(balances.get(account, 0) - balance)
        for account, balance in book.bank_balances.items()
        if abs(balances.get(account, 0) - balance) > 10 * book.payments_of[account]
    }
    worst = max((abs(balances.get(a, 0) - b) for a, b in book.bank_balances.items()), default=0)
    return Verdict(
        "every final balance is the bank's own, to 0.10 per payment",
        not off,
        f"{len(book.bank_balances):,} accounts, largest difference {worst / 100:.2f}, {len(off)} too far off",
    )
