"""Declare a view: a query over the log, and how its results for two parts of the log are merged into one.

A declaration is a value in a Python file of the user's, which need not be importable::

    from polonaise.pipelines.declarations import TableView

    balances = TableView(
        "balances",
        "SELECT account, sum(amount) AS balance, count(*) AS payments FROM {log} GROUP BY account",
        key=["account"],
        merge={"balance": "sum", "payments": "sum"},
        read={"decoder": "json", "decoderSchema": "account long, amount long"},
    )
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from pyspark import cloudpickle
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody gives it
from pyspark.sql.types import DecimalType, FractionalType, IntegralType

from polonaise.errors import BadOption
from polonaise.pipelines.rowtexts import carried_in_error
from polonaise.redaction import redacted, redacted_line
from polonaise.spark.options import RANGE_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField

Merge: TypeAlias = Literal["sum", "min", "max"]
"""The ways to merge two values of one key: the same in any order, but for the last digits of floating-point sums."""

Query: TypeAlias = "str | Callable[[DataFrame], DataFrame]"
"""SQL in which `{log}` stands for the log, or a function from the log's rows to the view's."""

_MERGES: Final[Mapping[str, Callable[[str], Column]]] = {"min": F.min, "max": F.max}
_WAYS: Final = ("sum", *_MERGES)


@dataclass(frozen=True)
class TableView:
    """A table that is computed from the log.

    `query` gets the columns of the source `polonaise`, with those of a decoder, for a range of ids of each partition.
    Without a `key` the rows made of one part of the log are added to those made of earlier parts, so the query may look
    at each transaction by itself only. With a `key`, rows of the same key become one: `merge` says how, for each column
    that is not of the key.

    A query that has to see everything at once (a distinct count, a window over other rows) is declared with
    `whole=True`, and always run over the log from its beginning: such a view can be rebuilt, but not brought up to
    date.
    """

    name: str
    """The table's name: letters, digits and underscores, with no digit first."""
    query: Query
    key: Sequence[str] = ()
    merge: Mapping[str, Merge] = field(default_factory=dict)
    read: Mapping[str, str] = field(default_factory=dict, repr=False)  # an address in it may have a password
    """Options of the source that the job does not set: `partitions`, `headers`, `decoder` with its options, …"""
    whole: bool = False

    def __post_init__(self) -> None:
        """Check the declaration. Raises `BadOption` for one that can't work."""
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise BadOption(f"invalid name of a view, {self.name!r}: use letters, underscores and digits after them")
        if isinstance(self.query, str) and "{log}" not in self.query:
            raise BadOption(f"view {self.name}: its SQL has to read from {{log}}, as in SELECT … FROM {{log}}")
        if isinstance(self.key, str):
            raise BadOption(f"view {self.name}: key={self.key!r} is a text; write a list of columns, [{self.key!r}]")
        if self.whole and self.merge:
            raise BadOption(
                f"view {self.name}: merge and whole=True: a view of the whole log is never merged; keep one of them"
            )
        if self.merge and not self.key:
            raise BadOption(f"view {self.name}: merge without a key: add key=[…], the columns that tell rows apart")
        for column, how in self.merge.items():
            if how not in _WAYS:
                raise BadOption(f"view {self.name}: merge of {column} is {how!r}: write one of {', '.join(_WAYS)}")
            if column in self.key:
                raise BadOption(f"view {self.name}: {column} is in the key, so it can't be merged")
        not_its_own = {name.lower() for name in self.read} & _OPTIONS_OF_JOBS
        if not_its_own:
            raise BadOption(
                f"view {self.name}: read has the option {min(not_its_own)}, which the job sets: leave it out"
            )

    def rows(
        self, spark: SparkSession, log: DataFrame, kept: Callable[[DataFrame], DataFrame] | None = None
    ) -> DataFrame:
        """Return the rows that the view's query makes of these rows of the log, and of them those that `kept` returns.
        With a key, rows of the same key are merged into one, unless the view is `whole`. Computing a sum that does not
        fit its column raises `ViewFailed`, which names the key. Raises `BadOption` for a query that Spark refuses, or
        whose columns do not fit the key and `merge`."""
        frame = self.queried(spark, log)
        return self._merged(frame if kept is None else kept(frame))

    def queried(self, spark: SparkSession, log: DataFrame) -> DataFrame:
        """Return the rows of the view's query, before those of the same key are merged. Raises as `rows`."""
        try:
            frame = spark.sql(self.query, log=log) if isinstance(self.query, str) else self.query(log)
        except (AnalysisException, ParseException) as error:
            raise BadOption(f"the query of view {self.name}: {redacted_line(error) or type(error).__name__}") from error
        if not hasattr(frame, "columns"):
            raise BadOption(f"the query of view {self.name} returns {type(frame).__name__} and not a DataFrame")
        self._check_columns(frame.columns)
        return frame

    def merged(self, parts: Sequence[DataFrame]) -> DataFrame:
        """Merge several results of `rows` into one, with the columns and types of the first."""
        union = reduce(lambda one, other: one.unionByName(other), parts)
        # Sums are wider than what they add up: the table keeps its types however often it is merged.
        schema = parts[0].schema
        merged = self._merged(union)
        return merged.select([self._narrowed(merged.schema[each.name], each) for each in schema])

    def _narrowed(self, merged: StructField, wanted: StructField) -> Column:
        """Cast a merged column to the table's type. Raises `ViewFailed`, in Spark, for a sum that does not fit it."""
        value, fitting = F.col(wanted.name), F.col(wanted.name).try_cast(wanted.dataType)
        if merged.dataType == wanted.dataType:
            return value
        error = self._beyond(wanted.name, wanted.dataType.simpleString()).cast(wanted.dataType)
        return F.when(value.isNotNull() & fitting.isNull(), error).otherwise(fitting).alias(wanted.name)

    def _merged(self, frame: DataFrame) -> DataFrame:
        if not self.key or self.whole:
            return frame
        if not self.merge:
            return frame.distinct()
        merged = [
            (self._sum(frame.schema[column]) if how == "sum" else _MERGES[how](column)).alias(column)
            for column, how in self.merge.items()
        ]
        return frame.groupBy(*self.key).agg(*merged).select(frame.columns)

    def _sum(self, field: StructField) -> Column:
        """Add up a column, whatever Spark's settings say of sums that do not fit: wrapped, null, or without a name."""
        kind = field.dataType
        if isinstance(kind, FractionalType) and not isinstance(kind, DecimalType):
            total, largest = F.sum(field.name), F.max(F.abs(field.name))
            error = self._beyond(field.name, "double").cast("double")
            return F.when((F.abs(total) == _INFINITE) & (largest < _INFINITE), error).otherwise(total)
        if isinstance(kind, IntegralType | DecimalType):
            total = F.try_sum(field.name)
            wide = (
                "bigint" if isinstance(kind, IntegralType) else f"decimal({min(38, kind.precision + 10)},{kind.scale})"
            )
            error = self._beyond(field.name, wide).cast(wide)
            return F.when(total.isNull() & (F.count(field.name) > 0), error).otherwise(total)
        return F.sum(field.name)

    def _beyond(self, column: str, kind: str) -> Column:
        key = carried_in_error(map(F.col, self.key))
        said = F.concat(F.lit(f"the sum of {column} for "), key, F.lit(f" is beyond {kind}: {_BEYOND}"))
        return raised(self.name, said)

    def _check_columns(self, columns: Sequence[str]) -> None:
        if len(set(columns)) < len(columns):
            raise BadOption(
                f"view {self.name}: two columns have the same name among {', '.join(columns)}: rename one with AS"
            )
        missing = [name for name in [*self.key, *self.merge] if name not in columns]
        if missing:
            raise BadOption(f"view {self.name}: its query makes no column {missing[0]}: it makes {', '.join(columns)}")
        unmerged = [name for name in columns if name not in self.key and name not in self.merge]
        if self.key and unmerged and not self.whole:
            raise BadOption(
                f"view {self.name}: how is {unmerged[0]} merged where two rows have the same key? "
                f"Write merge={{{unmerged[0]!r}: 'sum'}}, or min or max"
            )


