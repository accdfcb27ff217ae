"""Payments: what a bank's file means, what is wrong with its rows, and payments made up from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from polonaise.errors import BadOption
from polonaise_proving.demo.payments import COLUMNS, Payment, make_payments, read_payments

BANK_1993 = Path(__file__).parents[3] / "shared" / "data" / "bank-1993.csv"


def csv_of(directory: Path, rows: Sequence[str], columns: Sequence[str] = COLUMNS) -> Path:
    path = directory / "payments.csv"
    path.write_text("\n".join([",".join(columns), *rows]) + "\n")
    return path


def row(number: int, account: object, direction: str, amount: object, balance: object) -> str:
    return f"{number},{account},1993-01-05,{direction},cash,{amount},{balance},"


def test_a_row_is_a_payment_to_or_from_its_account(tmp_path: Path) -> None:
    book = read_payments(csv_of(tmp_path, [row(1, 7, "credit", "100.50", "300.50"), row(2, 7, "debit", 50, "250.5")]))
    assert book.payments == [
        Payment(1, 0, 7, 10_050, "cash", "1993-01-05"),
        Payment(2, 7, 0, 5_000, "cash", "1993-01-05"),
    ]
    assert [payment.change(7) for payment in book.payments] == [10_050, -5_000]
    assert not book.refuses_overdrafts, "the bank allowed them"


def test_an_account_opens_with_its_first_balance_before_that_row(tmp_path: Path) -> None:
    rows = [row(1, 7, "credit", 100, 300), row(2, 8, "debit", 30, 20), row(3, 7, "debit", 1, 299)]
    book = read_payments(csv_of(tmp_path, rows))
    assert book.opening == {7: 20_000, 8: 5_000}
    assert book.bank_balances == {7: 29_900, 8: 2_000}
    assert book.payments_of == {7: 2, 8: 1}


def test_bad_rows_are_counted_and_named_by_their_lines_and_the_others_are_used(tmp_path: Path) -> None:
    bad = {
        "an account that is no number": row(1, "seven", "credit", 1, 1),
        "an account that can't be": row(1, 0, "credit", 1, 1),
        "no direction": row(1, 7, "sideways", 1, 1),
        "no amount": row(1, 7, "credit", "", 1),
        "not a number": row(1, 7, "credit", "NaN", 1),
        "endless": row(1, 7, "credit", "Infinity", 1),
        "negative": row(1, 7, "credit", -1, 1),
        "no balance": row(1, 7, "credit", 1, "much"),
        "cut short": "1,7",
        "no id": ",7,1993-01-05,credit,cash,1,1,",
    }
    rows = [row(1, 7, "credit", 1, 1), *bad.values(), row(2, 7, "credit", 1, 2)]
    book = read_payments(csv_of(tmp_path, rows))
    assert [payment.id for payment in book.payments] == [1, 2]
    assert [line.split(":")[0] for line in book.bad_rows] == [f"line {3 + place}" for place in range(len(bad))]
    assert all(line.split(":", 1)[1].strip() for line in book.bad_rows), "each says what is wrong"


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (row(1, 7, "credit", "1e999999", 1), "amount '1e999999' is too large"),
        (row(1, 7, "credit", "1e5000", 1), "amount '1e5000' is too large"),
        (row(1, 7, "credit", "1e30", 1), "amount '1e30' is too large"),
        (row(1, 7, "credit", "9" * 5000, 1), "amount '" + "9" * 39 + "…' is too large"),
        (row(1, 7, "credit", "1e" + "9" * 30, 1), "amount '1e" + "9" * 30 + "' is no number"),
        (row(1, 7, "credit", "x", 1), "amount 'x' is no number"),
        (row(1, 7, "credit", "sNaN", 1), "amount 'sNaN' is no number"),
        (row(1, 7, "credit", -1, 1), "amount '-1' is below 0"),
        (row(1, 7, "credit", 1, "-1e30"), "balance '-1e30' is too large"),
        (row(1, 7, "credit", 1, ""), "balance is missing"),
        ("1,7,1993-01-05,credit,cash,1", "balance is missing"),
        ("1", "account_id is missing"),
        (row(1, "seven", "credit", 1, 1), "account_id 'seven' is no number"),
        (row(1, "7.5", "credit", 1, 1), "account_id '7.5' is no whole number"),
        (row(1, 0, "credit", 1, 1), "account_id '0' is not from 1 to 2,147,483,647"),
        (row(1, "1" * 20, "credit", 1, 1), "account_id '11111111111111111111' is not from 1 to 2,147,483,647"),
        (row(10**19, 7, "credit", 1, 1), "trans_id '10000000000000000000' is not from"),
        (row(1, 7, "side\aways", 1, 1), r"direction 'side\x07ways' is neither credit nor debit"),
        (row(1, 7, "credit", 1, 1) + "x" * 131_073, "field larger than field limit (131072)"),
    ],
)
def test_a_bad_row_says_in_plain_words_what_is_wrong(tmp_path: Path, bad: str, named: str) -> None:
    book = read_payments(csv_of(tmp_path, [row(5, 7, "credit", 1, 1), bad, row(6, 7, "credit", 1, 2)]))
    assert [payment.id for payment in book.payments] == [5, 6]
    [said] = book.bad_rows
    assert said.startswith(f"line 3: {named}")


def test_a_byte_that_is_not_utf_8_costs_its_own_row_alone(tmp_path: Path) -> None:
    path = csv_of(tmp_path, [row(number, 7, "credit", 1, number) for number in range(1, 2_001)])
    lines = path.read_bytes().split(b"\n")
    lines[1_000] = lines[1_000].replace(b"cash", b"c\xe4sh")
    path.write_bytes(b"\n".join(lines))
    book = read_payments(path)
    assert [payment.id for payment in book.payments] == [n for n in range(1, 2_001) if n != 1_000]
    assert book.bad_rows == ["line 1001: operation is not UTF-8"]


def test_the_largest_ids_and_amounts_are_used(tmp_path: Path) -> None:
    largest = str((2**53 - 1) // 100 - 1)
    book = read_payments(csv_of(tmp_path, [row(2**63 - 1, 2**31 - 1, "credit", largest, largest)]))
    assert book.bad_rows == []
    assert book.opening == {2**31 - 1: 0}


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = csv_of(tmp_path, [row(1, 7, "credit", 1, 1)])
    path.write_text(path.read_text(), encoding="utf-8-sig")
    assert [payment.id for payment in read_payments(path).payments] == [1]


def test_a_header_that_cannot_be_read_is_told_by_its_line(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="line 1: field larger"):
        read_payments(csv_of(tmp_path, [], ["x" * 131_073]))


def test_accounts_whose_rows_do_not_chain_are_named_and_not_compared(tmp_path: Path) -> None:
    rows = [
        row(1, 7, "credit", 1, 10),
        row(2, 8, "credit", 1, 10),
        row(3, 7, "credit", 1, "11.09"),  # rounded by the bank
        row(4, 8, "credit", 1, "11.50"),  # something else happened to it
    ]
    book = read_payments(csv_of(tmp_path, rows))
    assert book.unchained == [8]
    assert set(book.bank_balances) == {7}
    assert len(book.payments) == 4


def test_columns_may_be_in_any_order_and_more_than_needed(tmp_path: Path) -> None:
    columns = ["more", *reversed(COLUMNS)]
    values = ["x", *reversed(row(1, 7, "credit", 1, 2).split(","))]
    assert len(read_payments(csv_of(tmp_path, [",".join(values)], columns)).payments) == 1


@pytest.mark.parametrize("missing", COLUMNS)
def test_a_file_without_a_column_is_refused_and_the_column_named(tmp_path: Path, missing: str) -> None:
    with pytest.raises(BadOption, match=missing):
        read_payments(csv_of(tmp_path, [], [column for column in COLUMNS if column != missing]))


def test_made_up_payments_are_those_of_their_seed() -> None:
    assert make_payments(500, seed=3).payments == make_payments(500, seed=3).payments
    assert make_payments(500, seed=3).payments != make_payments(500, seed=4).payments


def test_made_up_payments_can_be_made() -> None:
    book = make_payments(5_000, seed=1)
    assert [payment.id for payment in book.payments] == list(range(5_000))
    assert all(payment.amount >= 0 and payment.accounts for payment in book.payments)
    assert all(account in book.opening for payment in book.payments for account in payment.accounts)
    assert all(payment.source != payment.target for payment in book.payments)
    assert sum(book.payments_of.values()) == sum(len(payment.accounts) for payment in book.payments)


def test_a_payment_is_read_as_it_was_written() -> None:
    for payment in make_payments(100, seed=2).payments:
        assert Payment.decode(payment.encode()) == payment


@pytest.mark.skipif(not BANK_1993.exists(), reason="the bank's file is not part of the repository")
def test_the_banks_year() -> None:
    book = read_payments(BANK_1993)
    assert len(book.payments) == 27_215
    assert len(book.payments_of) == len(book.opening) == 1_111
    assert book.bad_rows == []
    assert set(book.unchained).isdisjoint(book.bank_balances)
    assert len(book.unchained) + len(book.bank_balances) == 1_111


def test_a_payment_whose_number_was_there_before_is_a_bad_row(tmp_path: Path) -> None:
    rows = [row(1, 7, "credit", 100, 100), row(2, 7, "debit", 30, 70), row(1, 7, "credit", 5, 75)]
    book = read_payments(csv_of(tmp_path, rows))
    assert [payment.id for payment in book.payments] == [1, 2]
    assert book.bad_rows == ["line 4: payment 1 was on line 2"]
