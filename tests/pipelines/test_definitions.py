"""Definitions of views: whatever decides on the rows changes them, and nothing else does."""

from __future__ import annotations

from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from polonaise.errors import BadOption, ViewUnfit
from polonaise.pipelines.declarations import TableView, load_view
from polonaise.pipelines.definitions import Definition, check_same, definition_of, kept_in

SQL = "SELECT account, sum(amount) AS balance, max(amount) AS largest FROM {log} GROUP BY account"
READ = {"decoder": "json", "decoderSchema": "account int, amount long", "headers": "1,2"}


def schema(*, nullable: bool = True, **types: Any) -> StructType:
    columns = {"account": IntegerType(), "balance": LongType(), "largest": LongType(), **types}
    return StructType([StructField(name, kind, nullable) for name, kind in columns.items()])


def declared(**given: Any) -> Definition:
    said = {"query": SQL, "key": ["account"], "merge": {"balance": "sum", "largest": "max"}, "read": READ, **given}
    return definition_of(TableView("balances", **said), schema())


@pytest.mark.parametrize(
    "given",
    [
        {"query": SQL.replace("sum(amount)", "sum(amount * 100)")},
        {"key": ["account", "largest"], "merge": {"balance": "sum"}},
        {"merge": {"balance": "max", "largest": "max"}},
        {"key": [], "merge": {}},
        {"merge": {}, "whole": True},
        {"read": {**READ, "headers": "1"}},
        {"read": {**READ, "partitions": "0"}},
        {"read": {**READ, "decoderSchema": "account int, amount int"}},
        {"read": {**READ, "failOnDecodeError": "false"}},
    ],
)
def test_what_decides_on_the_rows_is_of_the_definition(given: dict[str, Any]) -> None:
    assert declared(**given).digest != declared().digest


@pytest.mark.parametrize(
    "given",
    [
        {"merge": {"largest": "max", "balance": "sum"}},
        {"read": {"HEADERS": "1,2", "decoderschema": READ["decoderSchema"], "Decoder": "json"}},
        {"read": {**READ, "minPartitions": "7", "maxBytesPerSplit": "1m", "timeout": "5", "fragments": "./archive"}},
        {"read": {**READ, "tls.ca": "ca.pem", "tls.certificate": "job.pem", "tls.key": "job-key.pem"}},
    ],
)
def test_how_it_is_read_and_in_what_order_it_is_said_is_not(given: dict[str, Any]) -> None:
    assert declared(**given) == declared()


def test_columns_and_types_are_of_the_definition_and_whether_they_may_be_null_is_not() -> None:
    view = TableView("balances", SQL, ["account"], {"balance": "sum", "largest": "max"}, READ)
    same = definition_of(view, schema(nullable=False))
    assert same == definition_of(view, schema()) == kept_in(same.fields())
    for other in (schema(note=StringType()), schema(account=LongType()), StructType(schema().fields[:2])):
        assert definition_of(view, other).digest != same.digest


# ------------------------------------------------------------------ functions

FILE = """
from functools import partial
from polonaise.pipelines.declarations import TableView

def _large(log):
    return log.where("amount > 100")

def _over(log, limit):
    return log.where(log.amount > limit)

large = TableView("large", _large)
short = TableView(
    "short",
    lambda log: log
        .where("amount < 10")
        .select("amount"),
)
some = TableView("some", partial(_over, limit=7))
"""


def digests(file: Path, text: str) -> dict[str, str]:
    file.write_text(text)
    names = ("large", "short", "some")
    return {name: definition_of(load_view(f"{file}:{name}"), schema()).digest for name in names}


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("amount > 100", "amount > 200", ["large"]),
        ("amount < 10", "amount < 20", ["short"]),
        ('.select("amount")', '.select("amount", "account")', ["short"]),
        ("\ndef _large", "\nLIMIT = 1\n\ndef _large", []),
        ("limit=7", "limit=8", ["some"]),
        ("amount > limit", "amount >= limit", ["some"]),
    ],
)
def test_a_function_is_known_by_its_text(tmp_path: Path, old: str, new: str, changed: list[str]) -> None:
    before, after = digests(tmp_path / "views.py", FILE), digests(tmp_path / "views.py", FILE.replace(old, new))
    assert old in FILE
    assert [name for name in before if before[name] != after[name]] == changed


def some(log: Any, *given: Any, **named: Any) -> Any:
    return log.where("a > 1")


def test_a_partial_is_known_by_its_function_and_by_what_it_gives() -> None:
    def digest(*given: Any, **named: Any) -> str:
        return definition_of(TableView("v", partial(some, *given, **named)), schema()).digest

    day = date(2026, 1, 31)
    assert digest(1, {"a": {2, 3}}, b=[day, some]) == digest(1, {"a": {3, 2}}, b=[day, some])
    assert len({digest(), digest(1), digest("1"), digest(limit=1), digest(some), digest([1]), digest({1: 1})}) == 7
    assert digest(a=1, b=2) == digest(b=2, a=1)


class Query:
    def __call__(self, log: Any) -> Any:
        return log


def test_a_query_whose_source_nobody_has_is_refused() -> None:
    made: dict[str, Any] = {}
    exec("def one(log): return log\ntwo = lambda log: log", made)
    one, two = made["one"], made["two"]
    for query in (one, two, partial(one), partial(some, object()), partial(some, Query()), Query()):
        with pytest.raises(BadOption, match=r"view v: the query's source can't be read .*: write SQL, a function in a"):
            definition_of(TableView("v", query), schema())


# ------------------------------------------------------------------ refusals

OURS = Definition("0" * 15, {"account": "int", "balance": "bigint"}, ("account",))


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        (None, "it does not name the definition of its view"),
        (OURS._replace(digest="1" * 15), "it was made by another query, key, merge or read of its view"),
        (OURS._replace(digest="1", columns={"account": "int"}), "the view has a column balance that the table lacks"),
        (
            OURS._replace(digest="1", columns={**OURS.columns, "n": "int"}),
            "the table has a column n that the view lacks",
        ),
        (
            OURS._replace(digest="1", columns={**OURS.columns, "account": "string"}),
            "column account is string in the table and int in the view",
        ),
        (OURS._replace(digest="1", key=("a", "b")), r"the key is \(a, b\) in the table and \(account\) in the view"),
    ],
)
def test_what_differs_and_what_to_do_is_told_in_one_line(kept: Definition | None, told: str) -> None:
    how = "rebuild it .rebuild.* in Python, --rebuild on the command line"
    with pytest.raises(ViewUnfit, match=f"the table can't be brought up to date: {told}.*; {how}") as error:
        check_same("the table", kept, OURS)
    assert "\n" not in str(error.value)
    check_same("the table", OURS, OURS)
