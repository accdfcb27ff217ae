"""A report by Spark: what the booking service's log says of each show, as a page and as a CSV file.

    pip install 'polonaise[spark]'
    python examples/spark_report.py embedded:./booking-log ./report

It reads the log's whole history, as it was when it began, while the service goes on. Bodies that are no bookings are
counted on the page, and in no show. `shows.csv` and `index.html` are replaced at once when all is computed: a report
that fails or is killed leaves those of the last run. Run it again at any time.

With archived history (`option("fragments", …)`) the service's servers are spared: docs/spark.md. `polonaise pipeline
report` is a report of any log, with charts and no code: docs/pipelines.md.
"""

from __future__ import annotations

import csv
import html
import io
import sys
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody gives it

from polonaise.spark.sessions import session

COLUMNS = ["show", "seats", "guests", "first", "last"]


def history(spark: SparkSession, address: str) -> DataFrame:
    """Return the log as rows. What is read is fixed here: all queries of this DataFrame see the same transactions."""
    return (
        spark.read.format("polonaise")
        .option("cluster", address)
        .option("decoder", "json")
        .option("decoderSchema", "show int, seat int, guest string")
        .option("onUndecodable", "column")  # they have a row, too, in which these are null
        .load()
    )


def shows(log: DataFrame) -> list[Row]:
    return (
        log.dropna(subset=["show", "seat", "guest"])
        .groupBy("show")
        .agg(
            F.count("seat").alias("seats"),
            F.countDistinct("guest").alias("guests"),
            F.date_format(F.min("timestamp"), "yyyy-MM-dd HH:mm:ss").alias("first"),
            F.date_format(F.max("timestamp"), "yyyy-MM-dd HH:mm:ss").alias("last"),
        )
        .orderBy("show")
        .select(COLUMNS)
        .collect()  # a row for each show: few enough for one process
    )


def as_csv(table: list[Row]) -> str:
    file = io.StringIO()
    csv.writer(file).writerows([COLUMNS, *table])
    return file.getvalue()


def as_page(table: list[Row], others: int) -> str:
    def line(tag: str, values: list[str] | Row) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(value))}</{tag}>" for value in values) + "</tr>"

    lines = [line("th", COLUMNS), *(line("td", row) for row in table)]
    return (
        '<!doctype html><meta charset="utf-8"><title>Bookings</title>'
        "<style>td, th {padding: 0.2em 1em; text-align: right}</style>"
        f"<h1>Bookings</h1><table>{''.join(lines)}</table><p>Transactions that are no bookings: {others}</p>\n"
    )


def replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def main(address: str, directory: str) -> None:
    spark = session("local[2]")
    try:
        log = history(spark, address)
        table, count = shows(log), log.count()
    finally:
        spark.stop()
    booked = sum(row.seats for row in table)
    to = Path(directory)
    to.mkdir(parents=True, exist_ok=True)
    replace(to / "shows.csv", as_csv(table))
    replace(to / "index.html", as_page(table, count - booked))
    print(f"{booked} bookings of {len(table)} shows: {to / 'index.html'}")


if __name__ == "__main__":
    main(*sys.argv[1:])
