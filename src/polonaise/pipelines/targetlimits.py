"""What a table can't hold: found in each row before anything is written, by one rule for all runs and for the audit.

A database would refuse such a row and with it the whole commit, or bend it: a text with NUL, a year that it does not
have, a key that is too long. Here the policy for bodies that do not decode says what becomes of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Self, TypeVar

from pyspark.errors import PySparkAttributeError
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody gives it

from polonaise.pipelines.declarations import TableView, raised
from polonaise.pipelines.rowtexts import carried, carried_in_error, json_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField


class Limit(NamedTuple):
    """Values of a column that a table can't hold."""

    column: str
    refused: Column
    """Whether the row's value is one of them; never null."""
    why: str
    """What the value is or has, after the column's name."""
    in_key: bool


class RefusedRow(NamedTuple):
    """A row that a table can't hold, named by its transaction if its view tells it, and by its key."""

    partition: int | None
    transaction_id: int | None
    column: str
    reason: str
    row: str
    """The key as JSON, or without a key the row, redacted and cut."""

    def __str__(self) -> str:
        return f"{_named(self.partition, self.transaction_id)}row {self.row}: {self.column} {self.reason}"


NAMED_MAX: Final = 20
"""Number of bodies, and of rows, that a report names, at most."""

Named = TypeVar("Named", bound=Any)


@dataclass(frozen=True)
class NotHeld(Generic[Named]):
    """What a view's table lacks of a part of the log: bodies that do not decode, or rows that the table can't hold."""

    count: int = 0
    named: Sequence[Named] = ()
    """The first of them, `NAMED_MAX` at most."""
    kept: DataFrame | None = None
    """All of them, as rows of a table beside the view's, if they are kept."""

    def and_then(self, more: Self) -> Self:
        """Add those of a later part of the log. `kept` of the result is None."""
        named = (*self.named, *more.named)[:NAMED_MAX]
        return replace(self, count=self.count + more.count, named=named, kept=None)

    def fields(self) -> dict[str, Any]:
        return {"count": self.count, "named": [each._asdict() for each in self.named]}


NONE_REFUSED: Final = NotHeld[RefusedRow]()


def column_of(field: StructField) -> Column:
    return F.col(f"`{field.name.replace('`', '``')}`")


def _first(limits: Sequence[Limit], text: Mapping[int, Column]) -> Column:
    """Return the text of the first limit that a row does not keep; null for none."""
    return F.coalesce(*(F.when(each.refused, text[at]) for at, each in enumerate(limits)), F.lit(None).cast("string"))


def without_refused(frame: DataFrame, view: TableView, limits: Sequence[Limit], *, skips: bool) -> DataFrame:
    """Return the rows that keep the limits. Computing them raises `ViewFailed` for others, unless it `skips` these. If
    the query makes one row of many transactions, to leave it out because of a value would leave out the others' part in
    it, more or less by how the log is divided into commits. So then only a key can be skipped."""
    skipped = _skipped(frame, view, limits) if skips else []
    kept_by = {id(each) for each in skipped}
    fails = [each for each in limits if id(each) not in kept_by]
    if fails:
        error = raised(view.name, _message(frame, view, fails, skips=skips))
        frame = frame.where(F.when(_any(fails), error.cast("boolean")).otherwise(F.lit(True)))
    return frame.where(~_any(skipped)) if skipped else frame


def _skipped(frame: DataFrame, view: TableView, limits: Sequence[Limit]) -> list[Limit]:
    return [each for each in limits if each.in_key] if not _rows_are_alone(frame, view) else list(limits)


def refused_rows(frame: DataFrame, view: TableView, limits: Sequence[Limit]) -> DataFrame:
    """Return the rows that `without_refused` skips, as a table of refused rows has them."""
    drops = _skipped(frame, view, limits)
    if not drops:
        drops = [limits[0]._replace(refused=F.lit(False))]
    texts = {name: {at: F.lit(getattr(each, name)) for at, each in enumerate(drops)} for name in ("column", "why")}
    return frame.where(_any(drops)).select(
        _told(frame, "partition", "int"),
        _told(frame, "transaction_id", "bigint"),
        _first(drops, texts["column"]).alias("column_name"),
        _first(drops, texts["why"]).alias("reason"),
        json_of(column_of(field) for field in frame.schema.fields).alias("row_json"),
        carried(_naming(frame, view)).alias("shown"),
    )


def _message(frame: DataFrame, view: TableView, limits: Sequence[Limit], *, skips: bool) -> Column:
    texts = {at: F.lit(f"{each.column} {each.why}") for at, each in enumerate(limits)}
    mend = (
        "its query makes one row of many transactions, so it can't be left out without them: leave the value out in "
        "the query, or convert it there"
        if skips
        else "convert it in the query, or with onUndecodable=skip such rows are left out, and with "
        f"onUndecodable=table kept in {view.name}_refused"
    )
    transaction = F.lit("")
    if {"partition", "transaction_id"} <= set(frame.columns):
        transaction = F.concat(
            F.lit("transaction "), F.col("transaction_id").cast("string"),
            F.lit(" of partition "), F.col("partition").cast("string"), F.lit(", "),
        )  # fmt: skip
    parts = [F.lit("the table can't hold "), F.coalesce(transaction, F.lit("")), F.lit("row ")]
    parts.append(carried_in_error(_naming(frame, view)))
    return F.concat(*parts, F.lit(": "), _first(limits, texts), F.lit(f"; {mend}"))


def _any(limits: Sequence[Limit]) -> Column:
    return reduce(lambda one, other: one | other, (each.refused for each in limits))


def _told(frame: DataFrame, name: str, kind: str) -> Column:
    """Return the row's own partition or id, if its view tells it."""
    return (F.col(name).try_cast(kind) if name in frame.columns else F.lit(None).cast(kind)).alias(name)


def _naming(frame: DataFrame, view: TableView) -> list[Column]:
    """Return the columns that say which row it is: the key, or without a key all."""
    return [column_of(field) for field in frame.schema.fields if not view.key or field.name in view.key]


def _named(partition: int | None, transaction_id: int | None) -> str:
    known = partition is not None and transaction_id is not None
    return f"transaction {transaction_id} of partition {partition}, " if known else ""


# ------------------------------------------------------------------ the view's query

_ALONE: Final = frozenset(
    {
        "Project", "Filter", "SubqueryAlias", "View", "Generate", "Union", "RelationV2", "DataSourceV2Relation",
        "LogicalRelation", "Relation", "LogicalRDD", "LocalRelation", "ResolvedHint",
    }
)  # fmt: skip
"""Names of the steps of a query that look at each row by itself, as Spark calls them."""


def _rows_are_alone(frame: DataFrame, view: TableView) -> bool:
    """Whether each of the query's rows is made of one transaction, or always of the same ones."""
    if not view.key or view.whole:
        return True
    try:
        plan: Any = frame._jdf.queryExecution().analyzed()
    except (AttributeError, PySparkAttributeError):  # Spark Connect does not show its plans
        return False
    waiting = [plan]
    while waiting:
        step = waiting.pop()
        if str(step.nodeName()).split(" ")[0] not in _ALONE:
            return False
        children = step.children()
        waiting += [children.apply(at) for at in range(children.size())]
    return "-subquery#" not in str(plan.toString())
