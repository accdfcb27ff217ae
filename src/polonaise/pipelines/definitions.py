"""The definition of a view as a short digest that is kept in its table, so that rows of two definitions never mix.

A definition is everything that decides which rows come out of the same log: query, key, merge, `whole`, the options of
the source that select transactions and make columns, and the resulting columns. No part of it are, where the query is a
function, the functions that it calls and the values that it captures.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import date, timedelta
from decimal import Decimal
from functools import partial
from operator import itemgetter
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from polonaise.errors import BadOption, ViewUnfit
from polonaise.pipelines.declarations import TableView

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

DIGITS: Final = 15
"""Hexadecimal digits of a digest: as many as fit the version of a Delta application transaction, of 64 bits."""
_HOW: Final = frozenset(
    {
        "fragments", "maxbytespersplit", "maxoffsetspertrigger", "maxtransactionspertrigger", "minpartitions",
        "timeout", "tls.ca", "tls.certificate", "tls.key",
    }
)  # fmt: skip
"""Options of the source that do not change the rows, but only how they are read."""


class Definition(NamedTuple):
    """The definition of a view, as the view's table keeps it beside its marks."""

    digest: str
    """The digest of the definition, in hexadecimal. Equal digests imply equal columns and keys."""
    columns: Mapping[str, str]
    """The type of each column, by name, as Spark writes types."""
    key: tuple[str, ...]

    def fields(self) -> dict[str, Any]:
        """Return the definition as values of JSON."""
        return {"definition": self.digest, "columns": dict(sorted(self.columns.items())), "key": list(self.key)}


def definition_of(view: TableView, schema: StructType) -> Definition:
    """Return the view's definition; `schema` is that of its rows. Whether a column may be null does not matter. Raises
    `BadOption` for a query whose source can't be read, such as an object with `__call__`, and for a partial with an
    argument that is neither plain nor a function."""
    columns, key = columns_of(schema), tuple(sorted(view.key))
    options = sorted(_deciding_options(view.read))
    parts = [_query_of(view), key, sorted(view.merge.items()), view.whole, options, sorted(columns.items())]
    return Definition(hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:DIGITS], columns, key)


def _deciding_options(options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the options that decide which rows there are: `onUndecodable` only if undecodable bodies make rows."""
    for name, value in options.items():
        option, text = name.lower(), str(value)
        # An older spelling of the same: tables that were made with either keep their digest.
        if option == "onundecodable" and text.strip().lower() == "column":
            yield "failondecodeerror", "false"
        elif option not in _HOW and (option != "onundecodable" or text.strip().lower() == "only"):
            yield option, text


def columns_of(schema: StructType) -> dict[str, str]:
    return {each.name: each.dataType.simpleString() for each in schema.fields}


def kept_in(fields: Mapping[str, Any]) -> Definition | None:
    """Read a definition from the values of `Definition.fields`; None if one is missing or of another type."""
    digest, columns, key = (fields.get(name) for name in ("definition", "columns", "key"))
    if not (isinstance(digest, str) and isinstance(columns, dict) and isinstance(key, list)):
        return None
    return Definition(digest, columns, tuple(key))


def is_same(kept: Definition | None, declared: Definition) -> bool:
    """Whether rows of the `declared` definition may be added to rows of the `kept` one, if there is one."""
    return kept is not None and kept.digest == declared.digest


def check_same(table: str, kept: Definition | None, declared: Definition) -> None:
    """Raise `ViewUnfit` unless the definitions are the same."""
    if is_same(kept, declared):
        return
    if kept is None:
        difference = "it does not name the definition of its view"
    else:
        difference = other_shape(kept, declared) or "it was made by another query, key, merge or read of its view"
    raise ViewUnfit(
        f"{table} can't be brought up to date: {difference}; rebuild it (rebuild(...) in Python, "
        "--rebuild on the command line), or choose another table"
    )


def other_shape(kept: Definition, declared: Definition) -> str | None:
    """Describe the first difference in columns, or else in the key; None if there is none."""
    for name in sorted({**kept.columns, **declared.columns}):
        table_type, view_type = kept.columns.get(name), declared.columns.get(name)
        if table_type is None:
            return f"the view has a column {name} that the table lacks"
        if view_type is None:
            return f"the table has a column {name} that the view lacks"
        if table_type != view_type:
            return f"column {name} is {table_type} in the table and {view_type} in the view"
    if kept.key != declared.key:
        return f"the key is ({', '.join(kept.key)}) in the table and ({', '.join(declared.key)}) in the view"
    return None


def _query_of(view: TableView) -> list[Any]:
    if isinstance(view.query, str):
        return ["SQL", view.query]
    try:
        return ["function", _source_of(view.query)]
    except (OSError, TypeError, SyntaxError) as error:
        raise BadOption(
            f"view {view.name}: the query's source can't be read ({error}), so its table could not tell this "
            "definition from another: write SQL, a function in a file, or a functools.partial of one with plain values"
        ) from error


def _source_of(function: Callable[..., Any]) -> str | list[Any]:
    """Return a function's source text; of a lambda, the lines of its statement; of a partial, also what it gives. The
    file's other text is left out: another view in it may change. Raises `OSError`, `TypeError` or `SyntaxError`."""
    if isinstance(function, partial):
        return ["partial", _source_of(function.func), _given(function.args), _given(function.keywords)]
    if isinstance(function, FunctionType) and function.__name__ == "<lambda>":
        return _statement_around(function)
    return inspect.getsource(function)


def _given(value: Any) -> Any:
    """Return an argument as a value of JSON that is the same in every process. Raises what `_source_of` raises."""
    match value:
        case list() | tuple():
            return [_given(each) for each in value]
        case dict():
            return sorted(([repr(key), _given(each)] for key, each in value.items()), key=itemgetter(0))
        case set() | frozenset():
            return sorted(map(repr, value))
        case None | str() | bytes() | int() | float() | Decimal() | date() | timedelta():
            return repr(value)
        case _ if callable(value):
            return _source_of(value)
    raise TypeError(f"an argument is a {type(value).__name__}")


def _statement_around(function: FunctionType) -> str:
    """Return the lines of the statement that holds a lambda: `inspect` would end it with the lambda's first line."""
    lines, _ = inspect.findsource(function)
    line = function.__code__.co_firstlineno
    spans = [
        (each.lineno, each.end_lineno or each.lineno)
        for each in ast.walk(ast.parse("".join(lines)))
        if isinstance(each, ast.stmt) and each.lineno <= line <= (each.end_lineno or each.lineno)
    ]
    if not spans:
        raise OSError("the file has changed since it was loaded")
    first, last = min(spans, key=lambda span: span[1] - span[0])
    return "".join(lines[first - 1 : last])
