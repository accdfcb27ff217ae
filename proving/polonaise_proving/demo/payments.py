"""The payments that the bank makes: read from a bank's file, or made up from a seed."""

from __future__ import annotations

import csv
import json
import random
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Final, NamedTuple

from polonaise.errors import BadOption
from polonaise.redaction import redacted

COLUMNS = ("trans_id", "account_id", "date", "direction", "operation", "amount", "balance", "purpose")

_ACCOUNT_MAX: Final = 2**31 - 1
"""The largest number that an INTEGER column holds in every database."""
_ID_MAX: Final = 2**63 - 1
"""The largest number that a BIGINT column holds."""
_AMOUNT_MAX: Final = 2**53 - 1
"""The largest amount, in hundredths: the sum of many must fit into a BIGINT column, too."""
_OTHER_BANKS: Final = ("AB", "CD", "EF", "GH")
"""The banks that made-up salaries come from."""
_SHOWN_CHARACTERS: Final = 40
"""Length at which a bad value is cut in a message."""


class Payment(NamedTuple):
    """A movement of money. Amounts are integers, in hundredths of the currency; account 0 is outside of this bank."""

    id: int
    source: int
    target: int
    amount: int
    kind: str
    date: str
    bank: str = ""
    """The other bank that the money comes from or goes to; empty if there is none or it is not known."""

    def encode(self) -> bytes:
        return json.dumps(self, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Payment:
        return cls(*json.loads(data))

    @property
    def accounts(self) -> tuple[int, ...]:
        return tuple(account for account in (self.source, self.target) if account)

    def change(self, account: int) -> int:
        """Return what this payment adds to the balance of an account."""
        return self.amount * ((account == self.target) - (account == self.source))


@dataclass
class Book:
    """Payments to make, in order, and what is known beforehand."""

    payments: list[Payment]
    opening: dict[int, int]
    """Balances before the first payment."""
    bank_balances: dict[int, int] = field(default_factory=dict)
    """The bank's own last balance of each account, without those of `unchained`; empty for made-up payments."""
    payments_of: dict[int, int] = field(default_factory=dict)
    """The number of payments that touch each account."""
    unchained: list[int] = field(default_factory=list)
    """Accounts whose own rows do not add up, to within 0.10 each. They are not compared with the bank."""
    bad_rows: list[str] = field(default_factory=list)
    """Rows that could not be used, with their line numbers."""
    refuses_overdrafts: bool = True


def read_payments(path: Path) -> Book:
    """Read the payments of a bank's file, in its order: CSV with `COLUMNS`, and perhaps `counterparty_bank`.

    An account opens with its balance before its first row. Bad rows are named in the result; a file that lacks columns
    or can't be read raises `BadOption`. The bank allowed overdrafts, so nothing is refused. A byte order mark, which
    spreadsheets write, may come first.
    """
    book = Book([], {}, refuses_overdrafts=False)
    last: dict[int, int] = {}
    unchained: set[int] = set()
    lines: dict[int, int] = {}
    try:
        # A byte that is not UTF-8 makes its row a bad one. Raised by the file, it would take what was read ahead along.
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            rows = csv.DictReader(file)
            missing = [column for column in COLUMNS if column not in (rows.fieldnames or ())]
            if missing:
                raise BadOption(f"{path} has no column {', '.join(missing)}: not a file of payments")
            while True:
                try:
                    payment, balance, account = _payment(next(rows))
                except StopIteration:
                    break
                except (ValueError, csv.Error) as error:  # go on with the next line
                    book.bad_rows.append(f"line {rows.reader.line_num}: {error}")
                    continue
                if payment.id in lines:
                    book.bad_rows.append(f"line {rows.line_num}: payment {payment.id} was on line {lines[payment.id]}")
                    continue
                lines[payment.id] = rows.line_num
                change = payment.change(account)
                if account not in last:
                    book.opening[account] = balance - change
                elif abs(last[account] + change - balance) > 10:
                    unchained.add(account)
                last[account] = balance
                book.payments_of[account] = book.payments_of.get(account, 0) + 1
                book.payments.append(payment)
    except csv.Error as error:
        raise BadOption(f"{path} can't be read: line 1: {error}") from error
    except OSError as error:
        raise BadOption(f"{path} can't be read: {error}") from error
    book.unchained = sorted(unchained)
    book.bank_balances = {account: balance for account, balance in last.items() if account not in unchained}
    return book


def _payment(row: dict[str, str | None]) -> tuple[Payment, int, int]:
    """Return a row's payment, the balance after it, and its account. Raises `ValueError`, in plain words."""
    for column, text in row.items():
        if isinstance(text, str) and not text.isascii() and any("\udc80" <= letter <= "\udcff" for letter in text):
            raise ValueError(f"{column} is not UTF-8")
    account = _whole(row, "account_id", 1, _ACCOUNT_MAX)
    amount = _hundredths(row, "amount")
    direction = _text(row, "direction")
    if direction not in ("credit", "debit"):
        raise ValueError(f"direction {_shown(direction)} is neither credit nor debit")
    if amount < 0:
        raise ValueError(f"amount {_shown(_text(row, 'amount'))} is below 0")
    source, target = (0, account) if direction == "credit" else (account, 0)
    number = _whole(row, "trans_id", -_ID_MAX, _ID_MAX)
    kind, bank = row["operation"] or row["purpose"] or "", row.get("counterparty_bank") or ""
    payment = Payment(number, source, target, amount, kind, row["date"] or "", bank)
    return payment, _hundredths(row, "balance"), account


def _text(row: dict[str, str | None], column: str) -> str:
    text = row[column]
    if text is None or not text.strip():  # None if the row is too short
        raise ValueError(f"{column} is missing")
    return text


def _whole(row: dict[str, str | None], column: str, least: int, most: int) -> int:
    text = _text(row, column)
    value = _number(column, text)
    if value != value.to_integral_value():
        raise ValueError(f"{column} {_shown(text)} is no whole number")
    if not least <= value <= most:
        raise ValueError(f"{column} {_shown(text)} is not from {least:,} to {most:,}")
    return int(value)


def _hundredths(row: dict[str, str | None], column: str) -> int:
    text = _text(row, column)
    value = _number(column, text)
    if value.copy_abs() >= _AMOUNT_MAX // 100:  # checked before the multiplication, which can overflow
        raise ValueError(f"{column} {_shown(text)} is too large")
    return int((value * 100).to_integral_value())


def _number(column: str, text: str) -> Decimal:
    try:
        value = Decimal(text)
    except ArithmeticError:
        value = Decimal("NaN")
    if not value.is_finite():
        raise ValueError(f"{column} {_shown(text)} is no number")
    return value


def _shown(text: str) -> str:
    return repr(redacted(text, _SHOWN_CHARACTERS))


def make_payments(count: int, seed: int = 1, accounts: int = 500) -> Book:
    """Make up payments as a bank sees them: few busy accounts and many quiet ones; salaries, fees, transfers, cash."""
    source = random.Random(seed)
    weights = [1 / (rank + 1) ** 0.7 for rank in range(accounts)]
    book = Book([], dict.fromkeys(range(1, accounts + 1), 50000))
    busy = source.choices(range(1, accounts + 1), weights, k=2 * count)
    for number in range(count):
        first, second = busy[2 * number], busy[2 * number + 1]
        draw = source.random()
        date = f"1993-{1 + number * 12 // count:02d}-{1 + source.randrange(28):02d}"
        if draw < 0.55 and first != second:
            payment = Payment(number, first, second, int(source.lognormvariate(9.5, 1.0)), "transfer", date)
        elif draw < 0.70:
            amount, bank = 100 * source.randrange(8_000, 40_000) // 10, _OTHER_BANKS[first % len(_OTHER_BANKS)]
            payment = Payment(number, 0, first, amount, "salary", date, bank)
        elif draw < 0.80:
            payment = Payment(number, first, 0, 1_460, "fee", date)
        else:
            payment = Payment(number, first, 0, 100 * source.randrange(1, 900), "cash", date)
        book.payments.append(payment)
        for account in payment.accounts:
            book.payments_of[account] = book.payments_of.get(account, 0) + 1
    return book
