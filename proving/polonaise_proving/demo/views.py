"""Views of the bank, for `polonaise pipeline views` and `polonaise pipeline audit`.

    polonaise pipeline views LOG polonaise_proving.demo.views:balances parquet:./balances
    polonaise pipeline audit LOG polonaise_proving.demo.views:accounts sqlite:///bank.db --marks polonaise_marks

A worked example of such declarations. Bodies are JSON arrays, as `encode_opening` and `Payment.encode` make them;
amounts are in hundredths, and account 0 is outside of this bank.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody gives it

from polonaise.pipelines.declarations import TableView

_FIELDS = "from_json(CAST(data AS STRING), 'array<string>')"

_CHANGES = f"""
    SELECT explode(CASE header
        WHEN 1 THEN array(named_struct('account', CAST(f[0] AS INT), 'amount', CAST(f[1] AS BIGINT)))
        ELSE array(named_struct('account', CAST(f[1] AS INT), 'amount', -CAST(f[3] AS BIGINT)),
                   named_struct('account', CAST(f[2] AS INT), 'amount', CAST(f[3] AS BIGINT)))
    END) AS change
    FROM (SELECT header, {_FIELDS} AS f FROM {{log}})
"""

accounts = TableView(
    "accounts",
    f"SELECT change.account, sum(change.amount) AS balance FROM ({_CHANGES}) WHERE change.account <> 0 GROUP BY 1",
    key=["account"],
    merge={"balance": "sum"},
    read={"headers": "1,2"},
)
"""The table that the tellers keep in their database, declared again for an audit of it."""

balances = TableView(
    "balances",
    f"""
    SELECT change.account, sum(change.amount) AS balance, count(*) AS changes, max(abs(change.amount)) AS largest
    FROM ({_CHANGES}) WHERE change.account <> 0 GROUP BY 1
    """,
    key=["account"],
    merge={"balance": "sum", "changes": "sum", "largest": "max"},
    read={"headers": "1,2"},
)


def _payments(log: DataFrame) -> DataFrame:
    fields = F.from_json(F.col("data").cast("string"), "array<string>")
    number = ["bigint", "int", "int", "bigint", "string", "string"]
    names = ["payment", "source", "target", "amount", "kind", "date"]
    columns = [
        fields[index].cast(kind).alias(name) for index, (name, kind) in enumerate(zip(names, number, strict=True))
    ]
    return log.select(F.col("transaction_id").alias("transaction"), F.col("timestamp").alias("committed"), *columns)


payments = TableView("payments", _payments, read={"headers": "2"})
"""A row for each payment."""

by_kind = TableView(
    "by_kind",
    """
    SELECT f[4] AS kind, substr(f[5], 1, 7) AS month, count(*) AS payments, sum(CAST(f[3] AS BIGINT)) AS volume
    FROM (SELECT from_json(CAST(data AS STRING), 'array<string>') AS f FROM {log}) GROUP BY 1, 2
    """,
    key=["kind", "month"],
    merge={"payments": "sum", "volume": "sum"},
    read={"headers": "2"},
)
