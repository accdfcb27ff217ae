"""The bank's own part of a report on its log: volumes, balances, flows between banks, and what is unusual.

    polonaise pipeline report LOG OUT --sections polonaise_proving.demo.report:bank --title "The bank"

A worked example of such a part: it reads the log by SQL and adds to the page. Amounts are in hundredths in the log and
in the tables, and in units of the currency on the page.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from polonaise.pipelines.charts import Bars, Flows, Lines, Mark, Series
from polonaise.pipelines.page import ReportPage, ReportVerdict
from polonaise.pipelines.tables import Table
from polonaise_proving.demo.bank import OPENING, PAYMENT

if TYPE_CHECKING:
    from polonaise.pipelines.snapshots import Snapshot

_UNIT: Final = "crowns"
_HERE: Final = "this bank"
_UNNAMED: Final = "no bank named"
_ACCOUNTS_DRAWN: Final = 5
_TIMES_USUAL: Final = 20
"""A payment is unusual if it is more than so many times the median of its kind."""
_DEVIATIONS: Final = 8.0
"""A day is unusual if its distance from the median of the days around it is more than so many times their median
distance from that median, which counts as 1 at least."""
_DAYS_AROUND: Final = 14
_DAYS_MARKED: Final = 12
_NAMED_MAX: Final = 20

_COLUMNS: Final = "transaction_id long, timestamp timestamp, header int, data binary"
_BODIES: Final = f"""
    WITH bodies AS (
        SELECT transaction_id, timestamp, header, from_json(CAST(data AS STRING), 'array<string>') AS body FROM {{log}}
    ), openings AS (
        SELECT CAST(body[0] AS BIGINT) AS account, CAST(body[1] AS BIGINT) AS balance
        FROM bodies WHERE header = {OPENING}
    ), payments AS (
        SELECT
            transaction_id, CAST(body[0] AS BIGINT) AS id, CAST(body[1] AS BIGINT) AS source,
            CAST(body[2] AS BIGINT) AS target, CAST(body[3] AS BIGINT) AS amount, body[4] AS kind,
            coalesce(TRY_CAST(body[5] AS DATE), CAST(timestamp AS DATE)) AS day, nullif(get(body, 6), '') AS bank
        FROM bodies WHERE header = {PAYMENT}
    ), changes AS (
        SELECT transaction_id, source AS account, -amount AS change, day FROM payments WHERE source <> 0
        UNION ALL
        SELECT transaction_id, target AS account, amount AS change, day FROM payments WHERE target <> 0
    )
"""
"""SQL that reads the bodies which `Payment.encode` and `encode_opening` make."""

_TABLES: Final = {
    "payments_per_month": """
        SELECT date_trunc('month', day) AS month, kind, count(*) AS payments, sum(amount) AS amount
        FROM payments GROUP BY ALL ORDER BY month, kind
    """,
    "days": """
        SELECT day, count(DISTINCT transaction_id) AS payments, sum(change) AS change
        FROM changes GROUP BY day ORDER BY day
    """,
    "opened": "SELECT count(*) AS accounts, coalesce(sum(balance), 0) AS balance FROM openings",
    "balances": """
        , monthly AS (
            SELECT account, last_day(day) AS month_end, sum(change) AS change FROM changes GROUP BY ALL
        )
        SELECT account, month_end,
            coalesce(balance, 0) + sum(change) OVER (PARTITION BY account ORDER BY month_end) AS balance
        FROM monthly LEFT JOIN openings USING (account) ORDER BY account, month_end
    """,
    "flows": f"""
        SELECT
            CASE WHEN source <> 0 THEN '{_HERE}' ELSE coalesce(bank, '{_UNNAMED}') END AS from_bank,
            CASE WHEN target <> 0 THEN '{_HERE}' ELSE coalesce(bank, '{_UNNAMED}') END AS to_bank,
            count(*) AS payments, sum(amount) AS amount
        FROM payments GROUP BY ALL ORDER BY from_bank, to_bank
    """,
    "unusual_payments": f"""
        , usual AS (SELECT kind, percentile_approx(amount, 0.5) AS usual FROM payments GROUP BY kind)
        SELECT transaction_id, id, day, kind, source, target, amount, usual
        FROM payments JOIN usual USING (kind) WHERE amount > {_TIMES_USUAL} * usual
        ORDER BY amount / usual DESC, transaction_id
    """,
    "below_zero": """
        , running AS (
            SELECT account, transaction_id, day,
                coalesce(balance, 0) + sum(change) OVER (PARTITION BY account ORDER BY transaction_id) AS balance
            FROM changes LEFT JOIN openings USING (account)
        )
        SELECT account, min(balance) AS lowest, min(day) AS first_day, count(*) AS payments
        FROM running WHERE balance < 0 GROUP BY account ORDER BY lowest, account
    """,
    "made_twice": """
        SELECT id, count(*) AS times, min(transaction_id) AS first_id, max(transaction_id) AS last_id
        FROM payments GROUP BY id HAVING count(*) > 1 ORDER BY id
    """,
    "never_opened": """
        SELECT account, count(*) AS payments FROM changes LEFT ANTI JOIN openings USING (account)
        GROUP BY account ORDER BY account
    """,
}
"""SQL of each table, behind `_BODIES`."""


def bank(snapshot: Snapshot, page: ReportPage) -> Mapping[str, Any]:
    """Add the bank's part to a report, and return the tables behind it, by name."""
    tables = {name: snapshot.query(_BODIES + sql, schema=_COLUMNS) for name, sql in _TABLES.items()}
    rows = {name: table.to_pylist() for name, table in tables.items()}
    page.section("The bank")
    _tell_checks(page, rows)
    _tell_volumes(page, rows["payments_per_month"])
    _tell_balances(page, rows)
    _tell_flows(page, rows["flows"])
    _tell_unusual(page, rows["unusual_payments"])
    return tables


