"""The demo's bank without its tellers: payments in a log, and the database that its view keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polonaise.blocking
from polonaise.blocking.log import Log
from polonaise_proving.demo.bank import OPENING, PARTITION, PAYMENT, Accounts, encode_opening
from polonaise_proving.demo.payments import Book, make_payments


@contextmanager
def bank(directory: Path, url: str, payments: int) -> Iterator[tuple[Log, Book]]:
    """Yield a log with so many payments among 50 accounts, all of them applied to the database at `url`."""
    book = make_payments(payments, accounts=50)
    with polonaise.blocking.connect(f"embedded:{directory}", view=Accounts(url)) as log:
        for account, balance in book.opening.items():
            log.append(encode_opening(account, balance), PARTITION, header=OPENING)
        for payment in book.payments:
            log.append(payment.encode(), PARTITION, header=PAYMENT)
        log.wait_applied(log.flush(PARTITION, timeout=60), PARTITION, timeout=60)
        yield log, book


def balances_of(book: Book) -> dict[int, int]:
    """Return the balances after these payments, by plain arithmetic."""
    found = Counter(book.opening)
    for payment in book.payments:
        for account in payment.accounts:
            found[account] += payment.change(account)
    return dict(found)