def raised(view: str, text: Column) -> Column:
    """Return a column that raises `ViewFailed` with this text where it is computed; see `sparkerrors`."""
    return F.raise_error(F.concat(F.lit(f"polonaise.errors.ViewFailed: [view_failed] view {view}: "), text))


_INFINITE: Final = float("inf")
_BEYOND: Final = "leave such rows out, or have the query count in a larger unit, or in decimal(38,0)"
_OPTIONS_OF_JOBS: Final = (RANGE_OPTIONS - {"partitions"}) | {"cluster", "kafkacolumns"}


# ------------------------------------------------------------------ from files


def load_view(text: str) -> TableView:
    """Return the view named by `FILE.py:NAME` or `module:NAME`; `:NAME` may be left out if only one is declared there.
    NAME is the variable or the view's own name. Functions in a file travel to Spark's workers with the tasks. Raises
    `BadOption`."""
    if "@" in text or "://" in text:
        # The URL of a table, given in place of its view, may have a part of a password behind what can be hidden.
        given = "a URL" if "://" in text else repr(redacted(text))
        raise BadOption(f"no views in {given}: write FILE.py:NAME or module:NAME")
    origin, name = _origin_and_name(text)
    module = _module(origin)
    views = {variable: value for variable, value in vars(module).items() if isinstance(value, TableView)}
    named = [view for variable, view in views.items() if name in (variable, view.name, "")]
    if not views:
        raise BadOption(f"{origin} declares no view: assign a TableView to a variable in it")
    if len({id(view) for view in named}) != 1:
        declared = ", ".join(views)
        raise BadOption(f"which view of {origin}? It declares {declared}: write {origin}:NAME")
    return named[0]