Rows = Sequence[Mapping[str, Any]]


def _tell_checks(page: ReportPage, rows: Mapping[str, Rows]) -> None:
    payments = sum(row["payments"] for row in rows["payments_per_month"])
    (opened,) = rows["opened"]
    total = opened["balance"] + sum(row["change"] for row in rows["days"])
    page.facts({"payments": payments, "accounts": opened["accounts"], f"{_UNIT} held at the end": total / 100})
    page.verdicts(
        [
            _none("each payment is in the log once", rows["made_twice"], "payment", "id"),
            _none("each account was opened", rows["never_opened"], "account", "account"),
            _none("no account was ever below zero", rows["below_zero"], "account", "account"),
        ]
    )


def _none(what: str, offending: Rows, noun: str, column: str) -> ReportVerdict:
    named = ", ".join(str(row[column]) for row in offending[:_NAMED_MAX])
    more = f" and {len(offending) - _NAMED_MAX:,} more" if len(offending) > _NAMED_MAX else ""
    return ReportVerdict(what, not offending, f"{noun} {named}{more}" if offending else "")


def _tell_volumes(page: ReportPage, months: Rows) -> None:
    sums: dict[date, int] = defaultdict(int)
    kinds: dict[str, int] = defaultdict(int)
    for row in months:
        sums[row["month"].date()] += row["amount"]
        kinds[row["kind"] or "of no kind"] += row["amount"]
    page.chart(Bars("Volume per month", [(month, amount / 100) for month, amount in sorted(sums.items())], unit=_UNIT))
    largest = sorted(kinds.items(), key=lambda kind: -kind[1])
    page.chart(Bars("Volume by kind", [(kind, amount / 100) for kind, amount in largest], unit=_UNIT))


def _tell_balances(page: ReportPage, rows: Mapping[str, Rows]) -> None:
    (opened,) = rows["opened"]
    total = opened["balance"]
    points = []
    for row in rows["days"]:
        total += row["change"]
        points.append((row["day"], total / 100))
    page.chart(Lines("Held on all accounts", [Series("held", points)], unit=_UNIT, stepped=True))
    accounts: dict[int, list[tuple[date, float]]] = defaultdict(list)
    for row in rows["balances"]:
        accounts[row["account"]].append((row["month_end"], row["balance"] / 100))
    largest = sorted(accounts, key=lambda account: -accounts[account][-1][1])[:_ACCOUNTS_DRAWN]
    series = [Series(f"account {account}", accounts[account]) for account in largest]
    page.chart(Lines("The largest accounts, at the end of each month", series, unit=_UNIT, stepped=True))
    _tell_days(page, rows["days"])


def _tell_days(page: ReportPage, days: Rows) -> None:
    points = [(row["day"], row["payments"]) for row in days]
    marks = [
        Mark(("payments", day), f"{day}: {count:,} payments, around it {usual:,.0f}")
        for day, count, usual in sorted(unusual_days(points)[:_DAYS_MARKED])
    ]
    page.chart(Lines("Payments per day", [Series("payments", points)], unit="payments", marks=marks))


def unusual_days(days: Sequence[tuple[date, int]]) -> list[tuple[date, int, float]]:
    """Return the days with far more or fewer payments than the days around them: (day, payments, usual number).

    Compares with the median of the day and the 14 entries of `days` before and after it, and with their median distance
    from that: so a bank may grow, and a few wild days do not make themselves usual. The wildest come first.
    """
    unusual = []
    for index, (day, count) in enumerate(days):
        around = [other for _, other in days[max(0, index - _DAYS_AROUND) : index + _DAYS_AROUND + 1]]
        usual = statistics.median(around)
        spread = max(statistics.median(abs(other - usual) for other in around), 1.0)
        if abs(count - usual) > _DEVIATIONS * spread:
            unusual.append((abs(count - usual) / spread, day, count, usual))
    return [(day, count, usual) for _, day, count, usual in sorted(unusual, reverse=True)]


def _tell_flows(page: ReportPage, flows: Rows) -> None:
    """Draw the flows between named banks. Beside the large flows of no named bank, they would all look alike."""
    amounts = {(row["from_bank"], row["to_bank"]): row["amount"] / 100 for row in flows}
    named = {pair: amount for pair, amount in amounts.items() if _UNNAMED not in pair}
    came, went = (amounts.get(pair, 0) for pair in ((_UNNAMED, _HERE), (_HERE, _UNNAMED)))
    note = f"Besides, with {_UNNAMED} (cash, fees, interest): {came:,.0f} came in, {went:,.0f} went out."
    page.chart(Flows("Flows between banks", named, unit=_UNIT, note=note))


def _tell_unusual(page: ReportPage, unusual: Rows) -> None:
    columns = ["transaction", "payment", "day", "kind", "from", "to", f"amount, {_UNIT}", "usual for its kind"]
    rows = [
        [
            *(row[name] for name in ("transaction_id", "id", "day", "kind", "source", "target")),
            row["amount"] / 100,
            row["usual"] / 100,
        ]
        for row in unusual
    ]
    title = f"Payments of more than {_TIMES_USUAL} times what is usual for their kind"
    page.table(Table(title, columns, rows, note="Account 0 is outside of this bank.", rows_max=50))