def _origin_and_name(text: str) -> tuple[str, str]:
    origin, colon, name = text.rpartition(":")
    return (origin, name) if colon and name.isidentifier() else (text, "")


class Declared:
    """A view named by a text as for `load_view`, loaded once: before Spark starts, if that is possible."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._view: TableView | None = None

    def look(self) -> None:
        """Load the view before Spark starts, unless the file asks for a Spark session itself: it has to find the job's.
        Raises `BadOption` for mistakes that have nothing to do with the session; other failures are left to `load`."""
        if _MAKES_SESSION.search(_source(self._text)):
            return
        try:
            self._view = load_view(self._text)
        except BadOption as error:
            if error.__cause__ is None or isinstance(error.__cause__, SyntaxError):
                raise

    def load(self) -> TableView:
        """Return the view, loaded now, in the job's session, if `look` has not done so. Raises `BadOption`."""
        if self._view is None:
            self._view = load_view(self._text)
        return self._view


_MAKES_SESSION: Final = re.compile(r"\bgetOrCreate\b|\bsession\s*\(")


def _source(text: str) -> str:
    """Return the text of the Python file that declares the view, if it is found."""
    path = Path(_origin_and_name(text)[0])
    if path.suffix != ".py":
        try:
            spec = importlib.util.find_spec(str(path))
        except Exception:  # noqa: BLE001 - of a parent package, which this imports: `_module` reports it
            spec = None
        path = Path(spec.origin or "") if spec is not None else Path()
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _module(origin: str) -> ModuleType:
    try:
        return _file_module(origin) if origin.endswith(".py") else importlib.import_module(origin)
    except BadOption:
        raise
    except Exception as error:
        if isinstance(error, ImportError | ValueError) and not origin.endswith(".py"):
            raise BadOption(f"no views in {origin!r}: {error}; write FILE.py:NAME or module:NAME") from error
        raise BadOption(f"loading {origin} fails: {type(error).__name__}: {error}") from error


def _file_module(file: str) -> ModuleType:
    path = Path(file).absolute()
    if not os.path.isfile(path):  # also for a name that no file can have
        raise BadOption(f"no file {file!r}: write FILE.py:NAME or module:NAME")
    # A name for each path: two files of one name would replace each other in `sys.modules`.
    name = f"polonaise_views_{path.stem}_{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}"
    loader = SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    # Compiled anew each time: kept bytecode is chosen by the file's second and size, and an edit may change neither.
    exec(loader.source_to_code(loader.get_data(str(path)), str(path)), module.__dict__)
    # Workers do not have the file to import functions from: they get them by value.
    pickle: Any = cloudpickle
    pickle.register_pickle_by_value(module)
    return module
